"""What a journal means to the process that goes on with its study: pauses, completions, and what was taken over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.attempts import attempt
from tuner.decisions.capacity import TrialLimits
from tuner.decisions.events import Planned
from tuner.decisions.policies import Engine, replay
from tuner.decisions.retry import Retrying, RetryPolicy
from tuner.decisions.state import State
from tuner.records.attempts import Attempt
from tuner.study.resume import events_of
from tuner.trial import GB, MemoryEstimate, Request, Trial

WHOLE_GB = 8


def row(status: str, attempts: int, trial_id: str = "t1", **others: Any) -> Attempt:
    return attempt(trial_id=trial_id, status=status, attempts=attempts, **{"limit_gb": 2.0, **others})


def paced(trial: Trial) -> Trial:
    """Pauses after every second epoch."""
    return replace(trial, until=trial.begun + 2)


def replayed(*rows: Attempt) -> State:
    """The state after a journal with these rows of two trials."""
    trials = {name: paced(Trial(name, "toy", name, {"lr": 0.5}, seed=0)) for name in ("t1", "t2")}
    engine = Engine(State(TrialLimits(WHOLE_GB * GB)), [retrying := Retrying(RetryPolicy(), lambda *_: None)])
    engine.take(Planned(tuple(Request(one, MemoryEstimate("given"), 2 * GB) for one in trials.values()), {}))
    replay(engine, retrying, events_of(rows, (), trials, paced))
    return engine.state


@pytest.mark.parametrize("between", ["interrupted", "out_of_memory", "stalled"])
def test_a_pause_does_not_overwrite_the_completion_that_follows(between: str) -> None:
    parent = {"parent_checkpoint": "t1@1"}
    state = replayed(row("paused", 1, epochs=2), row(between, 2, **parent), row("completed", 3, epochs=4, **parent))
    assert state.ended["t1"].result.status == "completed"


@pytest.mark.parametrize("later", ["paused", "failed", "interrupted", "completed"])
def test_nothing_changes_what_is_completed(later: str) -> None:
    state = replayed(row("completed", 1, epochs=4), row(later, 2))
    assert (state.ended["t1"].result.status, state.ended["t1"].epochs) == ("completed", 4)
    assert list(state.waiting) == ["t2"]


def test_a_member_that_failed_after_another_attempt_does_not_run_again() -> None:
    parent = {"parent_checkpoint": "t1@1"}
    state = replayed(row("paused", 1, epochs=2), row("interrupted", 2, **parent), row("failed", 3, **parent))
    assert state.ended["t1"].result.status == "failed"


def test_an_interrupted_member_keeps_what_it_had_taken_over() -> None:
    taken = {"parent_checkpoint": "t2@1", "config/lr": 0.75}
    rows = row("paused", 1, "t2", epochs=2), row("paused", 1, epochs=2)
    request = replayed(*rows, row("interrupted", 2, **taken)).delayed["t1"].request
    assert request.trial == Trial("t1", "toy", "t1", {"lr": 0.75}, 0, 3, parent="t2@1", begun=2, until=4)


def test_a_member_that_ran_out_of_memory_after_a_pause_gets_more() -> None:
    rows = row("paused", 1, epochs=2), row("out_of_memory", 2, parent_checkpoint="t1@1")
    request = replayed(*rows).delayed["t1"].request
    assert (request.need_bytes, request.trial.parent, request.history.out_of_memory) == (3 * GB, "t1@1", 1)


def test_a_member_that_was_interrupted_in_its_first_interval_still_pauses() -> None:
    assert replayed(row("interrupted", 1)).delayed["t1"].request.trial.until == 2
