"""A study's state, and how each event changes it.

Values are frozen. Maps share what does not change, so an event costs the same in a study of ten trials or of 100,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any, Literal, get_args

from rpds import HashTrieMap

from tuner.decisions import events
from tuner.decisions.capacity import TrialLimits
from tuner.decisions.events import Bounds, Ended, Event
from tuner.decisions.plan import Plan
from tuner.trial import Device, Placement, Request

NOTHING: HashTrieMap[str, Any] = HashTrieMap()
STORY = 12
Place = Literal["new", "waiting", "delayed", "running", "undecided", "ended"]  # where a trial is


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
    """A study at a moment. A trial is in one ``Place``."""

    detected: TrialLimits = field(
        default_factory=TrialLimits
    )  # the most that a trial may have, before there is a plan
    requests: HashTrieMap[str, Request] = NOTHING  # every trial by its id, as it was asked for last
    waiting: HashTrieMap[str, Request] = NOTHING
    delayed: HashTrieMap[str, Delayed] = NOTHING
    running: HashTrieMap[str, Running] = NOTHING
    undecided: HashTrieMap[str, Ended] = NOTHING  # ended attempts, until it is decided what follows
    reported: HashTrieMap[str, int] = NOTHING  # the last epoch with metrics of each trial
    ended: HashTrieMap[str, Ended] = NOTHING  # the last attempt of each trial that has ended for good
    stories: HashTrieMap[str, str] = NOTHING  # the last ``STORY`` events that moved each trial
    plan: Plan | None = None  # how the devices are divided; None before trials may start
    bounds: Bounds | None = None  # their free capacity; None while nothing may start
    joined: tuple[Device, ...] = ()  # those that are in no plan yet
    lost: frozenset[Device] = frozenset()
    released: frozenset[Device] = frozenset()  # those of a cluster that are neither held nor wanted
    wanted: frozenset[Device] = frozenset()
    stopping: bool = False
    number: int = 0  # of events so far

    @property
    def limits(self) -> TrialLimits:
        """The most that a trial may have on the devices that remain."""
        return self.detected if self.plan is None else self.plan.limits(self.lost)

    @property
    def paused(self) -> list[Ended]:
        """The members of a population that have paused, until it is decided how they continue."""
        return [ended for ended in self.undecided.values() if ended.result.status == "paused"]

    @property
    def left(self) -> list[Request]:
        """The trials that wait, are delayed or have paused, in the order of their ids."""
        requests = [*self.waiting.values(), *(retry.request for retry in self.delayed.values())]
        requests += [self.requests[ended.trial.trial_id] for ended in self.paused]
        return sorted(requests, key=lambda request: request.trial.trial_id)

    @property
    def first_delayed(self) -> Delayed | None:
        """The retry that is due first."""
        return min(self.delayed.values(), default=None)

    @property
    def is_over(self) -> bool:
        """Whether no trial is left to run."""
        return not (self.waiting or self.delayed or self.running or self.undecided)


# From where an event takes a trial, and to where. Reports and corrections leave it where it is.
MOVES: Mapping[type, tuple[tuple[Place, ...], Place]] = {
    events.Planned: (("new",), "waiting"),
    events.Opened: (("waiting", "delayed", "new"), "waiting"),
    events.Corrected: (("waiting",), "waiting"),
    events.Started: (("waiting",), "running"),
    events.Reported: (("running",), "running"),
    events.PruneAsked: (("running",), "running"),
    events.Ended: (("running",), "undecided"),
    events.Retried: (("undecided",), "delayed"),
    events.RetryReady: (("delayed",), "waiting"),
    events.Concluded: (("undecided",), "ended"),
    events.Dropped: (("waiting", "delayed", "undecided"), "ended"),
}
# Before a study is opened its journal is read, which does not say when an attempt started.
UNSTARTED: tuple[Place, ...] = ("waiting", "delayed")


class IllegalEvent(AssertionError):
    """An event that cannot follow on those before it: a fault of ours."""


def apply(state: State, event: Event) -> State:
    """The state after an event. It is the only way in which a state changes, live or read from the journal.

    Raises:
        IllegalEvent: the event moves a trial from where it is not; the text has the trial's story.
    """
    return _CHANGES[type(event)](state, event)


def _with(state: State, **changes: Any) -> State:
    return replace(state, number=state.number + 1, **changes)


def _moved(
    state: State, event: Event, kept: Mapping[str, Any], requests: Sequence[Request] = (), **changes: Any
) -> State:
    """Moves trials by ``MOVES``. ``kept`` has the new value of each by id, and ``requests`` are theirs."""
    sources, target = MOVES[kind := type(event)]
    if kind is Ended and state.plan is None:
        sources = UNSTARTED
    places: dict[str, Any] = {place: getattr(state, place) for place in (*sources, target) if place != "new"}
    word = f"Ended {event.result.status}" if isinstance(event, Ended) else kind.__name__
    stories = state.stories
    for trial_id, value in kept.items():
        for place in sources:
            if trial_id not in state.requests if place == "new" else trial_id in places[place]:
                break
        else:
            raise IllegalEvent(_story(state, trial_id, event))
        if place != target:
            told = [*stories.get(trial_id, "").split(", "), word][-STORY:]
            stories = stories.insert(trial_id, intern(", ".join(told)))
            if place != "new":
                places[place] = places[place].remove(trial_id)
        places[target] = places[target].insert(trial_id, value)
    if requests:
        changes["requests"] = state.requests.update({request.trial.trial_id: request for request in requests})
    return _with(state, stories=stories, **places, **changes)


def _story(state: State, trial_id: str, event: Event) -> str:
    place = next((place for place in get_args(Place)[1:] if trial_id in getattr(state, place)), "new")
    story = state.stories.get(trial_id, "nothing").removeprefix(", ")
    return f"{trial_id} is {place} after {story}, so this cannot follow: {type(event).__name__}: {event}"


def _asked(state: State, event: Event, requests: Sequence[Request], **changes: Any) -> State:
    """Moves trials to those that wait, as they are asked for now."""
    return _moved(state, event, {one.trial.trial_id: one for one in requests}, requests, **changes)


def _opened(state: State, event: events.Opened) -> State:
    opened = _asked(state, event, event.requests, plan=event.plan, released=_of_cluster(event.plan.devices))
    if forgotten := {*opened.waiting, *opened.delayed} - {request.trial.trial_id for request in event.requests}:
        raise IllegalEvent(_story(state, min(forgotten), event))
    return opened


def _of_cluster(devices: Sequence[Device]) -> frozenset[Device]:
    """Those that are to be asked for, as others may use them."""
    return frozenset(device for device in devices if device.node_id)


def _replanned(state: State, event: events.Replanned) -> State:
    new = set(event.plan.devices).difference(state.plan.devices if state.plan else ())
    return _with(state, plan=event.plan, joined=(), released=state.released | _of_cluster([*new]))


def _runs_on(state: State, event: Event, trial_id: str, *, prune_asked: bool, **changes: Any) -> State:
    if run := state.running.get(trial_id):
        epoch = event.report.epoch if isinstance(event, events.Reported) else run.epoch
        run = replace(run, epoch=epoch, prune_asked=prune_asked)
    return _moved(state, event, {trial_id: run}, **changes)


def _reported(state: State, event: events.Reported) -> State:
    trial_id, epoch = event.report.trial_id, event.report.epoch
    done = epoch if event.report.metrics else 0
    reported = state.reported.insert(trial_id, max(done, state.reported.get(trial_id, 0)))
    if state.plan is None:  # of an earlier process
        return _with(state, reported=reported)
    return _runs_on(state, event, trial_id, prune_asked=False, reported=reported)  # it has not heard it, if asked


def _ended(state: State, event: Event, ended: Ended) -> State:
    return _moved(state, event, {ended.trial.trial_id: ended})


def _retried(state: State, event: events.Retried) -> State:
    delayed = Delayed(event.due, state.number, event.request, event.always)
    return _moved(state, event, {event.ended.trial.trial_id: delayed}, [event.request])


_CHANGES: dict[type, Callable[[State, Any], State]] = {
    events.Planned: lambda state, event: _asked(state, event, event.requests),
    events.Opened: _opened,
    events.Joined: lambda state, event: _with(state, joined=state.joined + event.devices),
    events.Replanned: _replanned,
    events.Wanted: lambda state, event: _with(
        state, released=state.released - {event.device}, wanted=state.wanted | {event.device}
    ),
    events.Held: lambda state, event: _with(
        state, released=state.released - {event.device}, wanted=state.wanted - {event.device}
    ),
    events.Released: lambda state, event: _with(
        state, released=state.released | {event.device}, wanted=state.wanted - {event.device}
    ),
    events.Contended: lambda state, _: _with(state),
    events.CapacityObserved: lambda state, event: _with(state, bounds=event.bounds),
    events.Started: lambda state, event: _moved(
        state, event, {event.request.trial.trial_id: Running(event.request, event.placement)}, [event.request]
    ),
    events.Reported: _reported,
    events.Ended: lambda state, event: _ended(state, event, event),
    events.Retried: _retried,
    events.RetryReady: lambda state, event: _asked(state, event, [event.request]),
    events.Concluded: lambda state, event: _ended(state, event, replace(event.ended, outcome=None)),  # it may be long
    events.Dropped: lambda state, event: _ended(
        state, event, Ended(event.outcome.trial, event.outcome.result, event.outcome.metrics)
    ),
    events.Corrected: lambda state, event: _asked(state, event, [*event.requests.values()]),
    events.Allowed: lambda state, _: _with(state),
    events.PruneAsked: lambda state, event: _runs_on(state, event, event.trial_id, prune_asked=True),
    events.DeviceLost: lambda state, event: _with(state, lost=state.lost | {event.device}),
    events.Stopping: lambda state, _: _with(state, stopping=True),
}
