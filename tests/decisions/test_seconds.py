"""The remaining time of studies whose clock is set by hand."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import pytest

from tuner.decisions.seconds import TimeLeft
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Outcome, Placement, Request, Trial

CPU = Device("", "cpu", 0, "a CPU", GB, GB, cores=2)
EPOCHS, START = 5, 3.0  # of each trial; the seconds before it trains


def request(number: int, seconds: float, expected: float | None = None) -> Request:
    """A trial whose epochs take so long, and whose activations grow with the root of that."""
    trial = Trial(f"t{number}", "toy", f"t{number}", {"epochs": EPOCHS}, 0)
    return Request(
        trial, MemoryEstimate("traced", activation_bytes=int(1e6 * seconds**0.5), epoch_seconds=expected), GB
    )


def told(trials: Sequence[tuple[float, float | None]], workers: int = 2) -> Iterator[tuple[float, float | None]]:
    """The seconds of a study so far, and those that are said to be left, after each event; at last those it took."""
    requests = [request(number, *each) for number, each in enumerate(trials)]
    estimate, now, waiting = TimeLeft(requests, len(requests)), 0.0, list(zip(requests, trials, strict=True))
    events: list[tuple[float, int, int, Placement, float]] = []
    while waiting or events:
        while waiting and len(events) < workers:
            each, (seconds, _) = waiting.pop(0)
            placed = Placement(each.trial, each.estimate, CPU, 0.5, GB, threads=1)
            estimate.started(placed, now)
            heapq.heappush(events, (now + START, len(waiting), 0, placed, seconds))
        now, order, epoch, placed, seconds = heapq.heappop(events)
        estimate.reported(EpochReport(placed.trial.trial_id, epoch, EPOCHS), now)
        if epoch < EPOCHS:
            heapq.heappush(events, (now + seconds, order, epoch + 1, placed, seconds))
        else:
            estimate.finished(Outcome(placed.trial, "completed", placed, epochs=epoch), None, now)
        yield now, estimate.seconds(now)


UNEQUAL = [40.0, 20.0, 10.0, 5.0, 2.0, 2.0, 1.0, 1.0]  # the largest first, as studies begin


@pytest.mark.parametrize("known", [range(8), (), (0,), (7,), (3, 4)], ids=str)
def test_the_time_that_is_left_is_never_far_off_nor_triples(known: Sequence[int]) -> None:
    trials = [(seconds, 0.5 * seconds if number in known else None) for number, seconds in enumerate(UNEQUAL)]
    estimates = list(told(trials))
    took = estimates[-1][0]
    ends = [now + left for now, left in estimates if left is not None]
    assert len(ends) > 0.8 * len(estimates)
    assert max(ends) < 1.6 * took
    assert min(ends) > 0.45 * took, "an expectation may be half of what it takes beside others"


def test_nothing_is_said_before_it_can_be_known() -> None:
    estimates = list(told([(1.0, None)] * 4))
    assert estimates[0] == (START, None), "no epoch has ended"
    assert estimates[2][1] == pytest.approx(2 * (START + EPOCHS) - 4, rel=0.2)


def test_a_trial_that_fails_early_does_not_make_the_others_seem_short() -> None:
    requests = [request(number, 10.0) for number in range(6)]
    placed = [Placement(each.trial, each.estimate, CPU, 0.5, GB, threads=1) for each in requests]
    estimate = TimeLeft(requests, len(requests))
    estimate.started(placed[0], 0.0)
    estimate.reported(EpochReport("t0", 0, EPOCHS), START)
    estimate.finished(Outcome(placed[0].trial, "failed", placed[0]), None, 4.0)
    assert estimate.seconds(4.0) is None
    estimate.started(placed[1], 4.0)
    estimate.reported(EpochReport("t1", 0, EPOCHS), 4.0 + START)
    estimate.reported(EpochReport("t1", 1, EPOCHS), 14.0 + START)
    assert estimate.seconds(14.0 + START) == pytest.approx(4 * (START + EPOCHS * 10.0) + 40.0)


def test_trials_that_a_search_will_suggest_take_the_mean_of_those_that_are_known() -> None:
    first = request(0, 1.0, expected=1.0)
    assert TimeLeft([first], 10).seconds(0.0) == pytest.approx(10 * EPOCHS)


def test_a_program_whose_epochs_are_unknown_takes_what_others_took() -> None:
    trials = [Trial(f"t{number}", "train", f"t{number}", {}, 0) for number in range(3)]
    placed = [Placement(each, MemoryEstimate("learned"), CPU, 0.5, GB, threads=1) for each in trials]
    estimate = TimeLeft([Request(each, MemoryEstimate("learned"), GB) for each in trials], 3)
    estimate.started(placed[0], 0.0)
    assert estimate.seconds(1.0) is None
    estimate.finished(Outcome(trials[0], "completed", placed[0]), None, 12.0)
    estimate.started(placed[1], 12.0)
    assert estimate.seconds(14.0) == pytest.approx(22.0)


def test_a_study_of_many_trials_is_looked_over_in_parts() -> None:
    estimate = TimeLeft([request(number, 1.0, expected=1.0) for number in range(50_000)], 50_000)
    assert estimate.seconds(0.0) == pytest.approx(50_000 * EPOCHS, rel=0.01)
