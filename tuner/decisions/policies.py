"""What is decided in a study, and by whom: a policy for each question, asked in order after every event.

A policy is where a new rule goes. ``Policy`` is its interface. ``tuner.study.prepare`` lists them, and ``Engine``
asks them in this order. It matters: a suggestion that fits no device is dropped before its estimate is corrected.

    Population      which checkpoint and values a paused member takes over  ``tuner.study.population``
    Retrying        what follows an attempt that has ended, and when        this module and ``retry.py``
    StudyStopping          whether the study ends before all have run              ``stopping.py``
    Searching       what is tried next, if there is a search                ``tuner.study.live_search``
    StudyFeedback   which estimates of waiting trials were wrong            ``tuner.estimation.feedback``
    Pruning         which running trials end early                          ``tuner.study.pruning``
    ConcurrencyTuner        how many trials a GPU runs at once                      ``throughput.py``
    Packing         which trial starts, where, and with how much memory     this module and ``packer.py``
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from tuner.decisions.events import (
    Allowed,
    CapacityObserved,
    Concluded,
    Corrected,
    Decision,
    DeviceLost,
    Dropped,
    Ended,
    Event,
    Joined,
    Opened,
    Planned,
    Reported,
    Retried,
    RetryReady,
    Started,
)
from tuner.decisions.packer import Packer
from tuner.decisions.retry import RetryPolicy, Smaller, next_attempt
from tuner.decisions.state import State, apply
from tuner.trial import Device, History, Outcome, Placement, Request, Trial

LOG = logging.getLogger("tuner.decisions")
GoesOn = Callable[[State, Ended, Trial], Retried]  # the retry of a paused trial as this attempt
UNLOGGED = (CapacityObserved, Reported)  # there are too many of them


class Policy(Protocol):
    """Answers one question about a study.

    ``hear`` gets every event in order, the journal's of a resumed study first, so a policy remembers nothing that a
    resumed study would forget. ``decide`` changes nothing: what is decided comes back by ``hear`` as an event. Only a
    search gives each suggestion once, so its answer is always taken.
    """

    def hear(self, state: State, event: Event) -> None:
        """An event has happened; ``state`` is the study's after it."""

    def decide(self, state: State, now: float) -> Decision | None:
        """The policy's next decision in this state, at this time of the study's clock; None if there is none now."""


class Engine:
    """A study in time: its state, and the policies that decide what comes next."""

    def __init__(self, state: State, policies: Iterable[Policy]) -> None:
        self.state = state
        self.policies = list(policies)

    def take(self, event: Event, *, logged: bool = True) -> None:
        """An event has happened."""
        self.state = apply(self.state, event)
        if logged and not isinstance(event, UNLOGGED):
            LOG.debug("%s", event)
        for policy in self.policies:
            policy.hear(self.state, event)

    def decide(self, now: float) -> Decision | None:
        """The next decision; None if the study waits for an event."""
        for policy in self.policies:
            if decision := policy.decide(self.state, now):
                return decision
        return None


class Retrying:
    """Decides by ``retry.py`` what follows an attempt, and when the delay of a retry is over."""

    def __init__(self, policy: RetryPolicy, smaller: Smaller, seed: int = 0) -> None:
        """The delays' random parts follow from the seed, the trial and its attempt: a resumed study has the same."""
        self._policy = policy
        self._smaller = smaller
        self._seed = seed

    def hear(self, state: State, event: Event) -> None:
        """The state has all that it needs."""

    def decide(self, state: State, now: float) -> Decision | None:
        """What follows an attempt that has just ended, else the next retry whose time has come.

        If nothing else runs or waits, a retry need not wait.
        """
        for ended in state.undecided.values():
            if ended.result.status != "paused":
                return self.after(state, ended, now)
        first = None if state.stopping else state.first_delayed
        if first is None:
            return None
        idle = not (state.running or state.waiting)
        return RetryReady(first.request) if first.due <= now or (idle and not first.always) else None

    def after(self, state: State, ended: Ended, now: float) -> Retried | Concluded:
        """The retry that follows an attempt, or the end of its trial."""
        retry = next_attempt(
            replace(state.requests[ended.trial.trial_id], trial=ended.trial),
            ended.result,
            self._policy,
            whole_bytes=state.largest_for(ended.trial.shape),
            whole_ram_bytes=state.largest_ram_bytes // ended.trial.shape.ranks_per_node,
            smaller=self._smaller,
            random=Random(f"{self._seed}/{ended.trial.trial_id}/{ended.trial.attempt}").random,
        )
        if retry is None:
            return Concluded(ended)
        return Retried(ended, retry.request, now + retry.delay_seconds, retry.delay_seconds, retry.always)

    def after_earlier(self, state: State, ended: Ended, *, was_last: bool) -> Retried | Concluded:
        """The same for an attempt of an earlier process, after which no retry need wait.

        Options may have changed since: what was tried again, is, and so is what was given up with less memory than it
        would be given now. A trial that never ran may fit by now.
        """
        request, result = state.requests[ended.trial.trial_id], ended.result
        if result.status == "too_large":
            return Retried(ended, request, 0.0)
        decision = self.after(state, ended, 0.0)
        if isinstance(decision, Retried):
            return replace(decision, due=0.0, delay_seconds=0.0)
        needs_more = request.need_bytes > result.limit_bytes
        if result.short_of == "RAM":
            needs_more = request.host_bytes > result.host_bytes
        if result.status == "completed" or (was_last and not (result.status == "out_of_memory" and needs_more)):
            return decision
        times = 1 if was_last else request.history.out_of_memory + (result.status == "out_of_memory")
        again = replace(ended.trial, attempt=ended.trial.attempt + 1)
        return Retried(
            ended, replace(request, trial=again, history=replace(request.history, out_of_memory=times)), 0.0
        )


