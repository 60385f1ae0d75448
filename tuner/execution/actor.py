"""The process in which trials run, one after another: a Ray actor."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tuner.execution.worker import TrialOptions, WorkerEvent, run_trial, torch_device
from tuner.machine.devices import pin
from tuner.machine.logs import output_in
from tuner.machine.peak import PeakMeter
from tuner.machine.process_trees import own_process
from tuner.trial import Began, Device, Placement
from tuner.workloads.program import Program
from tuner.workloads.task import Tasks


class Worker:
    """A warm process that trains one trial after another on ``device``; it loads torch before the first."""

    def __init__(
        self, tasks: Tasks, device: Device, threads: int, options: TrialOptions, *, is_child: bool = False
    ) -> None:
        """Prepares the process for trials of all tasks. Workers share the memory of their data.

        Programs that need their own process get one for each trial, unless this process ``is_child``.
        """
        self._tasks = tasks
        self._options = options
        self._threads = threads
        self.device = device
        self._apart = not is_child and any(task.workload.own_process for task in tasks.values())
        os.environ.update(options.variables)  # for this process and those that it starts
        if not self._apart:
            self._meter = self.prepare(device, threads)
        gc.freeze()  # so that a garbage collection skips torch's objects: 2 ms instead of 100

    def prepare(self, device: Device, threads: int) -> PeakMeter:
        """Pins the process to its device and warms it up there.

        A benchmark with simulated GPUs replaces this method, and sets ``device`` to the real one.
        """
        pin(device)  # Ray may have chosen another GPU
        tasks = list(self._tasks.values())
        if any(isinstance(task.workload, Program) for task in tasks):
            from tuner.training.program import warm_up_program

            return PeakMeter(device, partial(warm_up_program, torch_device(device), threads, tasks))
        from tuner.training.rehearsal import warm_up

        return PeakMeter(device, partial(warm_up, torch_device(device), threads, tasks))

    def run(self, placement: Placement) -> Iterator[WorkerEvent]:
        """Streams a trial's events, first ``Began``. The trial's output goes to its log.

        The study keeps that file short, and removes it at the end if it is empty.
        """
        placed = replace(placement, device=self.device)
        if self._apart:
            from tuner.execution.child import run_apart

            yield from run_apart(self._tasks, placed, self._threads, self._options)
            return
        trial = placed.trial
        with output_in(self._options.log(trial.trial_id)):
            yield Began(trial.trial_id, *own_process())
            yield from run_trial(self._tasks[trial.workload], placed, self._meter, self._options)

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers the question of a running trial. It is called in another thread than the trial's."""
        from tuner.training.program import deliver

        deliver(trial_id, answer)

    def ping(self) -> None:
        """Returns if the process is alive."""
