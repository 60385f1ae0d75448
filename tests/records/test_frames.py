"""Frames have the types of the values, also where some are missing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.attempts import attempt
from tuner.records.attempts import Attempt, attempts_of, frame_of

ABSENT: Any = object()


def of_values(*values: Any) -> pd.Series[Any]:
    """A hyperparameter's column."""
    configs = [{} if value is ABSENT else {"key": value} for value in values]
    rows = [replace(attempt(), config=config) for config in configs]
    return frame_of(rows, ["config/key"])["config/key"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([1, ABSENT], "Int64"),
        ([True, False], "bool"),
        ([True, ABSENT], "boolean"),
        ([1, 0.5], "float64"),
        ([0.5, ABSENT], "float64"),
        (["a", "b"], "str"),
        ([True, 1], "object"),
        ([2**70, 1], "object"),
        ([None, 0.1], "object"),
        ([[64], [64, 32]], "object"),
        ([{"a": 1}, ABSENT], "object"),
        ([None, ABSENT], "object"),
    ],
)
def test_a_column_has_the_type_of_its_values_which_come_back_as_they_are(values: list[Any], dtype: str) -> None:
    column = of_values(*values)
    assert column.dtype == dtype
    for value, cell in zip(values, column.tolist(), strict=True):
        if value is ABSENT:
            assert cell is pd.NA or math.isnan(cell)
        else:
            assert cell == value and (dtype != "object" or type(cell) is type(value))


def test_a_value_can_be_asked_for() -> None:
    column = of_values(False, True, ABSENT)
    assert column[column == False].index.tolist() == [0]  # noqa: E712
    assert of_values(None, 0.1, ABSENT).map(lambda value: value is None).tolist() == [True, False, False]


def test_metrics_and_texts_that_are_missing_are_not_zero_and_blank() -> None:
    frame = frame_of([attempt(val_loss=0.5, best_epoch=3), attempt(trial_id="t2", device=None, error="x")])
    assert frame.val_loss.isna().tolist() == frame.best_epoch.isna().tolist() == [False, True]
    assert (frame.best_epoch.dtype, frame.error.tolist(), frame.device.tolist()) == ("Int64", ["", "x"], ["cpu", ""])
    assert frame.peak_ram_gb.dtype == "float64" and frame.peak_ram_gb.isna().all()
    assert frame_of([]).empty and list(frame_of([], ["name"])) == ["name"]


def test_a_users_table_is_read_whatever_its_other_cells_are() -> None:
    table = frame_of([attempt(val_loss=0.5), attempt(trial_id="t2", val_loss=None)])
    table["config/layers"] = pd.Series([[1], np.zeros(2)], dtype=object)
    table["own"] = pd.Series([{"a": 1}, "text"], dtype=object)
    table["seed"] = [0.0, 1.0]
    found = attempts_of(table)
    assert [(row.seed, row.metrics, row.config) for row in found] == [(0, {"val_loss": 0.5}, {}), (1, {}, {})]
    assert [type(row) for row in found] == [Attempt, Attempt]
