"""Where values stand on an axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reporting.studies import rows_of
from tuner.reporting.figures.axes import metric_axis, nice_ticks, value_axis, varying
from tuner.trial import Objective


def test_few_values_stand_at_even_distances_whatever_they_are() -> None:
    axis = value_axis("config/width", rows_of(width=[256, 32, "wide", 64, None]))
    assert (axis.scale, axis.places) == ("even", [0.6667, 0.0, 1.0, 0.3333, None])
    assert axis.ticks == [(0.0, "32"), (0.3333, "64"), (0.6667, "256"), (1.0, "wide")]


def test_many_numbers_stand_where_they_are_on_a_logarithmic_axis_if_they_span_decades() -> None:
    axis = value_axis("config/lr", rows_of(lr=[10 ** (-number / 4) for number in range(4, 17)]))
    assert axis.scale == "logarithmic"
    assert (axis.places[0], axis.places[6], axis.places[-1]) == (1.0, 0.5, 0.0)
    assert [text for _, text in axis.ticks] == ["0.0001", "0.001", "0.01", "0.1"]
    linear = value_axis("config/size", rows_of(size=list(range(10, 21))))
    assert (linear.scale, linear.places[5], linear.ticks[0]) == ("linear", 0.5, (0.0, "10"))


def test_a_metric_far_from_the_others_stands_at_the_axis_end() -> None:
    values = [0.9 + number / 100 for number in range(10)]
    axis = metric_axis(Objective("val_loss"), rows_of(val_loss=[*values, 1e6]))
    assert axis.places[0] == 0.0
    assert axis.places[-1] == 1.0
    assert 0.5 < (axis.places[9] or 0) < 1.0


def test_the_axis_of_a_metric_that_is_maximised_is_the_mirrored_one() -> None:
    values = [0.9 + number / 100 for number in range(10)]
    down = metric_axis(Objective("val_loss"), rows_of(val_loss=[*values, 1e6]))
    up = metric_axis(Objective("val_loss", "maximize"), rows_of(val_loss=[-each for each in [*values, 1e6]]))
    assert [1 - (place or 0) for place in up.places] == pytest.approx(down.places)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.83, 0.97, [0.85, 0.9, 0.95]), (3, 3, [3]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


def test_what_was_tried_is_what_varies_but_no_seed() -> None:
    first, second = rows_of(width=[1, 2], depth=[3, 3])
    rows = [first, replace(second, seed=1)]
    assert varying(rows) == ["config/width"]


def test_the_scale_of_the_space_decides_and_a_few_whole_numbers_are_even_where_they_are() -> None:
    few = rows_of(lr=[0.001, 0.002, 0.004], depth=[1, 2, 3])
    assert value_axis("config/lr", few, "log").places == [0.0, 0.5, 1.0]
    assert value_axis("config/lr", few, "linear").places == [0.0, 0.3333, 1.0]
    assert value_axis("config/lr", few).scale == "even"
    assert value_axis("config/depth", few, "linear").scale == "even"
    units = value_axis("config/units", rows_of(units=[16, 32, 256]), "linear")
    assert (units.scale, units.places) == ("linear", [0.0, 0.0667, 1.0])


def test_a_logarithmic_axis_has_ticks_of_1_2_and_5_within_a_decade() -> None:
    axis = value_axis("config/lr", rows_of(lr=[0.0012, 0.003, 0.009]), "log")
    assert [text for _, text in axis.ticks] == ["0.002", "0.005"]
    assert axis.text_at(0) == "0.0012"
