"""The ask/tell loop: asks where the waiting trials can run, starts them, tells what comes of them, tries again."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

from tuner.devices import DeviceChoice
from tuner.errors import ExecutionError
from tuner.interrupts import Interrupt
from tuner.placement import Packer, Plan
from tuner.retry import Retry
from tuner.trial import Device, DeviceLost, EpochReport, Outcome, Placement, Request
from tuner.workloads.base import Jobs

Weights = Callable[[], bytes]
Correction = Callable[[Request], Request]
TryAgain = Callable[[Request, Outcome, int], Retry | None]
Learn = Callable[[Outcome], Correction | None]
Suggest = Callable[[int], Request | None]
Prune = Callable[[EpochReport], bool]

POLL_SECONDS = 0.5


class Executor(Protocol):
    """What runs placed trials: Ray's workers, or this process."""

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """The devices that it can run trials on; joins a cluster for that, if it was told to use one.

        Raises:
            InputError: there is none, or no cluster where one was to be.
        """

    def prepare(self, devices: Sequence[Device]) -> None:
        """May begin in the background what takes long to start, before there is a plan."""

    def open(self, jobs: Jobs, plan: Plan, checkpoints: Path | None) -> None:
        """Makes everything ready for trials of these jobs on the plan's devices; checkpoints go into this folder."""

    def submit(self, placement: Placement) -> None:
        """Starts a trial; what it says comes out of ``poll``."""

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        """What has happened since the last call, waiting for at most so long for the first of it.

        Beside an ``Outcome`` that is completed stands a function that fetches its weights, which can be called
        until the next call of ``poll``.
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
        KeyboardInterrupt: an end was asked for; everything that had ended by then has been told to the listener.
        TimeLimitReached: the same, where the time is over.
    """
    packer.wait(requests)
    running: dict[str, Request] = {}
    delayed = _Delayed()
    while True:
        interrupt.check()
        packer.wait(delayed.due(idle=not running and not packer.waiting))
        _start(running, packer, executor, listener)
        while not packer.waiting and (suggested := decisions.suggest(packer.room_bytes)):
            packer.wait([suggested])
            _start(running, packer, executor, listener)
        if not (packer.waiting or running or delayed):
            return
        for event, weights in executor.poll(interrupt.seconds_left(delayed.seconds_until_next(POLL_SECONDS))):
            if isinstance(event, EpochReport):
                listener.reported(event)
                if decisions.prune(event):
                    executor.prune(event.trial_id)
            elif isinstance(event, DeviceLost):
                _lose(event, packer, listener)
            elif not (interrupt.requested and event.status == "failed"):  # Ctrl-C ends the workers too
                _end(event, weights, running.pop(event.trial.trial_id), packer, delayed, listener, decisions)


def _start(running: dict[str, Request], packer: Packer, executor: Executor, listener: Listener) -> None:
    """Starts the trials for which there is room."""
    for request, placement in packer.place():
        running[placement.trial.trial_id] = request
        executor.submit(placement)
        listener.started(placement)


def _end(
    outcome: Outcome,
    weights: Weights,
    request: Request,
    packer: Packer,
    delayed: _Delayed,
    listener: Listener,
    decisions: Decisions,
) -> None:
    """Frees the attempt's place, decides what follows, and corrects those that wait by what it took."""
    assert outcome.placement is not None
    packer.release(outcome.placement)
    retry = decisions.try_again(request, outcome, packer.largest_bytes)
    listener.finished(outcome, weights, retry)
    if retry:
        delayed.add(retry)
    else:
        decisions.ended(outcome)
    if correct := decisions.learn(outcome):
        packer.revise(correct)


def _lose(event: DeviceLost, packer: Packer, listener: Listener) -> None:
    packer.remove(event.device)
    listener.device_lost(event)
    if not packer.largest_bytes:
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
