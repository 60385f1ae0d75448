"""The loop of a study: it places trials, reports their outcomes and retries them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tuner.errors import ExecutionError, with_text
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.execution.stall_detector import StallDetector
from tuner.machine.devices import DeviceChoice
from tuner.machine.interrupts import Interrupt, TimeLimitReached
from tuner.placement.packing import Packer, Plan
from tuner.placement.retry import Retry
from tuner.placement.throughput import WorkerCount
from tuner.trial import Began, Device, DeviceLost, EpochReport, Outcome, Placement, Question, Request
from tuner.workloads.task import Tasks

Weights = Callable[[], bytes]
Event = Began | EpochReport | Question | Outcome | DeviceLost
ExecutorEvent = tuple[Event, Weights]
Correction = Callable[[Request], Request]
TryAgain = Callable[[Request, Outcome, int], Retry | None]
Learn = Callable[[Outcome], Correction | None]
LearnReport = Callable[[Request, EpochReport], Correction | None]
Suggest = Callable[[int], Request | None]
Prune = Callable[[EpochReport], bool]
Answer = Callable[[Question], object]

POLL_SECONDS = 0.5
START_SECONDS = 300  # for a trial's process until the trial begins: importing torch from a slow drive takes a while
STOP_SECONDS = 10.0  # for checkpoints at the end of the study; a second signal ends the wait


class Executor(Protocol):
    """Runs placed trials: in Ray's workers, or in this process."""

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """The devices on which it can run trials; joins the cluster if there is one.

        Raises:
            InputError: there is no such device or cluster, or a node does not report its devices.
        """

    def prepare(self, devices: Sequence[Device]) -> None:
        """May start slow work in the background, before there is a plan."""

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Prepares the plan's devices for trials of these tasks, with a folder for their checkpoints.

        Raises:
            DataError: a file from which data are mapped has been removed.
            ExecutionError: Ray did not start or lacks the plan's resources, or the folder cannot be written.
        """

    def submit(self, placement: Placement) -> None:
        """Starts a trial; ``poll`` returns its events."""

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        """The events since the last call; waits for the first one for at most this time.

        With the ``Outcome`` of a completed trial comes a function that fetches its weights. It can be called until
        the next call of ``poll``.
        """

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a running trial's ``Question``; an exception is raised in the trial."""

    def stop(self) -> None:
        """Asks the running trials to write a checkpoint after the current epoch, and to end.

        ``poll`` returns their outcomes as ``interrupted``, unless they end earlier. Without a folder for checkpoints
        nothing is asked.
        """

    def prune(self, trial_id: str) -> None:
        """Asks a running trial to end soon; unless it ends before, it is ``pruned`` with its metrics so far."""

    def end(self, trial_id: str, error: str) -> None:
        """Kills a running trial with its descendants; ``poll`` returns its outcome as ``stalled`` with this error.

        A trial that has ended meanwhile is left alone.
        """

    def close(self) -> None:
        """Ends every process that was started; trials that still run are lost."""


