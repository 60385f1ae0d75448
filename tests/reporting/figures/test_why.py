"""Importance, contour, history and distribution: why the best trial is the best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reporting.studies import points, rows_of, view_of
from tuner.reporting.figures.axes import value_axis
from tuner.reporting.figures.distribution import distribution
from tuner.reporting.figures.history import best_so_far, histories, history, in_order, ordinal
from tuner.reporting.figures.mattering import smoothed, what_matters
from tuner.reporting.study_view import StudyView
from tuner.trial import Objective

LOSS = Objective("val_loss")


def test_importance_names_the_first_two_and_the_contour_is_of_them(study: StudyView) -> None:
    bars, contour = what_matters(study, "toy")
    assert bars.plot and contour.plot
    first, second = bars.plot.data[0].y[:2]
    assert f"PED-ANOVA: {first} " in bars.caption
    assert contour.title == f"val_loss over {first} and {second}"


def test_too_few_trials_have_no_contour_and_the_reason() -> None:
    (chart,) = what_matters(view_of(rows_of(a=[1, 2], b=[1, 2], val_loss=[1.0, 2.0])), "toy")
    assert chart.plot is None and "2 completed trials are too few" in chart.caption


def test_cells_of_two_lists_have_medians_and_those_without_trials_nothing() -> None:
    rows = rows_of(a=[1, 1, 1, 2], b=["x", "x", "x", "y"], val_loss=[1.0, 2.0, 9.0, 4.0])
    grid = smoothed(value_axis("config/a", rows), value_axis("config/b", rows), [1.0, 2.0, 9.0, 4.0])
    assert grid == [[2.0, None], [None, 4.0]]


def test_along_ranges_means_of_near_trials_are_drawn_and_nothing_far_from_all() -> None:
    values = [number / 20 for number in range(21)]
    rows = rows_of(a=values, b=values, val_loss=values)
    axes = [value_axis(f"config/{key}", rows, "linear") for key in "ab"]
    grid = smoothed(axes[0], axes[1], values)
    assert grid[0][0] == pytest.approx(0.05, abs=0.05) and grid[-1][-1] == pytest.approx(0.95, abs=0.05)
    assert grid[0][-1] is None


def test_trials_are_in_the_order_of_their_ends_and_the_best_so_far_never_gets_worse() -> None:
    rows = rows_of(val_loss=[3.0, 1.0, 2.0])
    rows = [replace(row, ended_at=at) for row, at in zip(rows, (10, 30, 20), strict=True)]
    rows[2] = replace(rows[2], status="pruned")
    ended = in_order(rows, LOSS)
    assert [row.name for row in ended] == ["n0", "n2", "n1"]
    assert best_so_far(ended, LOSS) == [3.0, 3.0, 1.0], "a pruned trial has no final value"
    chart = history(view_of(rows), "toy")
    assert chart.caption == "3 trials in the order in which they ended. The best val_loss, 1, came from the 3rd."
    assert points(chart, "lines").y == (3.0, 3.0, 1.0)


def test_numbers_in_an_order_have_their_endings() -> None:
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 21, 111, 1003)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "111th", "1,003rd")
    ]


def test_the_distribution_rises_from_the_best_whichever_way_is_better() -> None:
    down = points(distribution({"s": rows_of(val_loss=[2.0, 1.0])}, LOSS), "lines")
    assert (down.x, down.y) == ((1.0, 1.0, 2.0), (0, 0.5, 1.0))
    up = points(distribution({"s": rows_of(val_loss=[2.0, 1.0])}, Objective("val_loss", "maximize")), "lines")
    assert (up.x, up.y) == ((2.0, 2.0, 1.0), (0, 0.5, 1.0))


def test_studies_are_compared_by_trials_and_by_the_time_since_each_began() -> None:
    rows = [
        replace(row, started_at=float(at), ended_at=at + 60.0)
        for at, row in enumerate(rows_of(val_loss=[2.0, 1.0]), 100)
    ]
    both = {
        "a": rows,
        "b": [replace(row, started_at=at, ended_at=at + 90) for at, row in zip((0, 9), rows, strict=True)],
    }
    by_trials, by_time = (histories(both, both, LOSS, over_time=each) for each in (False, True))
    assert by_trials.plot and by_time.plot
    assert [trace.x for trace in by_trials.plot.data] == [(1, 2), (1, 2)]
    assert [trace.x[0] for trace in by_time.plot.data] == [1.0, 1.5]
