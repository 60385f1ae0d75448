"""The process that trials run in, one after another: a Ray actor."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tuner.execution.worker import Event, TrialOptions, run_trial, torch_device
from tuner.machine.devices import pin
from tuner.machine.peak import PeakMeter
from tuner.trial import Device, Placement
from tuner.workloads.task import Tasks


class Worker:
    """A warm process that trains one trial after another; it has torch loaded before its first.

    Attributes:
        device: what it computes on.
    """

    def __init__(self, tasks: Tasks, device: Device, threads: int, options: TrialOptions) -> None:
        """Makes the process ready for trials of all tasks, whose data come from Ray's object store without a copy."""
        self._tasks = tasks
        self._options = options
        self.device = device
        self._meter = self.prepare(device, threads)
        gc.freeze()  # a trial's clean-up then looks at what trials leave, not at all of torch: 2 ms, not 100

    def prepare(self, device: Device, threads: int) -> PeakMeter:
        """Pins the process to its device and takes first steps there.

        A benchmark of GPUs that are only declared replaces this, and sets ``device`` to what there is.
        """
        pin(device)  # Ray's own choice of a GPU need not be ours
        from tuner.training.loop import warm_up

        return PeakMeter(device, partial(warm_up, torch_device(device), threads, self._tasks.values()))

    def run(self, placement: Placement) -> Iterator[Event | None]:
        """Streams a trial's events; before them comes None, which says that the worker lived to take it."""
        yield None
        placed = replace(placement, device=self.device)
        yield from run_trial(self._tasks[placed.trial.workload], placed, self._meter, self._options)

    def ping(self) -> None:
        """Tells that the process lives."""
