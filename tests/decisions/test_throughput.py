from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import tuner
from tuner.decisions.throughput import WorkerCount

# GPUMemNet's (arXiv 2602.17817), of trainings on an A100, each alone: GRACT is the part of the time in which the
# GPU's engine was active.
TABLE = Path(tuner.__file__).parents[1].parent / "shared/data/gpu/mlp_measured.csv"
Curve = Callable[[int], float]  # from how many train to what all of them do together; one alone does 1

SATURATES: Curve = lambda n: min(n, 6)  # noqa: E731
LAUNCH_BOUND: Curve = lambda n: float(n)  # noqa: E731
THRASHES: Curve = lambda n: min(n, 4) - 0.3 * max(0, n - 4)  # noqa: E731


def study(
    count: WorkerCount,
    curve: Curve,
    share: float = 0.1,
    *,
    epochs: int = 60,
    trials: int = 60,
    noise: float = 0.0,
    first: float = 1.0,
) -> list[int]:
    """Runs trials whose epochs take 1 to 4 seconds alone, and the first one ``first`` times as long.

    Returns how many could run at each epoch's end.
    """
    random = Random(1)
    waiting = [(f"t{number}", 1.0 + number % 4) for number in range(trials)]
    epochs_of: dict[str, list[float]] = {}  # by trial: epochs, work left of this one, work of each, when it began
    now, seen = 0.0, list[int]()
    while waiting or epochs_of:
        while waiting and len(epochs_of) < count.workers:
            name, work = waiting.pop(0)
            epochs_of[name] = [epochs, first * work, work, now]
            count.trains(name, now)
        speed = curve(len(epochs_of)) / len(epochs_of)
        name = min(epochs_of, key=lambda trial: epochs_of[trial][1])
        spent = epochs_of[name][1]
        now += spent / speed
        for state in epochs_of.values():
            state[1] -= spent
        count.reports(name, now - epochs_of[name][3], share, now)
        epochs_of[name] = [
            epochs_of[name][0] - 1,
            epochs_of[name][2] * random.gauss(1, noise),
            epochs_of[name][2],
            now,
        ]
        if not epochs_of[name][0]:
            del epochs_of[name]
            count.ends(name, now)
        seen.append(count.workers)
    return seen


