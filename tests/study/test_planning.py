from __future__ import annotations

import dataclasses

import pytest

from tuner.estimation.calibration import Sample
from tuner.study.planning import Estimates
from tuner.trial import MemoryEstimate, Request, Trial


def estimates(trial_id: str) -> Estimates:
    guess = MemoryEstimate("traced", activation_bytes=1)
    request = Request(Trial(trial_id, "toy", trial_id, {}, 0), guess, 1)
    return Estimates((request,), {trial_id: guess}, {"toy": (Sample(1, 2, 3),)})


def test_estimates_of_further_trials_leave_those_before_as_they_were() -> None:
    first, more = estimates("t1"), estimates("t2")
    both = first.with_more(more)
    assert [request.trial.trial_id for request in both.requests] == list(both.raw) == ["t1", "t2"]
    assert both.known == first.known
    assert first == estimates("t1")


def test_estimates_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimates("t1").requests = ()  # type: ignore[misc]