class Listener(Protocol):
    """Is notified of the events of a study."""

    def started(self, placement: Placement) -> None:
        """A trial has been placed and started."""

    def reported(self, report: EpochReport) -> None:
        """A trial has started training or finished an epoch."""

    def finished(self, outcome: Outcome, weights: Weights, retry: Retry | None) -> None:
        """An attempt has ended, and ``retry`` follows; ``weights`` fetches the best epoch's if it is completed."""

    def device_lost(self, event: DeviceLost) -> None:
        """A device is gone."""

    def noted(self, text: str) -> None:
        """A notice for the user: a trial waits for memory, or has long reported nothing."""

    def tick(self) -> None:
        """Time has passed: at most ``POLL_SECONDS``, or as long as an executor takes for its next event."""

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study ends. Running trials have this time to write checkpoints, or cannot because of ``fault``."""


@dataclass(frozen=True)
class Decisions:
    """The decisions that the loop delegates."""

    try_again: TryAgain  # the retry of an attempt, given the largest memory that a trial can have, or None
    learn: Learn  # how an outcome corrects the estimates of waiting trials, or None
    # A new trial when none waits, given the largest free memory of a device, or None. If no trial runs, None ends the
    # study.
    suggest: Suggest = lambda _: None
    prune: Prune = lambda _: False  # whether a trial that has reported an epoch should end early
    # How the report of a running trial corrects the estimates of waiting trials, or None.
    learn_report: LearnReport = lambda *_: None
    answer: Answer = lambda _: None  # the answer to a trial's question; what it raises is raised in the trial
    ended: Callable[[Outcome], None] = lambda _: None  # is notified when a trial ends without a retry


def run_trials(
    requests: Iterable[Request],
    packer: Packer,
    executor: Executor,
    listener: Listener,
    decisions: Decisions,
    interrupt: Interrupt,
    arbiter: DeviceArbiter | None = None,
    stalls: StallDetector | None = None,
    counts: Mapping[Device, WorkerCount] = MappingProxyType({}),
) -> None:
    """Runs all trials, as many at a time as fit, until each has ended without a retry.

    If there is room and no trial waits, ``decisions.suggest`` is asked for another one. ``arbiter`` says what others
    leave of the devices; by default nobody else uses them. ``stalls`` says which trials have reported nothing for
    too long; by default none is ended for that. ``counts`` say how many trials a device runs at once, within the
    plan's slots.

    Raises:
        ExecutionError: all devices are lost.
        KeyboardInterrupt: the user ended the study. Running trials have had ``STOP_SECONDS`` to write checkpoints.
        TimeLimitReached: the same at the time limit.
    """
    packer.enqueue(requests)
    arbiter, stalls = arbiter or DeviceArbiter(), stalls or StallDetector()
    loop = _Loop(packer, executor, listener, decisions, interrupt, arbiter, stalls, counts)
    while True:
        try:
            interrupt.check()
        except (KeyboardInterrupt, TimeLimitReached):
            loop.stop()
            raise
        loop.place()
        if not (packer.waiting or loop.running or loop.delayed):
            return
        loop.handle_events(interrupt.seconds_left(loop.delayed.seconds_until_next(POLL_SECONDS)))
        listener.tick()


@dataclass
class _Loop:
    """The state of a running study."""

    packer: Packer
    executor: Executor
    listener: Listener
    decisions: Decisions
    interrupt: Interrupt
    arbiter: DeviceArbiter
    stalls: StallDetector
    counts: Mapping[Device, WorkerCount]
    running: dict[str, Request] = field(default_factory=dict)  # the requests of placed trials, by trial id
    placements: dict[str, Placement] = field(default_factory=dict)  # of the same trials
    training: set[str] = field(default_factory=set)  # the ids of trials that have reported
    delayed: _Delayed = field(default_factory=lambda: _Delayed())
    stopping: bool = False
    changed: bool = False  # whether a trial has ended since its promise was noted
    look_again: float = 0.0  # when to ask the arbiter again; monotonic seconds

    def place(self) -> None:
        """Starts the trials that fit; if none waits, asks for new ones."""
        self.packer.enqueue(self.delayed.due(idle=not self.running and not self.packer.waiting))
        self._start()
        while not self.packer.waiting and (suggested := self.decisions.suggest(self.packer.room_bytes)):
            self.packer.enqueue([suggested])
            self._start()

    def handle_events(self, timeout_seconds: float) -> None:
        """Handles all events; waits for the first one for at most this time.

        Raises:
            ExecutionError: all devices are lost.
        """
        for event, weights in self.executor.poll(timeout_seconds):
            if isinstance(event, Began):
                self.stalls.begins(self.running[event.trial_id].trial)
            elif isinstance(event, EpochReport):
                self.stalls.hears(event.trial_id, event.epoch)
                self.listener.reported(event)
                self._count(event)
                self.training.add(event.trial_id)
                if self.decisions.prune(event):
                    self.executor.prune(event.trial_id)
                if correct := self.decisions.learn_report(self.running[event.trial_id], event):
                    self.packer.revise(correct)
            elif isinstance(event, Question):
                self.executor.answer(event.trial_id, self._answer(event))
                self.stalls.hears(event.trial_id)
            elif isinstance(event, DeviceLost):
                self._lose(event)
            elif isinstance(event, Outcome):
                self.stalls.ends(event.trial.trial_id)
                self.training.discard(event.trial.trial_id)
                if event.placement and (count := self.counts.get(event.placement.device)):
                    count.ends(event.trial.trial_id, time.monotonic())
                if not (self.interrupt.requested and event.status == "failed"):  # Ctrl-C ends the workers too
                    self._end(event, weights)
        self._look_for_stalls()

    def stop(self) -> None:
        """Asks training trials to end, and waits for their checkpoints until the deadline or another signal."""
        if not self.training:
            return
        self.stopping = True
        signals, deadline = self.interrupt.signals, time.monotonic() + STOP_SECONDS
        try:
            self.executor.stop()
        except ExecutionError as error:  # the study still ends properly
            self.listener.stopping(len(self.training), 0.0, error.text)
            return
        self.listener.stopping(len(self.training), STOP_SECONDS)
        while self.training and self.interrupt.signals == signals and time.monotonic() < deadline:
            self.handle_events(POLL_SECONDS)

    def _start(self) -> None:
        """Starts the trials that fit beside other programs, and handles one that does not."""
        now = time.monotonic()
        if not self.changed and (now < self.look_again or self.packer.held_back() is None):
            return
        with self.arbiter.placing(self.placements.values()) as bounds:
            self.packer.limit(bounds.rooms, bounds.most, bounds.ram_bytes)
            placed = self.packer.place()
            held = self.packer.held_back()
            if not placed and held and (request := self.arbiter.remains(held)):
                placed = [self.packer.start(request, held[1])]
            self.placements |= {placement.trial.trial_id: placement for _, placement in placed}
            self.arbiter.promise(self.placements.values())
            wait = self.arbiter.wait(held, placed=bool(placed))
        self.changed, self.look_again = False, now + POLL_SECONDS if held else 0.0
        for request, placement in placed:
            self.running[placement.trial.trial_id] = request
            self.executor.submit(placement)
            self.listener.started(placement)
        if wait.text:
            self.listener.noted(wait.text)
        if wait.given_up and held:
            outcome = Outcome(held[0].trial, "failed", error=wait.given_up)
            self.packer.drop(outcome.trial.trial_id)
            self.listener.finished(outcome, bytes, None)
            self.decisions.ended(outcome)

    def _end(self, outcome: Outcome, weights: Weights) -> None:
        """Frees the attempt's memory, decides on a retry, and corrects waiting trials by its peak."""
        outcome = self._unless_starved(outcome)
        assert outcome.placement is not None
        request = self.running.pop(outcome.trial.trial_id)
        del self.placements[outcome.trial.trial_id]
        self.changed = True
        self.packer.release(outcome.placement)
        retry = self.decisions.try_again(request, outcome, self.packer.largest_bytes)
        self.listener.finished(outcome, weights, retry)
        if retry:
            self.delayed.add(retry)
        elif outcome.status != "interrupted":
            self.decisions.ended(outcome)
        if correct := self.decisions.learn(outcome):
            self.packer.revise(correct)

    def _count(self, report: EpochReport) -> None:
        """Adjusts the number of trials that the device runs at once to a report."""
        device, now = self.placements[report.trial_id].device, time.monotonic()
        if (count := self.counts.get(device)) is None:
            return
        if report.trial_id not in self.training:
            count.trains(report.trial_id, now)
            return
        before = count.workers
        if said := count.reports(report.trial_id, report.seconds, report.core_share, now):
            self.listener.noted(f"{device.label}: {said}")
        if count.workers != before:
            self.packer.allow(device, count.workers)
            self.changed = True

    def _look_for_stalls(self) -> None:
        stalled, notices = self.stalls.look()
        if self.stopping:  # no trial is tried again
            return
        for trial_id, error in stalled.items():
            self.stalls.ends(trial_id)
            self.executor.end(trial_id, error)
        for notice in notices:
            self.listener.noted(notice)

    def _unless_starved(self, outcome: Outcome) -> Outcome:
        """The outcome, naming who held the memory if the trial ran out of it within its share.

        A worker reports that itself. If it was killed or could not begin, others must hold what the plan counted on.
        """
        assert outcome.placement is not None
        unclear = outcome.lost == "worker" or (outcome.phase == "start" and not outcome.lost)
        if outcome.status != "out_of_memory" or not (outcome.lost == "memory" or unclear):
            return outcome
        who = self.arbiter.short(outcome.placement.device, outcome.short_of)
        if not who and unclear:
            return outcome
        said = "; ".join(filter(None, [outcome.error, who, "the attempt does not count"]))
        return replace(outcome, lost="memory", error=said)

    def _answer(self, question: Question) -> object:
        try:
            return self.decisions.answer(question)
        except Exception as error:
            return with_text(error)

    def _lose(self, event: DeviceLost) -> None:
        self.packer.remove(event.device)
        self.listener.device_lost(event)
        if not self.packer.largest_bytes and not self.stopping:
            raise ExecutionError(f"every device is lost, the last was {event.device.label}: {event.reason}")


class _Delayed:
    """Retries that wait for their delay."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Retry]] = []
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, retry: Retry) -> None:
        """Keeps a retry until its delay is over."""
        heapq.heappush(self._heap, (time.monotonic() + retry.delay_seconds, next(self._order), retry))

    def due(self, *, idle: bool) -> list[Request]:
        """The retries whose delay is over; if nothing else runs or waits, the next one at once."""
        ready: list[Request] = []
        while self._heap:
            at, _, retry = self._heap[0]
            if at > time.monotonic() and (retry.always or not idle or ready):
                break
            ready.append(heapq.heappop(self._heap)[2].request)
        return ready

    def seconds_until_next(self, most: float) -> float:
        """The seconds until the next retry, at most ``most``."""
        return max(0.0, min(most, self._heap[0][0] - time.monotonic())) if self._heap else most
