"""A study's state, and how each event changes it.

Values are frozen. Maps share what does not change, so an event costs the same in a study of ten trials or of 100,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rpds import HashTrieMap

from tuner.decisions import events
from tuner.decisions.capacity import UNBOUNDED
from tuner.decisions.events import Bounds, Ended, Event
from tuner.decisions.packing import Plan
from tuner.trial import ALONE, Device, DeviceLost, Placement, Request, Shape

NOTHING: HashTrieMap[str, Any] = HashTrieMap()


@dataclass(frozen=True, order=True, slots=True)
class Delayed:
    """A retry that waits for its time."""

    due: float
    number: int  # of two that are due together, the earlier one goes first
    request: Request = field(compare=False)
    always: bool = field(compare=False)  # whether it waits as long if nothing else runs


@dataclass(frozen=True, slots=True)
class Running:
    """A running attempt."""

    request: Request
    placement: Placement
    epoch: int | None = None  # the last one that it reported; None before its first report
    prune_asked: bool = False


@dataclass(frozen=True)
class State:
    """A study at a moment. A trial is in one of ``waiting``, ``delayed``, ``running``, ``undecided``, ``ended``."""

    # The largest possible memory share of a trial, and of RAM beside a GPU's memory, before there is a plan.
    whole_bytes: int = 0
    whole_ram_bytes: int = UNBOUNDED
    requests: HashTrieMap[str, Request] = NOTHING  # every trial by its id, as it was asked for last
    waiting: HashTrieMap[str, Request] = NOTHING
    delayed: HashTrieMap[str, Delayed] = NOTHING
    running: HashTrieMap[str, Running] = NOTHING
    undecided: HashTrieMap[str, Ended] = NOTHING  # attempts of which nobody has decided what follows
    reported: HashTrieMap[str, int] = NOTHING  # the furthest epoch of which each trial has reported metrics
    ended: HashTrieMap[str, Ended] = NOTHING  # the last attempt of each trial that has ended for good
    plan: Plan | None = None  # how the devices are divided; None before trials may start
    bounds: Bounds | None = None  # what others leave of them; None while nothing may start
    lost: frozenset[Device] = frozenset()
    stopping: bool = False
    number: int = 0  # of events so far

    @property
    def largest_bytes(self) -> int:
        """The largest possible memory share of a trial: the largest budget of a remaining device; 0 without any."""
        return self.largest_for(ALONE)

    def largest_for(self, shape: Shape) -> int:
        """The same for each rank of a trial."""
        return self.whole_bytes if self.plan is None else self.plan.largest_without(self.lost, shape)

    @property
    def largest_ram_bytes(self) -> int:
        """The largest possible share of a host's RAM beside a GPU's memory."""
        return self.whole_ram_bytes if self.plan is None else self.plan.largest_ram_budget

    @property
    def left(self) -> list[Request]:
        """The trials that wait, in the order of their ids, with those whose retries are delayed."""
        left = [*self.waiting.values(), *(retry.request for retry in self.delayed.values())]
        return sorted(left, key=lambda request: request.trial.trial_id)

    @property
    def first_delayed(self) -> Delayed | None:
        """The retry that is due first."""
        return min(self.delayed.values(), default=None)

    @property
    def is_over(self) -> bool:
        """Whether no trial is left to run."""
        return not (self.waiting or self.delayed or self.running or self.undecided)


def apply(state: State, event: Event) -> State:
    """The state after an event. It is the only way in which a state changes, live or read from the journal."""
    return _CHANGES[type(event)](state, event)


def _with(state: State, **changes: Any) -> State:
    return replace(state, number=state.number + 1, **changes)


def _planned(state: State, event: events.Planned) -> State:
    requests, waiting = state.requests, state.waiting
    for request in event.requests:
        requests = requests.insert(request.trial.trial_id, request)
        waiting = waiting.insert(request.trial.trial_id, request)
    return _with(state, requests=requests, waiting=waiting)


def _opened(state: State, event: events.Opened) -> State:
    waiting = HashTrieMap({request.trial.trial_id: request for request in event.requests})
    return _with(state, plan=event.plan, waiting=waiting, requests=state.requests.update(waiting), delayed=NOTHING)


def _started(state: State, event: events.Started) -> State:
    trial_id = event.request.trial.trial_id
    return _with(
        state,
        waiting=state.waiting.discard(trial_id),
        running=state.running.insert(trial_id, Running(event.request, event.placement)),
        requests=state.requests.insert(trial_id, event.request),
    )


def _reported(state: State, event: events.Reported) -> State:
    trial_id, epoch = event.report.trial_id, event.report.epoch
    done = epoch if event.report.metrics else 0
    reported = state.reported.insert(trial_id, max(done, state.reported.get(trial_id, 0)))
    run = state.running.get(trial_id)
    if run is None:  # of an earlier process
        return _with(state, reported=reported)
    run = replace(run, epoch=epoch, prune_asked=False)  # it has not heard it, if it was asked
    return _with(state, reported=reported, running=state.running.insert(trial_id, run))


def _ended(state: State, event: Ended) -> State:
    trial_id = event.trial.trial_id
    undecided = state.undecided.insert(trial_id, event)
    if trial_id in state.running:
        return _with(state, running=state.running.remove(trial_id), undecided=undecided)
    return _with(  # the journal does not say when an attempt started
        state,
        waiting=state.waiting.discard(trial_id),
        delayed=state.delayed.discard(trial_id),
        ended=state.ended.discard(trial_id),
        undecided=undecided,
    )


def _retried(state: State, event: events.Retried) -> State:
    trial_id = event.ended.trial.trial_id
    delayed = Delayed(event.due, state.number, event.request, event.always)
    return _with(
        state,
        undecided=state.undecided.discard(trial_id),
        delayed=state.delayed.insert(trial_id, delayed),
        requests=state.requests.insert(trial_id, event.request),
    )


def _woken(state: State, event: events.Woken) -> State:
    trial_id = event.request.trial.trial_id
    return _with(
        state,
        delayed=state.delayed.discard(trial_id),
        waiting=state.waiting.insert(trial_id, event.request),
    )


def _concluded(state: State, event: events.Concluded) -> State:
    trial_id, kept = event.ended.trial.trial_id, replace(event.ended, outcome=None)  # which may hold a long traceback
    return _with(state, undecided=state.undecided.discard(trial_id), ended=state.ended.insert(trial_id, kept))


def _dropped(state: State, event: events.Dropped) -> State:
    trial_id, outcome = event.outcome.trial.trial_id, event.outcome
    ended = Ended(outcome.trial, outcome.result, outcome.metrics)
    return _with(state, waiting=state.waiting.discard(trial_id), ended=state.ended.insert(trial_id, ended))


def _corrected(state: State, event: events.Corrected) -> State:
    return _with(state, waiting=state.waiting.update(event.requests), requests=state.requests.update(event.requests))


def _prune_asked(state: State, event: events.PruneAsked) -> State:
    run = state.running[event.trial_id]
    return _with(state, running=state.running.insert(event.trial_id, replace(run, prune_asked=True)))


_CHANGES: dict[type, Callable[[State, Any], State]] = {
    events.Planned: _planned,
    events.Opened: _opened,
    events.Joined: lambda state, event: _with(state, plan=state.plan and state.plan.with_more(event.plan)),
    events.RoomSeen: lambda state, event: _with(state, bounds=event.bounds),
    events.Started: _started,
    events.Reported: _reported,
    events.Ended: _ended,
    events.Retried: _retried,
    events.Woken: _woken,
    events.Concluded: _concluded,
    events.Dropped: _dropped,
    events.Corrected: _corrected,
    events.Allowed: lambda state, _: _with(state),
    events.PruneAsked: _prune_asked,
    DeviceLost: lambda state, event: _with(state, lost=state.lost | {event.device}),
    events.Stopping: lambda state, _: _with(state, stopping=True),
}
