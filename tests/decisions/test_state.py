"""Which event may follow on which."""

from __future__ import annotations

from typing import get_args

import pytest

from tuner.decisions import events
from tuner.decisions.events import Concluded, Ended, Event, Opened, Planned, Retried, RetryReady, Started
from tuner.decisions.plan import make_plan
from tuner.decisions.state import MOVES, IllegalEvent, State, apply
from tuner.trial import GB, AttemptResult, Device, EpochReport, MemoryEstimate, Placement, Request, Trial

CPU = Device("", "cpu", 0, "", 8 * GB, 8 * GB, 2)
PLAN = make_plan([CPU], [GB], packing="per-trial", buffer_bytes=0)
TRIAL = Trial("t1", "toy", "a", {}, seed=0)
REQUEST = Request(TRIAL, MemoryEstimate("given"), GB)
ENDED = Ended(TRIAL, AttemptResult("completed"), {})
STARTED = Started(REQUEST, Placement(TRIAL, REQUEST.estimate, CPU, 0.5, GB, 1))
RUNS = Planned((REQUEST,), {}), Opened(PLAN, (REQUEST,)), STARTED


def after(*happened: Event) -> State:
    state = State()
    for event in happened:
        state = apply(state, event)
    return state


@pytest.mark.parametrize("event", [ENDED, Concluded(ENDED), Retried(ENDED, REQUEST, 0.0), STARTED, RUNS[0]])
def test_nothing_follows_on_a_trials_end_and_the_text_has_its_story(event: Event) -> None:
    story = r"t1 is ended after Planned, Started, Ended completed, Concluded, so this cannot follow: \w+: "
    with pytest.raises(IllegalEvent, match=story):
        after(*RUNS, ENDED, Concluded(ENDED), event)


@pytest.mark.parametrize("event", [RetryReady(REQUEST), Concluded(ENDED), events.PruneAsked("t1")])
def test_an_event_of_a_trial_elsewhere_is_refused(event: Event) -> None:
    with pytest.raises(IllegalEvent, match="t1 is waiting after Planned"):
        after(*RUNS[:2], event)
    with pytest.raises(IllegalEvent, match="t1 is new after nothing"):
        after(event)


def test_no_trial_is_forgotten_as_the_study_opens() -> None:
    with pytest.raises(IllegalEvent, match="t1 is waiting"):
        after(RUNS[0], Opened(PLAN, ()))


def test_only_a_journal_has_attempts_that_never_started() -> None:
    report = events.Reported(EpochReport("t1", 1, 1), 0.0)
    assert after(RUNS[0], report, ENDED).undecided
    for event in (report, ENDED):
        with pytest.raises(IllegalEvent, match="t1 is waiting"):
            after(*RUNS[:2], event)


def test_each_event_about_trials_is_in_the_table() -> None:
    about_the_study = {"CapacityObserved", "Allowed", "Stopping", "Replanned"}
    about_the_study |= {"Joined", "DeviceLost", "Wanted", "Held", "Released", "Contended"}
    assert {kind.__name__ for kind in get_args(events.Event)} - {kind.__name__ for kind in MOVES} == about_the_study
