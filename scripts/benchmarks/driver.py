"""The driver's CPU time, bytes and memory for a trivial trial: scripts/benchmark driver [PART] [TRIALS ...].

    given    a random search with memory given (bar 3 ms and 2 KB a trial)
    learned  the same with learned footprints (bar 5 ms)
    tpe      a live search, beside Optuna's own loop with sqlite (bar its CPU)

The trials are answered at once, without processes. All else is real: select, plan, loop, policies, journal and table.
Exits with 1 if a bar is missed, or if a trial of the longest study costs over 1.5 times one of 1,000.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import optuna
import psutil

from tuner.execution.executor import Executor, ExecutorEvent
from tuner.machine.devices import DeviceChoice
from tuner.spec.settings import Settings
from tuner.study.select import select
from tuner.study.study import run_study
from tuner.trial import GB, MB, Began, Device, EpochReport, Outcome, Placement

PARTS: Mapping[str, Mapping[str, object]] = {
    "given": {"search": "random", "memory_gb": 0.3},
    "learned": {"search": "random"},
    "tpe": {"search": "tpe", "memory_gb": 0.3},
}
BARS = {"given": 3.0, "learned": 5.0}  # milliseconds
MOST_BYTES, FLAT = 2048, 1.5
KEYS = ("a", "b", "c", "d")


class Nowhere(io.StringIO):
    """Takes what is printed, and keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


class Reading(NamedTuple):
    """What this process has taken so far."""

    seconds: float
    written: int
    resident: int


def read() -> Reading:
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return Reading(time.process_time(), int(counters["wchar"]), psutil.Process().memory_info().rss)


class Answering(Executor):
    """Answers each trial at once, with a peak that varies, and reads what the driver took from first to last."""

    def __init__(self, trials: int) -> None:
        super().__init__()
        self.trials, self.readings = trials, list[Reading]()
        self._happenings = deque[ExecutorEvent]()
        self._draw = random.Random(0)

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        return (Device("", "cpu", 0, "this machine", 64 * GB, 64 * GB, 2),)

    def submit(self, placement: Placement) -> None:
        if not self.readings:
            self.readings.append(read())
        trial, peak = placement.trial, int((300 + 40 * self._draw.random()) * MB)
        metrics = {"loss": loss(trial.config)}
        reports = (EpochReport(trial.trial_id, 0, 0, {}, 280 * MB), EpochReport(trial.trial_id, 1, 0, metrics, peak))
        ended = Outcome(trial, "completed", placement, metrics, 1, 0.01, peak)
        self._happenings += [(one, bytes) for one in (Began(trial.trial_id, os.getpid(), 0.0), *reports, ended)]

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        happening, weights = self._happenings.popleft()
        self.trials -= isinstance(happening, Outcome)
        if not self.trials and not self._happenings:
            self.readings.append(read())
        return [(happening, weights)]


def loss(config: Mapping[str, object]) -> float:
    return sum((float(str(config[key])) - 0.3) ** 2 for key in KEYS)


def train(config: Mapping[str, object]) -> None:
    """Stands for a user's function, which the executor does not call."""


def study(part: str, trials: int) -> tuple[float, Reading]:
    """Runs a study; returns the seconds before its first trial, and what all its trials took."""
    space = {key: {"uniform": [0, 1]} for key in KEYS}
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(Nowhere()):
        options = {
            "workload": train,
            "space": space,
            "num_samples": trials,
            "metric": "loss",
            "direction": "minimize",
        }
        settings = Settings(**options, **PARTS[part], output=f"{folder}/study", report=False)
        executor, began = Answering(trials), read()
        tempfile.tempdir = folder  # where studies look for the promises of others
        run_study(select(settings, from_python=True), executor)
        tempfile.tempdir = None
    first, last = executor.readings
    return first.seconds - began.seconds, Reading(*(now - before for now, before in zip(last, first, strict=True)))


def of_optuna(trials: int) -> float:
    """The CPU milliseconds of a trial in Optuna's own loop with sqlite."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        sampler = optuna.samplers.TPESampler(seed=0)
        alone = optuna.create_study(storage=f"sqlite:///{folder}/optuna.db", sampler=sampler)
        began = time.process_time()
        alone.optimize(lambda trial: loss({key: trial.suggest_float(key, 0, 1) for key in KEYS}), n_trials=trials)
        return (time.process_time() - began) / trials * 1e3


def measure(part: str, trials: int) -> tuple[float, bool]:
    """Prints a line; returns the milliseconds of a trial, and whether it meets the bars."""
    planning, took = study(part, trials)
    each, written, grown = took.seconds / trials * 1e3, took.written / trials, took.resident / MB
    bar = BARS[part] if part in BARS else of_optuna(trials)
    text = f"{part:<8} {trials:>7,} {each:6.2f} ms (bar {bar:.2f}) {written:6.0f} B a trial {grown:6.0f} MB more"
    print(f"{text} {planning:6.1f} s before the first", flush=True)
    return each, each <= bar and written <= MOST_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("trials", nargs="*", type=int, default=[1000, 10_000])
    chosen = parser.parse_args()
    found = {trials: measure(chosen.part, trials) for trials in chosen.trials}
    first, last = (found[trials][0] for trials in (min(chosen.trials, key=lambda n: abs(n - 1000)), max(found)))
    flat = chosen.part == "tpe" or last <= FLAT * first  # Optuna's sampler goes through all trials
    return 0 if flat and all(met for _, met in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
