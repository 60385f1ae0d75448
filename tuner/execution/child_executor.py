"""Runs trials one after another in a process beside the study, without Ray."""

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from tuner.decisions.plan import Plan
from tuner.execution.child import Child
from tuner.execution.executor import START_SECONDS, Executor, ExecutorEvent, ExecutorOptions
from tuner.execution.mapped_arrays import pack
from tuner.execution.weights import weights_of
from tuner.execution.worker import WORKER
from tuner.machine.processes import shorten
from tuner.trial import Began, EpochReport, Outcome, Placement, Question
from tuner.workloads.task import Tasks


class ChildExecutor(Executor):
    """Runs placed trials in one warm process at a time. A trial that hangs or crashes harms no other."""

    def __init__(self, **options: Unpack[ExecutorOptions]) -> None:
        """See ``Executor``."""
        super().__init__(**options)
        self._queue: deque[Placement] = deque()
        self._child: Child | None = None
        self._running = ""  # the id of the running trial
        self._ended_early: list[ExecutorEvent] = []  # for the next poll

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Keeps the arguments of the process, which starts with the first trial."""
        super().open(tasks, plan, checkpoints)
        self._tasks, self._threads = tasks, plan.threads

    def submit(self, placement: Placement) -> None:
        """Queues a trial."""
        self._stop_requests.forget_prune(placement.trial.trial_id)
        self._queue.append(placement)

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        """The next event of the running trial; starts the next one if none runs."""
        if self._ended_early:
            events, self._ended_early = self._ended_early, []
            return events
        if not (self._running or self._queue):
            time.sleep(timeout_seconds)
            return []
        child = self._child if self._running and self._child else self._start(self._queue.popleft())
        for name in (self._running, WORKER):
            shorten(self._options.log(name))
        event = child.receive(timeout_seconds)
        if isinstance(event, (Began, EpochReport, Question)):
            return [(event, bytes)]
        if isinstance(event, Outcome):
            return self._ended(event, child)
        if child.seconds_to_begin > START_SECONDS:
            return [(self._kill(child, f"the trial's process did not start within {START_SECONDS} s"), bytes)]
        return []

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a trial's question."""
        if self._child is not None:
            self._child.answer(trial_id, answer)

    def end(self, trial_id: str, error: str) -> None:
        """Ends the process that runs the trial."""
        if self._child and self._running == trial_id:
            self._ended_early = [(replace(self._kill(self._child, error), status="stalled", lost=""), bytes)]

    def close(self) -> None:
        """Ends the process."""
        self._queue.clear()
        self._drop()
        super().close()

    def _start(self, placement: Placement) -> Child:
        if self._child is None:
            packed = pack(self._tasks)
            self._child = Child(packed, placement.device, self._threads, self._options)
        self._running = placement.trial.trial_id
        self._child.run(placement, self._options.log(self._running))
        return self._child

    def _ended(self, outcome: Outcome, child: Child) -> list[ExecutorEvent]:
        self._running = ""
        self._stop_requests.forget_prune(outcome.trial.trial_id)
        weights = child.receive() if outcome.status == "completed" else None
        return [(outcome, lambda: weights_of(weights))]

    def _kill(self, child: Child, error: str) -> Outcome:
        """Kills the process and its trial. An earlier one may have broken it, or the machine."""
        child.close()
        self._child, self._running = None, ""
        return replace(child.lost(error), lost="worker")

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
