"""Two and four studies that are started together on one device, against one study with all of their trials.

Every trial computes the same for about 20 seconds on one thread and holds memory on its device. What is compared is
the time from the first start of a trial to the last end, from the studies' journals, so that start-up is left aside.
Prints the ratio and the trials that ran out of memory. Exits with 1 if a ratio is above 1.15, or if a trial ran out
of memory. On an emulated card (``--device cuda`` in its environment) trials wait instead of computing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tuner

BAR = 1.15
TRIALS = 16  # of all studies together
HELD_MB = 300
STEPS = 40


def hold(config: dict[str, Any]) -> None:
    """Holds memory and computes ``STEPS`` times as many products of matrices as take half a second alone."""
    import torch

    held = torch.ones(HELD_MB, 2**18, device=config["device"])  # float32
    matrix = torch.ones(256, 256)
    for _ in range(STEPS):
        if config["device"] == "cuda":
            time.sleep(0.5)
        for _ in range(int(config["products"])):
            matrix = matrix @ matrix / 256
        tuner.report(loss=float(held.shape[0]))


def products_in_half_a_second() -> int:
    """How many products this machine computes in half a second on one thread."""
    import torch

    torch.set_num_threads(1)
    matrix, done, end = torch.ones(256, 256), 0, time.perf_counter() + 3
    while time.perf_counter() < end:
        matrix = matrix @ matrix / 256
        done += 1
    return done // 6


def study(folder: str, trials: int, device: str, products: int) -> None:
    """One study, in a process of its own."""
    space = {"number": {"choice": list(range(trials))}, "device": device, "products": products}
    tuner.run(
        hold,
        space=space,
        metric="loss",
        direction="minimize",
        memory_gb=1.2,
        gpu_memory_buffer_gb=0.0,
        threads=1,
        device=device,
        output=folder,
    )


def together(studies: int, device: str, products: int, base: Path) -> tuple[float, int]:
    """Seconds from the first start to the last end of so many studies, and how many attempts ran out of memory."""
    folders = [base / f"{number}-of-{studies}" for number in range(studies)]
    given = [str(TRIALS // studies), device, str(products)]
    started = [
        subprocess.Popen([sys.executable, __file__, "--study", str(folder), *given], stdout=subprocess.DEVNULL)
        for folder in folders
    ]
    if any(process.wait() for process in started):
        raise SystemExit(f"a study failed: see {base}")
    lines = [json.loads(line) for folder in folders for line in (folder / "attempts.jsonl").read_text().splitlines()]
    seconds = max(line["ended_at"] for line in lines) - min(line["started_at"] for line in lines)
    return seconds, sum(line["status"] == "out_of_memory" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--studies", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--study", nargs=4, metavar=("DIR", "TRIALS", "DEVICE", "PRODUCTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.study:
        folder, trials, device, products = options.study
        study(folder, int(trials), device, int(products))
        return 0
    products = 0 if options.device == "cuda" else products_in_half_a_second()
    base = Path(tempfile.mkdtemp(prefix="sharing-"))
    alone, ran_out = together(1, options.device, products, base)
    print(f"1 study of {TRIALS} trials: {alone:.1f} s, {ran_out} ran out of memory", flush=True)
    missed = False
    for number in options.studies:
        seconds, ran_out = together(number, options.device, products, base)
        ratio = seconds / alone
        print(
            f"{number} studies of {TRIALS // number}: {seconds:.1f} s, ratio {ratio:.3f}, {ran_out} ran out of memory"
        )
        missed |= ratio > BAR or ran_out > 0
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