class Packing:
    """Decides which trial starts next, where, and with how much memory, by the accounts of a ``Packer``."""

    def __init__(self) -> None:
        """Has no devices before the study is ``Opened``."""
        self._packer: Packer | None = None

    @property
    def room_bytes(self) -> int:
        """The free bytes of the emptiest device with a free slot, without bounds; 0 if there is none."""
        return self._packer.room_bytes if self._packer else 0

    def held_back(self) -> tuple[Request, Device] | None:
        """The trial that would start next if this study were alone on its devices."""
        return self._packer.held_back() if self._packer else None

    def placement(self, request: Request, device: Device) -> Placement:
        """A request's place on a device, with the share that it asks for."""
        assert self._packer is not None
        return self._packer.placement(request, device)

    def hear(self, state: State, event: Event) -> None:
        """Keeps the accounts."""
        if isinstance(event, Opened):
            self._packer = Packer(event.plan)
            self._packer.enqueue(event.requests)
        packer = self._packer
        if packer is None:
            return
        if isinstance(event, CapacityObserved) and event.bounds:
            packer.limit(event.bounds.rooms, event.bounds.most, event.bounds.ram_bytes)
        elif isinstance(event, Planned):
            packer.enqueue(event.requests)
        elif isinstance(event, RetryReady):
            packer.enqueue([event.request])
        elif isinstance(event, Corrected):
            packer.enqueue(event.requests.values())
        elif isinstance(event, Dropped):
            packer.drop(event.request.trial.trial_id)
        elif isinstance(event, Started):
            packer.start(event.placement)
        elif isinstance(event, Ended) and event.outcome and event.outcome.placement:
            packer.release(event.outcome.placement)
        elif isinstance(event, Allowed):
            packer.allow(event.device, event.workers)
        elif isinstance(event, Joined):
            packer.extend(event.plan)
        elif isinstance(event, DeviceLost):
            packer.remove(event.device)

    def decide(self, state: State, now: float) -> Decision | None:
        """The next start, while it is known what others leave of the devices."""
        if self._packer is None or state.bounds is None or state.stopping:
            return None
        self._packer.now = now
        if request := self._packer.without_place():
            error = "its ranks have no place together on the devices"
            return Dropped(request, Outcome(request.trial, "failed", error=error))
        found = self._packer.next()
        return Started(*found) if found else None


def goes_on(state: State, ended: Ended, trial: Trial, now: float = 0.0) -> Retried:
    """The next attempt of a paused trial, with the same needs."""
    return Retried(ended, replace(state.requests[trial.trial_id], trial=trial, history=History()), now)


def replay(engine: Engine, retrying: Retrying, events: Sequence[Event], onwards: GoesOn = goes_on) -> None:
    """Takes the events of an earlier process's journal. What is completed stays so, whatever else that has."""
    last = {event.trial.trial_id: event for event in events if isinstance(event, Ended)}
    for event in events:
        if isinstance(event, Ended):
            state, trial_id = engine.state, event.trial.trial_id
            if trial_id in state.ended:
                continue
            if paused := state.undecided.get(trial_id):
                engine.take(onwards(state, paused, event.trial), logged=False)
        engine.take(event, logged=False)  # that process has logged it
        if isinstance(event, Ended) and event.result.status != "paused":
            decision = retrying.after_earlier(engine.state, event, was_last=last[trial_id] is event)
            engine.take(decision, logged=isinstance(decision, Retried))
