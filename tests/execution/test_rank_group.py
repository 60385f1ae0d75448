"""What becomes of a trial when its ranks end."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tuner.decisions.rank_groups import rank_group_of
from tuner.errors import ExecutionError
from tuner.execution.rank_group import FAILED_SECONDS, RankGroup, meeting_at
from tuner.machine.processes import free_port
from tuner.trial import GB, RANKS, Device, MemoryEstimate, Outcome, Placement, Trial


@pytest.fixture
def group() -> RankGroup:
    trial = Trial("t1", "toy", "t1", {RANKS: 2}, seed=0)
    device = Device("", "cpu", 0, "CPU", 8 * GB, 8 * GB, cores=4)
    place = Placement(trial, MemoryEstimate("given"), device, 0.5, GB, 1)
    return RankGroup(meeting_at(rank_group_of([place, place]), "127.0.0.1", 29500))


def end(group: RankGroup, rank: int, status: Any, error: str = "", **known: Any) -> None:
    place = group.placement.all[rank]
    group.ended(Outcome(place.trial, status, place, error=error, **known), lambda: b"weights")


def test_rank_0_says_how_a_trial_was_completed(group: RankGroup) -> None:
    end(group, 0, "completed", metrics={"loss": 0.5}, peak_bytes=1)
    assert not (group.has_ended or group.is_late)
    end(group, 1, "completed", peak_bytes=5)
    outcome, weights = group.outcome()
    assert (outcome.status, outcome.metrics, outcome.peak_bytes) == ("completed", {"loss": 0.5}, 5)
    assert outcome.rank_peaks == (1, 5)
    assert weights() == b"weights"
    assert outcome.placement == group.placement


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (("failed", "gloo: connection closed"), ("out_of_memory", "needed more"), "rank 1: needed more"),
        (("failed", "NCCL error"), ("failed", "ValueError"), "rank 1: ValueError"),
        (("failed", "KeyError"), ("failed", "gloo: connection closed"), "rank 0: KeyError"),
        (("completed", ""), ("failed", "late"), ""),
    ],
)
def test_the_rank_that_fell_explains_the_end_of_the_others(
    group: RankGroup, first: tuple[str, str], second: tuple[str, str], named: str
) -> None:
    end(group, 0, *first)
    end(group, 1, *second)
    assert group.outcome()[0].error == named


def test_other_ranks_are_ended_soon_after_one_has_failed(group: RankGroup) -> None:
    group.clock = iter([0.0, FAILED_SECONDS / 2, FAILED_SECONDS]).__next__
    end(group, 1, "failed", "killed", lost="worker")
    assert [group.is_late, group.is_late] == [False, True]
    place = group.placement
    group.ended(Outcome(place.trial, "stalled", place, error="another"), bytes, by_itself=False)
    outcome = group.outcome()[0]
    assert (outcome.status, outcome.lost, outcome.error) == ("failed", "worker", "rank 1: killed")


def test_weights_that_cannot_be_fetched_are_said_when_they_are_asked_for(group: RankGroup) -> None:
    def lost() -> bytes:
        raise ExecutionError("the weights are lost")

    first, second = group.placement.all
    group.ended(Outcome(first.trial, "completed", first), lost)
    group.ended(Outcome(first.trial, "completed", second), bytes)
    with pytest.raises(ExecutionError, match="the weights are lost"):
        group.outcome()[1]()


def test_ranks_share_a_free_port(group: RankGroup) -> None:
    assert {(place.address, place.port) for place in group.placement.all} == {("127.0.0.1", 29500)}
    port = free_port("127.0.0.1")
    socket.create_server(("127.0.0.1", port)).close()


def test_a_rank_that_returned_early_is_not_the_trials_outcome_but_explains_rank_0s(group: RankGroup) -> None:
    end(group, 1, "completed")
    end(group, 0, "failed", "gloo: connection reset")
    outcome, _ = group.outcome()
    assert (outcome.status, outcome.error) == ("failed", "rank 0: gloo: connection reset; rank 1 had already ended")
