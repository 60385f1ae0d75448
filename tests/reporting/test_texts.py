"""Numbers as people are shown them; files have them exactly."""

from __future__ import annotations

import math

import pytest

from tests.support.attempts import attempt
from tuner.objective import Objective
from tuner.reporting.result_tables import best_value_text, row_columns
from tuner.reporting.texts import decimals_apart, metric_text, sparkline, with_error


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.8734, "0.8734"),
        (0.0, "0.0000"),
        (-12.34567, "-12.3457"),
        (0.001, "0.0010"),
        (1234567.0, "1234567"),
        (1.2e-9, "1.2e-09"),
        (1e308, "1e+308"),
        (-math.exp(705), "-1.505e+306"),
        (5e-324, "4.941e-324"),
        (math.nan, "nan"),
    ],
)
def test_a_metric_has_four_decimals_or_four_significant_digits(value: float, text: str) -> None:
    assert metric_text(value) == text


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.9999991, 0.9999994, None, math.inf], 8),
        ([0.8734, 0.8736], 4),
        ([0.5], 4),
        ([1e-9, 2e-9], 4),
        ([1.0, 1.0 + 2**-52], 12),
        ([], 4),
    ],
)
def test_values_that_four_decimals_would_not_tell_apart_have_more(values: list[float], decimals: int) -> None:
    assert decimals_apart(values) == decimals


def test_a_table_and_its_best_line_tell_close_values_apart() -> None:
    rows = [attempt(trial_id=f"t{number}", loss=value) for number, value in enumerate((0.9999991, 0.9999994))]
    (column,) = row_columns(rows, {"loss": "loss"}, ())
    assert column.texts == ["0.99999910", "0.99999940"]
    assert best_value_text(rows[0], rows, Objective("loss")) == "loss 0.99999910"


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (0.8512, 0.0034, "0.8512 ± 0.0034"),
        (0.0, 1.7e308, "0 ± 1.7e+308"),
        (-1e308, math.inf, "-1e+308 ± inf"),
        (1.2e-12, 3e-13, "1.2e-12 ± 3e-13"),
        (0.5, None, "0.5"),
    ],
)
def test_a_mean_of_any_size_is_shown_with_its_interval(mean: float, half_width: float | None, text: str) -> None:
    assert with_error(mean, half_width) == text


def test_a_sparkline_goes_from_the_lowest_to_the_highest_bar_and_ends_with_the_last_value() -> None:
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    long = sparkline([*range(1000)])
    assert len(long) <= 60 and long[-1] == "█"
