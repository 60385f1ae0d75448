"""docs/timeline.svg: a GPU's memory over time in three studies of the same configurations.

The first study runs one trial after another. The second is a plain Ray Tune script whose trials each ask for a
guessed fraction of the GPU. The third is tuner. Each runs in a process of its own, and NVML tells the GPU's memory.

It runs on whatever GPU there is. On an emulated card (in its environment, see scripts/test_emulated) no kernel
computes anything, so each step of a trial waits instead: then the memory is what PyTorch's allocator takes, and the
times say nothing of a GPU's speed, and the machine is said to have a core for each trial. The picture names the card.
It needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTHS = (3072, 6144, 2048, 4096, 9216, 2304, 5120, 3328, 7168, 2560, 4352, 6400, 3584, 8192, 2816, 5376)
GUESS = 0.2  # room enough for most: the median trial needs 0.14 of 11 GB
STEPS = 40
STEP_SECONDS = 0.4
EMULATED = "EMULATED_GPU" in os.environ


def build(config: dict[str, Any]) -> Any:
    """An MLP of three square layers, Adam and a step's loss: 16 bytes for each weight, and a little more."""
    import torch

    width = config["width"]
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, device="cuda") for _ in range(3)))
    x = torch.ones(256, width, device="cuda")
    return model, torch.optim.Adam(model.parameters()), lambda: (model(x) - x).square().mean()


def train(config: dict[str, Any], report: Callable[..., object]) -> None:
    _, optimizer, loss_of = build(config)
    for _ in range(STEPS):
        end = time.monotonic() + STEP_SECONDS
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if EMULATED:
            time.sleep(max(0.0, end - time.monotonic()))
    report(loss=value)


def tuner_trial(config: dict[str, Any]) -> None:
    import tuner

    train(config, tuner.report)


def start_ray() -> None:
    """A Ray with a CPU core for each trial, whatever the machine has: trials that wait need none."""
    import ray

    ray.init("local", num_gpus=1, num_cpus=len(WIDTHS), include_dashboard=False, object_store_memory=2**27)


def with_tuner(folder: str, **options: Any) -> int:
    """The number of trials that finished."""
    import tuner
    from tuner.machine import devices

    start_ray()
    if EMULATED:  # trials that wait need no core
        devices.available_cores = lambda: len(WIDTHS)

    space = {"width": {"choice": list(WIDTHS)}}
    result = tuner.run(
        tuner_trial,
        space=space,
        metric="loss",
        direction="minimize",
        estimate=build,
        device="cuda",
        output=folder,
        report=False,
        **options,
    )
    return sum(trial.status == "completed" for trial in result.trials)


def one_by_one(folder: str) -> int:
    return with_tuner(folder, max_workers=1)


def guessed(folder: str) -> int:
    """Ray Tune, whose trials each ask for a fraction of the GPU. Returns the number that finished."""
    from ray import tune

    start_ray()

    def trial(config: dict[str, Any]) -> None:
        train(config, lambda **metrics: tune.report(metrics))

    tuned = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1, "gpu": GUESS}),
        param_space={"width": tune.grid_search(list(WIDTHS))},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    return sum(result.error is None for result in tuned.fit())


STUDIES = {"one by one": one_by_one, f"guessed: gpu={GUESS} for each trial, Ray Tune": guessed, "tuner": with_tuner}


@dataclass(frozen=True)
class Timeline:
    """The GPU's used memory (GB) at times (s) since the start, and how many trials finished of how many."""

    name: str
    seconds: list[float]
    used: list[float]
    finished: int


def record(name: str) -> Timeline:
    """Runs a study in a process of its own and watches the GPU meanwhile."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    seconds, used = [], []
    with tempfile.TemporaryDirectory() as folder:
        finished = Path(folder, "finished")
        start = time.monotonic()
        study = subprocess.Popen([sys.executable, "-m", "scripts.gpu.draw_timeline", str(finished), "--study", name])
        while study.poll() is None:
            now = round(pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30, 2)
            if not used or now != used[-1]:
                seconds.append(round(time.monotonic() - start, 1))
                used.append(now)
            time.sleep(0.1)
        seconds.append(round(time.monotonic() - start, 1))
        used.append(used[-1])
        if study.returncode:
            raise SystemExit(f"error: the study {name!r} failed: its output is above")
        return Timeline(name, seconds, used, int(finished.read_text()))


def draw(timelines: list[Timeline], card: str, total: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "tuner", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(timelines), 1, figsize=(8, 4.6), sharex=True, layout="constrained")
    for axis, line in zip(axes, timelines, strict=True):
        lost = len(WIDTHS) - line.finished
        result = f"{line.finished} of {len(WIDTHS)} trials finished in {line.seconds[-1]:.0f} s"
        result += f", {lost} out of memory" if lost else ""
        color = "#c0392b" if lost else "#2a78b5"
        axis.fill_between(line.seconds, line.used, step="post", color=color, alpha=0.75, linewidth=0)
        axis.axhline(total, color="black", linewidth=0.8, linestyle="--")
        axis.set_title(f"{line.name}: {result}", loc="left", fontsize=9)
        axis.set(ylim=(0, total * 1.08), ylabel="GB in use")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"seconds. {card}, {total:.0f} GB (dashed line)")
    axes[-1].set_xlim(0, max(line.seconds[-1] for line in timelines))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("--study", choices=STUDIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.study:
        options.picture.write_text(str(STUDIES[options.study](str(options.picture.with_name("study")))))
        return
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    card = f"{'emulated ' if EMULATED else ''}{pynvml.nvmlDeviceGetName(handle)}"
    total = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
    draw([record(name) for name in STUDIES], card, total, options.picture)


if __name__ == "__main__":
    main()
