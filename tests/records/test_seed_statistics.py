"""Means over seeds and what the paired intervals say, on made-up figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.support.attempts import attempt
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.seed_statistics import Average, Interval, averages, interval_of, summary

RMSE = Objective("val_rmse")


def rows(**by_name: Sequence[float | None]) -> list[Attempt]:
    """A row for each figure, seeds counted from 0; None is a trial that failed."""
    return [
        attempt(name=name, seed=seed, status="failed" if value is None else "completed", val_rmse=value)
        for name, values in by_name.items()
        for seed, value in enumerate(values)
    ]


def verdicts(found: Sequence[Average]) -> dict[str, str]:
    return {average.name: average.verdict for average in found}


def test_an_interval_is_as_wide_as_the_formula_says() -> None:
    found = interval_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.count) == (3.0, 5)
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5))
    assert found.deviation == pytest.approx(math.sqrt(2.5))
    assert interval_of([2.0]) == Interval(2.0, None, 1)


def test_what_is_marked_is_what_the_paired_intervals_say() -> None:
    # Seeds differ by 0.1, more than the configurations do: unpaired intervals would tell nothing apart.
    base = [0.80, 0.90, 1.00, 1.10, 1.20]
    always_worse = [value + 0.010 + 0.001 * (-1) ** seed for seed, value in enumerate(base)]
    sometimes = [value + step for value, step in zip(base, [0.02, -0.01, 0.02, -0.01, 0.02], strict=True)]
    found = averages(rows(worse=always_worse, a=base, near=sometimes), RMSE)
    assert verdicts(found) == {"a": "best", "near": "=", "worse": "worse"}
    near = found[1].difference
    assert near and near.mean == pytest.approx(0.008)
    assert near.half_width == pytest.approx(2.776445 * math.sqrt(0.00027) / math.sqrt(5))  # 0.0204 > 0.008
    assert summary(found) == (
        "1 of 2 other configurations cannot be told from the best, a, at 95 % (paired over 5 seeds; not corrected "
        "for many comparisons): near"
    )


def test_a_best_that_stands_out_is_said_without_a_double_negative() -> None:
    far = {name: [1.0 + step, 1.1 + step, 1.21 + step] for name, step in (("a", 0), ("b", 1), ("c", 2))}
    both = "(paired over 3 seeds; not corrected for many comparisons)"
    assert summary(averages(rows(**far), RMSE)) == (
        f"the best, a, differs from all 2 other configurations at 95 % {both}"
    )
    del far["c"]
    assert summary(averages(rows(**far), RMSE)).startswith("the best, a, differs from the other configuration at")


def test_one_seed_marks_nothing() -> None:
    found = averages(rows(a=[0.5], b=[0.6]), RMSE)
    assert verdicts(found) == {"a": "", "b": ""}
    assert summary(found) == ""
    assert found[0].interval == Interval(0.5, None, 1)


def test_completed_seeds_alone_count_and_fewer_than_two_in_common_are_not_judged() -> None:
    found = averages(
        rows(a=[0.5, 0.6, None, None], b=[None, 0.7, 0.8, 0.9], c=[0.6, 0.8, 0.1, None], d=[None] * 4),
        RMSE,
    )
    assert [(average.name, len(average.values), average.seeds) for average in found] == [
        ("c", 3, 4),
        ("a", 2, 4),
        ("b", 3, 4),
        ("d", 0, 4),
    ]
    assert verdicts(found) == {"c": "best", "a": "=", "b": "=", "d": "not judged"}
    found = averages(rows(a=[0.5, 0.6, None, None], b=[None, None, 0.7, 0.8], c=[0.7, 0.71, None, None]), RMSE)
    assert verdicts(found)["b"] == "not judged"
    assert "not judged, with fewer than two completed seeds in common: b" in summary(found)


def test_the_best_has_two_seeds_where_any_has() -> None:
    found = averages(rows(lucky=[0.1, None], a=[0.5, 0.6], b=[0.9, 1.1]), RMSE)
    assert verdicts(found) == {"lucky": "not judged", "a": "best", "b": "="}


def test_one_that_is_better_on_the_seeds_in_common_is_not_called_the_same() -> None:
    found = averages(rows(a=[0.50, 0.60, 0.10], b=[0.40, 0.501, None]), RMSE)
    assert verdicts(found) == {"a": "best", "b": "better"}


def test_equal_figures_cannot_be_told_apart() -> None:
    assert verdicts(averages(rows(a=[0.5, 0.6], b=[0.5, 0.6]), RMSE))["b"] == "="


@pytest.mark.parametrize("agreeing", ["best", "other"])
def test_seeds_that_agree_exactly_are_named_and_compared_with_nothing(agreeing: str) -> None:
    by_name: dict[str, list[float | None]] = {"best": [0.1, 0.11, 0.12], "other": [0.5, 0.52, 0.54]}
    by_name[agreeing] = [by_name[agreeing][0]] * 3
    found = averages(rows(**by_name), RMSE)
    same = next(average for average in found if average.name == agreeing)
    assert same.agrees and same.interval and same.interval.half_width is None
    assert verdicts(found) == {"best": "best", "other": "not judged"}
    assert summary(found) == f"seeds agree exactly, so there is no interval and no comparison: {agreeing}"
