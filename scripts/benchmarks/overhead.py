"""What a study costs beside its trials: scripts/benchmark overhead [PART ...] [--trials N ...].

    given    the driver's CPU time, bytes and memory for a trivial trial of a random search with memory given (bar
             3 ms and 2 KB)
    learned  the same with learned footprints (bar 5 ms)
    tpe      the same for a live search, beside Optuna's own loop with sqlite (bar its CPU)

Each study has ``--trials`` trials. These are answered at once, without processes; all else is real:
select, plan, loop, policies, journal and table. A trial of the longest study may cost 1.5 times one of 1,000. Exits
with 1 if a bar is missed.
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
from typing import Any, NamedTuple

import optuna
import psutil

from tuner.execution.executor import Executor, ExecutorEvent
from tuner.machine.devices import DeviceChoice
from tuner.spec.settings import Settings
from tuner.spec.specify import specify
from tuner.study.study import run_study
from tuner.trial import GB, MB, Began, Device, EpochReport, Outcome, Placement

LOSS: Mapping[str, Any] = {"metric": "loss", "direction": "minimize"}
DRIVER: Mapping[str, Mapping[str, object]] = {
    "given": {"search": "random", "memory_gb": 0.3},
    "learned": {"search": "random"},
    "tpe": {"search": "tpe", "memory_gb": 0.3},
}
BARS = {"given": 3.0, "learned": 5.0}  # milliseconds
MOST_BYTES, FLAT = 2048, 1.5
KEYS = ("a", "b", "c", "d")


def say(name: str, text: str, value: float, bar: float) -> bool:
    """Prints a figure beside its bar; returns whether it is met."""
    print(f"{name:<8} {value:7.3f} (bar {bar:g}): {text}", flush=True)
    return value <= bar


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
        self._events = deque[ExecutorEvent]()
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
        self._events += [(one, bytes) for one in (Began(trial.trial_id, os.getpid(), 0.0), *reports, ended)]

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        event, weights = self._events.popleft()
        self.trials -= isinstance(event, Outcome)
        if not self.trials and not self._events:
            self.readings.append(read())
        return [(event, weights)]


def loss(config: Mapping[str, object]) -> float:
    return sum((float(str(config[key])) - 0.3) ** 2 for key in KEYS)


def train(config: Mapping[str, object]) -> None:
    """Stands for a user's function, which the executor does not call."""


def answered(part: str, trials: int) -> tuple[float, Reading]:
    """Runs a study; returns the seconds before its first trial, and what all its trials took."""
    space = {key: {"uniform": [0, 1]} for key in KEYS}
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(Nowhere()):
        options = {"workload": train, "space": space, "num_samples": trials, **LOSS, **DRIVER[part]}
        settings = Settings(**options, output=f"{folder}/study", report=False)
        executor, began = Answering(trials), read()
        tempfile.tempdir = folder  # where studies look for the promises of others
        run_study(specify(settings, from_python=True), executor)
        tempfile.tempdir = None
    first, last = executor.readings
    return first.seconds - began.seconds, Reading(*(now - before for now, before in zip(last, first, strict=True)))


def of_optuna(trials: int) -> float:
    """The CPU milliseconds of a trial in Optuna's own loop with sqlite."""
    with tempfile.TemporaryDirectory() as folder:
        sampler = optuna.samplers.TPESampler(seed=0)
        alone = optuna.create_study(storage=f"sqlite:///{folder}/optuna.db", sampler=sampler)
        began = time.process_time()
        alone.optimize(lambda trial: loss({key: trial.suggest_float(key, 0, 1) for key in KEYS}), n_trials=trials)
        return (time.process_time() - began) / trials * 1e3


def measure(part: str, trials: int) -> tuple[float, bool]:
    """Prints a line; returns the milliseconds of a trial, and whether it meets the bars."""
    planning, took = answered(part, trials)
    each, written, grown = took.seconds / trials * 1e3, took.written / trials, took.resident / MB
    bar = BARS[part] if part in BARS else of_optuna(trials)
    text = (
        f"ms of CPU; {trials:,} trials, {written:.0f} B each, {grown:.0f} MB more, {planning:.1f} s before the first"
    )
    return each, say(part, text, each, bar) and written <= MOST_BYTES


def driver(part: str, trials: list[int]) -> bool:
    """Whether studies of so many trials meet the bars, and their trials cost the same in all."""
    results = {number: measure(part, number) for number in trials}
    first, last = (results[number][0] for number in (min(trials, key=lambda n: abs(n - 1000)), max(trials)))
    flat = part == "tpe" or last <= FLAT * first  # Optuna's sampler goes through all trials
    return flat and all(met for _, met in results.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Python 3.11's argparse refuses an empty list where there are choices.
    parser.add_argument("parts", nargs="*", metavar="PART", help="which; all without any")
    parser.add_argument("--trials", nargs="+", type=int, default=[1000, 10_000], metavar="N", help="of the driver's")
    options = parser.parse_intermixed_args()
    chosen = options.parts or list(DRIVER)
    if unknown := set(chosen) - set(DRIVER):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(DRIVER)}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    met = [driver(part, options.trials) for part in chosen]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