def test_workers_are_added_until_one_more_gains_nothing() -> None:
    seen = study(WorkerCount(2, 20, cores=16), SATURATES)
    assert set(seen) >= {2, 3, 4, 5, 6}
    assert seen[len(seen) // 2] in (6, 7)
    assert max(seen) == 7


def test_epochs_that_vary_by_a_few_per_cent_lead_to_about_the_same_number() -> None:
    seen = study(WorkerCount(2, 20, cores=16), SATURATES, noise=0.05)
    assert seen[len(seen) // 2] in (5, 6, 7)


def test_a_first_epoch_that_takes_longer_is_no_reason_for_ever_more_workers() -> None:
    assert max(study(WorkerCount(4, 32, cores=64), SATURATES, epochs=20, trials=300, first=1.5)) == 7


def test_what_an_earlier_attempt_of_a_trial_took_is_not_compared() -> None:
    count = WorkerCount(1, 2, cores=4)
    count.trains("a", 0.0)
    comparisons = [count.reports("a", 1.0, 0.5, now) for now in (1.0, 2.0, 3.0)]
    count.trains("b", 3.0)
    count.ends("a", 3.0)
    count.trains("a", 4.0)  # in smaller parts, as it ran out of memory
    comparisons += [count.reports("a", 9.0, 0.5, now) for now in (13.0, 22.0, 31.0)]
    assert not any(comparisons)
    assert count.workers == 1


def test_a_worker_that_is_a_loss_is_taken_away() -> None:
    seen = study(WorkerCount(3, 20, cores=16), THRASHES)
    assert max(seen) == 5
    assert seen.count(4) > len(seen) / 2


def test_fewer_are_tried_where_the_first_number_is_too_large() -> None:
    assert study(WorkerCount(7, 20, cores=16), THRASHES)[-1] in (4, 5)


def test_fewer_are_tried_once_where_no_more_can_be_added() -> None:
    assert study(WorkerCount(8, 8, cores=8), THRASHES)[-1] in (4, 5)
    seen = study(WorkerCount(8, 8, cores=8), LAUNCH_BOUND)
    assert set(seen) == {8, 6} and seen.count(8) > 0.9 * len(seen)


def test_many_workers_are_added_in_larger_steps_up_to_the_most_that_there_may_be() -> None:
    seen = study(WorkerCount(16, 40, cores=16), LAUNCH_BOUND)
    assert list(dict.fromkeys(seen)) == [16, 20, 25, 31, 38, 40]


@pytest.mark.parametrize(("share", "most"), [(1.0, 4), (0.5, 8), (0.3, 13)])
def test_cores_bound_the_workers_by_what_a_trial_keeps_busy(share: float, most: int) -> None:
    assert max(study(WorkerCount(4, 40, cores=4), LAUNCH_BOUND, share)) == most


def test_without_a_measured_share_there_is_no_more_than_the_first_number() -> None:
    count = WorkerCount(2, 8, cores=2)
    for number in range(4):
        count.trains("ab"[number % 2], 0.0)
        count.reports("ab"[number % 2], 1.0, None, 10.0 + number)
    assert count.workers == 2


def test_what_is_learned_is_told() -> None:
    count = WorkerCount(1, 2, cores=4)
    count.trains("a", 0.0)
    comparisons = [count.reports("a", 1.0, 0.5, now) for now in (1.0, 2.0, 3.0)]
    count.trains("b", 3.0)
    comparisons += [count.reports("a", 1.25, 0.5, now) for now in (4.25, 5.5)]
    assert comparisons == ["", "", "", "", "2 trials at once do 60% more than 1"]


def test_the_number_is_looked_at_again_once_all_trials_are_others() -> None:
    count = WorkerCount(2, 2, cores=2)
    assert study(count, SATURATES, trials=4)[-1] == 2
    assert study(count, SATURATES, trials=4)[-1] == 2


def test_trials_that_end_before_they_can_be_compared_are_counted() -> None:
    seen = study(WorkerCount(2, 8, cores=8), SATURATES, epochs=3, trials=300)
    assert seen[-1] in (5, 6, 7)
    assert study(WorkerCount(4, 8, cores=8), lambda n: min(n, 4), epochs=3, trials=300)[-1] in (4, 5)


def short_study(count: WorkerCount, curve: Curve, trials: int, *, start: float, seconds: float) -> float:
    """Runs trials of one epoch in workers that take ``start`` seconds to start; returns when the last one ended."""
    now, warm, waiting = 0.0, 0, [f"t{number}" for number in range(trials)]
    starting, left = dict[str, float](), dict[str, float]()  # when they begin to train; the work of those that do
    while waiting or starting or left:
        while waiting and len(starting) + len(left) < count.workers:
            cold = len(starting) + len(left) >= warm
            warm += cold
            starting[waiting.pop()] = now + start * cold
        count.waiting = len(waiting)
        for name in [name for name, begins in starting.items() if begins <= now]:
            del starting[name]
            left[name] = seconds
            count.trains(name, now, start)
        speed = curve(len(left)) / max(1, len(left))
        passed = min([*(work / speed for work in left.values()), *(begins - now for begins in starting.values())])
        now += passed
        left = {name: work - passed * speed for name, work in left.items()}
        for name in [name for name, work in left.items() if work < 1e-9]:
            del left[name]
            count.reports(name, seconds / speed, 0.1, now)
            count.ends(name, now)
    return now


@pytest.mark.parametrize("trials", [4, 12, 30, 60, 150, 400])
@pytest.mark.parametrize("seconds", [0.5, 3.0, 20.0, 90.0])
def test_no_study_ends_later_for_a_worker_that_is_still_cold(trials: int, seconds: float) -> None:
    for curve in (SATURATES, LAUNCH_BOUND, lambda n: min(n, 2)):
        took, fixed = (
            short_study(WorkerCount(2, most, cores=8), curve, trials, start=23.0, seconds=seconds) for most in (8, 2)
        )
        assert took <= fixed + 0.1 * fixed, curve


def test_trials_shorter_than_a_workers_start_can_raise_the_number() -> None:
    count = WorkerCount(2, 8, cores=8)
    took = short_study(count, SATURATES, 600, start=23.0, seconds=2.0)
    fixed = short_study(WorkerCount(2, 2, 8), SATURATES, 600, start=23.0, seconds=2.0)
    assert count.workers >= 5 and took < 0.7 * fixed


@pytest.mark.skipif(not TABLE.exists(), reason="the table of measured MLPs is not beside the checkout")
def test_trainings_that_take_turns_on_a_gpu_are_as_many_as_fill_it() -> None:
    """Curves from recorded activity: processes without MPS take turns, so that n of them do min(n, 1 / GRACT)."""
    with TABLE.open(newline="") as file:
        active = [float(row["Avg GRACT"]) for row in csv.DictReader(file)][::150]
    for part in active:
        count = WorkerCount(2, 24, cores=16)
        seen = study(count, lambda n, part=part: min(n, 1 / part), trials=40)  # type: ignore[misc]
        typical = sorted(seen)[len(seen) // 2]
        assert min(typical, 1 / part) >= 0.9 * min(24, 1 / part), part
        assert typical <= 1 / part + 2, part
