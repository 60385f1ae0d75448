"""How long a long study's folder takes to read: a random search of a function with footprints that are given.

The folder is written with tuner's own writers, as if its trials had run: one to three epochs each, of which some fail
or are tried again. Then each command runs in a process of its own: how long it takes, and its memory. The last two
resume the study, first with trials left, and then without. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import tuner
from tuner.execution.in_process import InProcessExecutor
from tuner.records.epochs import EpochLog
from tuner.records.files import EPOCHS
from tuner.reporting.console import make_console
from tuner.reporting.page.document import REPORT
from tuner.spec.settings import Settings
from tuner.spec.specify import specify
from tuner.study.prepare import load, prepare
from tuner.study.study_json import open_folder, to_record
from tuner.trial import GB, MB, EpochReport, Outcome, Placement, Request

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-5, 0.1]},
    "dropout": {"uniform": [0.0, 0.5]},
    "width": {"choice": [32, 64, 128, 256]},
    "depth": {"int": [1, 8]},
    "optimizer": {"choice": ["adam", "sgd"]},
}
BEGAN: list[float] = []  # when trials began in this process
# Seconds at 100,000 trials: for a resumed study until its first trial begins, for the others in all.
BARS = {"results": 5.0, "frame": 10.0, "report": 20.0, "export": 120.0, "resume": 30.0, "resume-none": 30.0}
MOST_MEMORY, MOST_PAGE = 2 * GB, 10 * MB


def train(config: dict[str, Any]) -> None:
    BEGAN.append(time.time())
    tuner.report(val_loss=math.log10(config["lr"]) ** 2, val_accuracy=0.5, test_loss=1.0)


def write(folder: Path, trials: int, left: int) -> None:
    """Writes a study of which all trials but the last ``left`` have ended."""
    of_study: dict[str, Any] = {"workload": train, "space": SPACE, "num_samples": trials, "search": "random"}
    measured: dict[str, Any] = {"metric": "val_loss", "direction": "minimize", "memory_gb": 0.1, "in_process": True}
    loaded = load(specify(Settings(**of_study, **measured, output=str(folder)), from_python=True))
    study, _ = prepare(loaded, InProcessExecutor().devices("cpu"))
    draw, own = random.Random(0), open_folder(study, make_console())
    own.describe(to_record(study))
    reports = EpochLog(folder / EPOCHS)
    for request in study.requests[: trials - left]:
        place = Placement(request.trial, request.estimate, study.devices[0], 0.1, request.need_bytes, 1)
        fate = draw.random()
        statuses = ["failed"] * 3 if fate < 0.01 else ["failed", "completed"] if fate < 0.05 else ["completed"]
        for attempt, status in enumerate(statuses, 1):
            own.record(*_attempt(request, place, attempt, status, draw, reports))
    reports.close()
    own.close()


def _attempt(
    request: Request, place: Placement, attempt: int, status: Any, draw: random.Random, reports: EpochLog
) -> tuple[Any, ...]:
    """What is recorded of an attempt, whose reports are written."""
    config, epochs, metrics = request.trial.config, draw.randint(1, 3), dict[str, float]()
    for epoch in range(epochs + 1):
        reports.add(EpochReport(request.trial.trial_id, epoch, epochs, metrics, 300 * MB, None), attempt)
        loss = math.log10(float(config["lr"])) ** 2 + draw.random() / (epoch + 1)
        metrics = {"val_loss": loss, "val_accuracy": draw.random(), "test_loss": loss + 0.1}
    error = "" if status == "completed" else "ValueError: the loss is negative"
    given = {} if error else metrics
    trial = type(request.trial)(**{**vars(request.trial), "attempt": attempt})
    outcome = Outcome(trial, status, place, given, epochs, 0.5, 300 * MB, error, phase="training" if error else "")
    return outcome, request.estimate, bytes, (time.time() - 0.5, time.time())


def part(name: str, folder: Path) -> None:
    """What is read from Python; prints how long it took a resumed study to begin its first trial."""
    if name == "frame":
        tuner.results(folder)
    else:
        tuner.run(train, resume=folder, in_process=True)
        began = BEGAN[0] if BEGAN else time.time()
        print(json.dumps({"first": began - psutil.Process().create_time()}))


def command(name: str, folder: Path) -> list[str]:
    """The command line of a process that does it."""
    if name in ("frame", "resume", "resume-none"):
        return [sys.executable, "-m", "scripts.benchmarks.reading", "--part", name, str(folder)]
    where = ["--optuna", f"sqlite:///{folder}-{time.time()}.db"] if name == "export" else []
    return [sys.executable, "-m", "tuner", name, str(folder), *where]


def measure(name: str, folder: Path) -> bool:
    """Runs a command in a process of its own, and prints what it took."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command(name, folder), stdout=printed)
        _, code, used = os.wait4(process.pid, 0)
        seconds, _ = time.monotonic() - began, printed.seek(0)
        text = printed.read()
    last = text.rstrip().rpartition("\n")[2]
    until = json.loads(last)["first"] if name == "resume" and not code else seconds
    page = (folder / REPORT).stat().st_size if (folder / REPORT).is_file() else 0
    memory, cpu = used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
    print(
        f"{name:<12} {until:7.1f} s (bar {BARS[name]:g}), {seconds:.1f} s in all, {cpu:.1f} s of CPU, "
        f"{memory / MB:.0f} MB of memory, {len(text) / MB:.1f} MB printed, page {page / MB:.1f} MB",
        flush=True,
    )
    return code == 0 and until <= BARS[name] and memory <= MOST_MEMORY and page <= MOST_PAGE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="is written if it does not exist")
    parser.add_argument(
        "commands", nargs="*", default=list(BARS), help=f"which of {', '.join(BARS)}; all without any"
    )
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--left", type=int, default=100)
    parser.add_argument("--part", choices=BARS, help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    if given.part:
        part(given.part, given.folder)
        return 0
    if not given.folder.exists():
        write(given.folder, given.trials, given.left)
    met = [measure(name, given.folder) for name in given.commands]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
