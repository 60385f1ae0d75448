"""The process for one trial after another: a Ray actor, or a process without Ray."""

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner.execution.child import Child, run_in
from tuner.execution.mapped_arrays import pack, unpack
from tuner.execution.worker import WORKER, TrialOptions, WorkerEvent, run_trial, torch_device
from tuner.machine.caps import thread_variables
from tuner.machine.devices import pin
from tuner.machine.logs import output_in
from tuner.machine.peak import PeakMeter
from tuner.machine.processes import own_process
from tuner.training.program import deliver, warm_up_program
from tuner.trial import Began, Device, Placement
from tuner.workloads.pickling import received
from tuner.workloads.program import Program
from tuner.workloads.task import Tasks


class Worker:
    """A warm process for one trial after another on ``device``: it trains them, or has a ``Child`` that does."""

    remark = ""  # for the rows of its trials

    def __init__(
        self,
        tasks: Tasks | Path | tuple[Any, ...],
        device: Device,
        threads: int,
        options: TrialOptions,
        *,
        forks: bool = False,
        beside: tuple[str, ...] = (),
    ) -> None:
        """Prepares the process for trials of all tasks, whose data workers share.

        ``forks`` says that this is a ``Child``, and its trials forks of it. So it warms up by a single thread.
        ``beside`` are the GPUs of other ranks, which a process for one trial sees, too, as under ``torchrun``.
        """
        self._options, self._beside = options, beside
        self.device = device
        os.environ.update(thread_variables(threads))
        self._child: Child | None = None
        tasks = received(*tasks) if isinstance(tasks, tuple) else tasks
        if options.fresh and not forks:
            file = tasks.open("rb") if isinstance(tasks, Path) else pack(tasks)
            self._child = Child(file, device, threads, options, {}, options.log(WORKER))
            return
        if isinstance(tasks, Path):
            with tasks.open("rb") as file:
                self._tasks: Tasks = unpack(file.fileno())
        else:
            self._tasks = tasks
        self._meter = self.prepare(device, 1 if forks else threads)
        gc.freeze()  # so that a garbage collection skips torch's objects: 2 ms instead of 100

    def prepare(self, device: Device, threads: int) -> PeakMeter:
        """Pins the process to its device and warms it up there.

        A benchmark with simulated GPUs replaces this method, and sets ``device`` to the real one.
        """
        pin(device, self._beside)  # Ray may have chosen another GPU
        tasks = list(self._tasks.values())
        if any(isinstance(task.workload, Program) for task in tasks):
            return PeakMeter(device, partial(warm_up_program, torch_device(device), threads, tasks))
        from tuner.training.rehearsal import warm_up

        return PeakMeter(device, partial(warm_up, torch_device(device), threads, tasks))

    def run(self, placement: Placement) -> Iterator[WorkerEvent]:
        """Streams a trial's events, first ``Began``. The trial's output goes to its log.

        The study keeps that file short, and removes it at the end if it is empty.
        """
        placed, log = replace(placement, device=self.device), self._options.log(placement.log)
        if self._child is not None:
            yield from run_in(self._child, placed, log)
            return
        trial = placed.trial
        with output_in(log):
            yield Began(trial.trial_id, *own_process())
            yield from run_trial(self._tasks[trial.workload], placed, self._meter, self._options, self.remark)

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers the question of a running trial. It is called in another thread than the trial's."""
        (self._child.answer if self._child else deliver)(trial_id, answer)

    def ping(self) -> None:
        """Returns if the process is alive."""
