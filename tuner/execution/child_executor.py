"""Runs trials one after another in a process beside the study, without Ray."""

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.decisions.plan import Plan
from tuner.execution.child import Child, ChildDied, outcome_of_death
from tuner.execution.executor import START_SECONDS, Executor, ExecutorEvent
from tuner.execution.mapped_arrays import pack
from tuner.execution.nodes import oom_kills
from tuner.execution.worker import WORKER, WorkerEvent, weights_of
from tuner.machine.logs import shorten
from tuner.trial import Began, EpochReport, Outcome, Placement, Question
from tuner.workloads.task import Tasks


class ChildExecutor(Executor):
    """Runs placed trials in one warm process at a time. A trial that hangs or crashes harms no other."""

    def __init__(self, **options: Any) -> None:
        """See ``Executor``."""
        super().__init__(**options)
        self._queue: deque[Placement] = deque()
        self._child: Child | None = None
        self._running: Placement | None = None
        self._started = 0.0  # the start of the running trial, by the monotonic clock
        self._began = False  # whether its user's code has begun
        self._report: EpochReport | None = None
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
        if self._running is None:
            if not self._queue:
                time.sleep(timeout_seconds)
                return []
            self._start(self._queue.popleft())
        assert self._child is not None and self._running is not None
        for name in (self._running.trial.trial_id, WORKER):
            shorten(self._options.log(name))
        try:
            event = self._child.receive(timeout_seconds)
        except ChildDied as died:
            return self._lost(died)
        if isinstance(event, EpochReport):
            self._report = event
            return [(event, bytes)]
        self._began = self._began or isinstance(event, Began)
        if isinstance(event, (Began, Question)):
            return [(event, bytes)]
        if isinstance(event, Outcome):
            return self._ended(event)
        if not self._began and time.monotonic() - self._started > START_SECONDS:
            self._child.kill()
            self._child = None
            return self._lost(ChildDied(f"the trial's process did not start within {START_SECONDS} s"))
        return []

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a trial's question."""
        if self._child is not None:
            self._child.answer(trial_id, answer)

    def end(self, trial_id: str, error: str) -> None:
        """Ends the process that runs the trial."""
        if self._running is None or self._running.trial.trial_id != trial_id:
            return
        assert self._child is not None
        self._child.kill()
        self._child = None
        stalled = outcome_of_death(ChildDied(error), self._running, self._report, self._started, self._kills)
        self._running = None
        self._ended_early = [(replace(stalled, status="stalled"), bytes)]

    def close(self) -> None:
        """Ends the process."""
        self._queue.clear()
        self._drop()
        super().close()

    def _start(self, placement: Placement) -> None:
        """Starts a trial, a retry in a new process."""
        if placement.trial.attempt > 1 and not self._options.fresh:
            self._drop()
        self._reused = self._child is not None and not self._options.fresh
        if self._child is None:
            packed, log = pack(self._tasks), self._options.log(WORKER)
            self._child = Child(packed, placement.device, self._threads, self._options, self._allocator, log)
        self._running, self._began, self._report, self._kills = placement, False, None, oom_kills()
        self._started = time.monotonic()
        self._child.run(placement)

    def _ended(self, outcome: Outcome) -> list[ExecutorEvent]:
        assert self._child is not None
        self._running = None
        self._stop_requests.forget_prune(outcome.trial.trial_id)
        weights: WorkerEvent | None = None
        if outcome.status == "completed":
            try:
                weights = self._child.receive()
            except ChildDied:
                self._drop()
        if not (outcome.reusable or self._options.fresh):
            self._drop()
        return [(outcome, lambda: weights_of(weights))]

    def _lost(self, died: ChildDied) -> list[ExecutorEvent]:
        """The outcome of a trial whose process has ended."""
        assert self._running is not None
        log = self._options.log(self._running.trial.trial_id)
        where = f": its output is in {log.name}" if log and log.exists() and log.stat().st_size else ""
        outcome = outcome_of_death(died, self._running, self._report, self._started, self._kills, where)
        hung = self._child is None
        if hung or (self._reused and self._report is None and outcome.status == "failed"):
            outcome = replace(outcome, lost="worker")  # an earlier trial may have broken the process
        self._running = None
        if not self._options.fresh:
            self._drop()
        return [(outcome, bytes)]

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
