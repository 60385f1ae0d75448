"""The ask/tell loop: asks where the waiting trials can run, starts them, tells what comes of them, tries again."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from tuner.errors import ExecutionError
from tuner.machine.devices import DeviceChoice
from tuner.machine.interrupts import Interrupt, TimeLimitReached
from tuner.placement.packing import Packer, Plan
from tuner.placement.retry import Retry
from tuner.trial import Device, DeviceLost, EpochReport, Outcome, Placement, Request
from tuner.workloads.task import Tasks

Weights = Callable[[], bytes]
Correction = Callable[[Request], Request]
TryAgain = Callable[[Request, Outcome, int], Retry | None]
Learn = Callable[[Outcome], Correction | None]
Suggest = Callable[[int], Request | None]
Prune = Callable[[EpochReport], bool]

POLL_SECONDS = 0.5
STOP_SECONDS = 10.0  # for the checkpoints of trials that run as their study ends; another signal does not wait


class Executor(Protocol):
    """What runs placed trials: Ray's workers, or this process."""

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """The devices that it can run trials on; joins a cluster for that, if it was told to use one.

        Raises:
            InputError: there is none, or no cluster where one was to be.
        """

    def prepare(self, devices: Sequence[Device]) -> None:
        """May begin in the background what takes long to start, before there is a plan."""

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Makes everything ready for trials of these tasks on the plan's devices; checkpoints go into this folder."""

    def submit(self, placement: Placement) -> None:
        """Starts a trial; what it says comes out of ``poll``."""

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        """What has happened since the last call, waiting for at most so long for the first of it.

        Beside an ``Outcome`` that is completed stands a function that fetches its weights, which can be called
        until the next call of ``poll``.
        """

    def stop(self) -> None:
        """Asks the trials that run to write a checkpoint after the epoch that they are in, and to end.

        Their outcomes come out of ``poll``, as ``interrupted``, unless they end otherwise before that. Those that
        have no folder for checkpoints are not asked.
        """

    def prune(self, trial_id: str) -> None:
        """Asks a running trial to end soon; it is ``pruned`` then, with what it had reached, if not ended before."""

    def close(self) -> None:
        """Ends every process that was started, whatever was reached; trials that still run are lost."""


