"""A process with a worker's environment, for what must not happen in the tests' own process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tuner.execution.worker import TrialOptions, WorkerEvent, run_trial
from tuner.machine.caps import environment, worker_environment
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter
from tuner.training.rehearsal import warm_up
from tuner.trial import MemoryEstimate, Outcome, Placement, Trial
from tuner.workloads.base import Workload
from tuner.workloads.task import TrainingTask


@contextmanager
def worker() -> Iterator[Callable[..., Any]]:
    """Starts a process with a CPU worker's environment; the result calls a module's function there."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        with environment(worker_environment(ram_device())):
            pool.submit(int).result()  # starts it
        yield lambda function, *args: pool.submit(function, *args).result()


def measure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has steps measured in a thread of this process, for tests of what is done with the outcome."""

    def thread(workers: int, mp_context: object) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(workers)

    monkeypatch.setattr("tuner.estimation.measure.ProcessPoolExecutor", thread)


def place(workload: Workload, config: dict[str, Any], limit_bytes: int = 0) -> Placement:
    """A trial of this configuration on this machine's RAM."""
    trial = Trial("t001", workload.name, "a trial", config, seed=0)
    return Placement(trial, MemoryEstimate("given"), ram_device(), 1.0, limit_bytes, threads=1)


def run_capped(workload: Workload, configs: list[dict[str, Any]], cap_bytes: int, data: Any = None) -> list[Outcome]:
    """Trials one after another in this process, each with so much beyond the context; what comes of each."""
    task = TrainingTask(workload, data)
    meter = PeakMeter(ram_device(), partial(warm_up, "cpu", 1, [task]))
    outcomes = []
    for config in configs:
        placement = place(workload, config, meter.context_bytes + cap_bytes)
        events: list[WorkerEvent] = list(run_trial(task, placement, meter, TrialOptions()))
        outcomes += [event for event in events if isinstance(event, Outcome)]
    return outcomes
