from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from tuner.search.schedulers import Asha, Median, make_scheduler, quantile


def test_of_those_that_come_to_a_rung_the_best_go_on() -> None:
    asha = Asha(grace=1, reduction=4)
    assert [asha.stops(name, 1, value) for name, value in zip("abcde", (5, 4, 6, 3, 3.5), strict=True)] == [
        False,  # nobody came before
        False,
        True,
        False,
        False,  # better than the best quarter's end
    ]
    assert not asha.stops("b", 2, 99) and not asha.stops("b", 3, 99), "between rungs nothing is asked"
    assert not asha.stops("d", 4, 2)
    assert asha.stops("b", 4, 3)
    assert not asha.stops("b", 5, 99), "a trial that was let go on is asked at the next rung only"


def test_asha_stops_what_is_no_number() -> None:
    asha = Asha()
    assert asha.stops("a", 1, float("nan"))
    assert not asha.stops("b", 1, 3.0), "and does not measure others by it"
    assert asha.stops("c", 1, float("inf"))


@pytest.mark.parametrize("grace", [1, 2])
def test_asha_decides_as_the_one_of_ray_tune(grace: int) -> None:
    from ray.tune.schedulers import AsyncHyperBandScheduler

    theirs = AsyncHyperBandScheduler(time_attr="t", metric="m", mode="min", max_t=10**6, grace_period=grace)
    ours, random = Asha(grace=grace), Random(0)
    trials = [SimpleNamespace(trial_id=f"t{number}") for number in range(60)]
    for trial in trials:
        theirs.on_trial_add(None, trial)
    epochs = dict.fromkeys(range(60), 0)
    stopped = 0
    while epochs:
        number = random.choice(list(epochs))
        epochs[number] += 1
        value = random.random() / epochs[number]
        expected = theirs.on_trial_result(None, trials[number], {"t": epochs[number], "m": value}) == "STOP"
        assert ours.stops(f"t{number}", epochs[number], value) == expected
        stopped += expected
        if expected or epochs[number] == 20:
            del epochs[number]
    assert 20 < stopped < 60


def test_the_median_rule_stops_what_is_worse_than_the_others_were_on_average() -> None:
    median = Median(grace=1, min_others=3)
    for name, values in {"a": (4, 2), "b": (5, 3), "c": (6, 4)}.items():  # on average 3, 4 and 5
        assert [median.stops(name, epoch, value) for epoch, value in enumerate(values, 1)] == [False, False]
    assert not median.stops("d", 1, 5.0)
    assert median.stops("e", 2, 4.5)
    assert not median.stops("f", 2, 3.9)
    assert median.stops("g", 2, float("nan"))


def test_the_median_rule_decides_as_the_one_of_ray_tune() -> None:
    from ray.tune.schedulers import MedianStoppingRule

    theirs = MedianStoppingRule(time_attr="t", metric="m", mode="min", grace_period=2, min_samples_required=3)
    ours, random = Median(grace=2, min_others=3), Random(0)
    controller = SimpleNamespace(get_live_trials=list)
    trials = [type("Trial", (), {"trial_id": f"t{number}"})() for number in range(40)]
    for trial in trials:
        theirs.on_trial_add(controller, trial)
    epochs = dict.fromkeys(range(40), 0)
    stopped = 0
    while epochs:
        number = random.choice(list(epochs))
        epochs[number] += 1
        value = round(random.random(), 1) / epochs[number]
        result = {"t": epochs[number], "m": value}
        expected = theirs.on_trial_result(controller, trials[number], result) == "STOP"
        assert ours.stops(f"t{number}", epochs[number], value) == expected
        stopped += expected
        if expected or epochs[number] == 12:
            del epochs[number]
    assert 10 < stopped < 40


def test_the_median_rule_takes_the_last_value_of_an_epoch_that_an_attempt_repeats() -> None:
    median = Median()
    for name in "abc":
        assert not median.stops(name, 1, 5.0)
    assert not median.stops("d", 1, 4.0)
    for name in "abc":
        median.stops(name, 1, 1.0)
    assert median.stops("d", 1, 4.0)


def test_few_trials_are_no_median() -> None:
    median = Median()
    assert not any(median.stops(name, 1, value) for name, value in zip("abc", (1, 2, 99), strict=True))
    assert median.stops("d", 1, 3)


def test_schedulers_have_names() -> None:
    assert make_scheduler("fifo") is None
    assert isinstance(make_scheduler("asha"), Asha)
    assert isinstance(make_scheduler("median"), Median)
    assert (quantile([], 0.5), quantile([4, 1, 2, 3], 0.25)) == (None, 1.75)