class Listener(Protocol):
    """What wants to know how a study goes."""

    def started(self, placement: Placement) -> None:
        """A trial has been given its place."""

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""

    def finished(self, outcome: Outcome, weights: Weights, retry: Retry | None) -> None:
        """An attempt has ended; ``weights`` fetches the best epoch's, if it is completed. ``retry`` follows it."""

    def device_lost(self, event: DeviceLost) -> None:
        """A device is gone."""

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study ends; this many trials have so long to write checkpoints, or cannot be asked for this reason."""


@dataclass(frozen=True)
class Decisions:
    """What the loop asks as trials run and end.

    Attributes:
        try_again: the attempt that follows one that has ended, given the most that a trial can have; or None.
        learn: what an outcome tells of the trials that wait: how to correct them, or None.
        suggest: where no trial waits: a new one, given the most memory that is free for it on a device; or None, as
            there is no more or it is not the time for one. Where nothing runs either, None ends the study.
        prune: whether a trial that has reported an epoch is not worth any more of them.
        ended: is told how a trial has ended for good.
    """

    try_again: TryAgain
    learn: Learn
    suggest: Suggest = lambda _: None
    prune: Prune = lambda _: False
    ended: Callable[[Outcome], None] = lambda _: None


def run_trials(
    requests: Iterable[Request],
    packer: Packer,
    executor: Executor,
    listener: Listener,
    decisions: Decisions,
    interrupt: Interrupt,
) -> None:
    """Runs every trial, as many side by side as there is room for, until each has ended for good.

    Where there is room and no trial waits for it, ``decisions`` are asked for another.

    Raises:
        ExecutionError: every device is lost.
        KeyboardInterrupt: an end was asked for; everything that had ended by then has been told to the listener, and
            the trials that run have had ``STOP_SECONDS`` to write checkpoints.
        TimeLimitReached: the same, where the time is over.
    """
    packer.enqueue(requests)
    loop = _Loop(packer, executor, listener, decisions, interrupt)
    while True:
        try:
            interrupt.check()
        except (KeyboardInterrupt, TimeLimitReached):
            loop.stop()
            raise
        loop.place()
        if not (packer.waiting or loop.running or loop.delayed):
            return
        loop.hear(interrupt.seconds_left(loop.delayed.seconds_until_next(POLL_SECONDS)))


@dataclass
class _Loop:
    """The study as it runs.

    Attributes:
        running: what was asked for, by trial that has its place.
        training: of these, the trials that have said that they train.
        delayed: retries.
        stopping: the study ends.
    """

    packer: Packer
    executor: Executor
    listener: Listener
    decisions: Decisions
    interrupt: Interrupt
    running: dict[str, Request] = field(default_factory=dict)
    training: set[str] = field(default_factory=set)
    delayed: _Delayed = field(default_factory=lambda: _Delayed())
    stopping: bool = False

    def place(self) -> None:
        """Starts what there is room for; where no trial waits for it, another is asked for."""
        self.packer.enqueue(self.delayed.due(idle=not self.running and not self.packer.waiting))
        self._start()
        while not self.packer.waiting and (suggested := self.decisions.suggest(self.packer.room_bytes)):
            self.packer.enqueue([suggested])
            self._start()

    def hear(self, timeout_seconds: float) -> None:
        """Takes what has happened, waiting for the first of it for at most so long.

        Raises:
            ExecutionError: every device is lost.
        """
        for event, weights in self.executor.poll(timeout_seconds):
            if isinstance(event, EpochReport):
                self.training.add(event.trial_id)
                self.listener.reported(event)
                if self.decisions.prune(event):
                    self.executor.prune(event.trial_id)
            elif isinstance(event, DeviceLost):
                self._lose(event)
            else:
                self.training.discard(event.trial.trial_id)
                if not (self.interrupt.requested and event.status == "failed"):  # Ctrl-C ends the workers too
                    self._end(event, weights)

    def stop(self) -> None:
        """Waits for trials that train to write checkpoints and end, for a while, or until it is asked once more."""
        if not self.training:
            return
        self.stopping = True
        signals, deadline = self.interrupt.signals, time.monotonic() + STOP_SECONDS
        try:
            self.executor.stop()
        except ExecutionError as error:  # the study ends in order all the same
            self.listener.stopping(len(self.training), 0.0, str(error))
            return
        self.listener.stopping(len(self.training), STOP_SECONDS)
        while self.training and self.interrupt.signals == signals and time.monotonic() < deadline:
            self.hear(POLL_SECONDS)

    def _start(self) -> None:
        for request, placement in self.packer.place():
            self.running[placement.trial.trial_id] = request
            self.executor.submit(placement)
            self.listener.started(placement)

    def _end(self, outcome: Outcome, weights: Weights) -> None:
        """Frees the attempt's place, decides what follows, and corrects those that wait by what it took."""
        assert outcome.placement is not None
        request = self.running.pop(outcome.trial.trial_id)
        self.packer.release(outcome.placement)
        retry = self.decisions.try_again(request, outcome, self.packer.largest_bytes)
        self.listener.finished(outcome, weights, retry)
        if retry:
            self.delayed.add(retry)
        elif outcome.status != "interrupted":
            self.decisions.ended(outcome)
        if correct := self.decisions.learn(outcome):
            self.packer.revise(correct)

    def _lose(self, event: DeviceLost) -> None:
        self.packer.remove(event.device)
        self.listener.device_lost(event)
        if not self.packer.largest_bytes and not self.stopping:
            raise ExecutionError(f"every device is lost, the last was {event.device.label}: {event.reason}")


class _Delayed:
    """Retries whose time has not come."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, retry: Retry) -> None:
        """Keeps a retry until its delay is over."""
        heapq.heappush(self._heap, (time.monotonic() + retry.delay_seconds, next(self._order), retry.request))

    def due(self, *, idle: bool) -> list[Request]:
        """The retries whose time has come; where nothing else runs or waits, the next one at once."""
        found: list[Request] = []
        while self._heap and (self._heap[0][0] <= time.monotonic() or (idle and not found)):
            found.append(heapq.heappop(self._heap)[2])
        return found

    def seconds_until_next(self, most: float) -> float:
        """How long the loop may wait for events, in seconds; at most ``most``."""
        return max(0.0, min(most, self._heap[0][0] - time.monotonic())) if self._heap else most
