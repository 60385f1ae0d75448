"""A cell of a CSV file is text to a spreadsheet, whatever a name or an error begins with."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.attempts import attempt
from tuner.records.attempts import as_given, defused, to_csv
from tuner.records.read_studies import read_studies


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@sum(a)", "\t=1", "'=1"])
def test_a_formula_stands_behind_an_apostrophe_and_comes_back(text: str) -> None:
    assert defused(text) == f"'{text}" and as_given(f"'{text}") == text


@pytest.mark.parametrize("value", ["plain", "'quoted", "-", "", -1.5, 3, None])
def test_other_cells_are_as_they_were(value: object) -> None:
    assert defused(value) == value and (not isinstance(value, str) or as_given(value) == value)


def test_a_table_with_formulas_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(to_csv([attempt(name="=1+1", error="@x", **{"config/kind": "-y", "config/lr": -0.5})]))
    (cells,) = csv.DictReader(file.read_text().splitlines())
    assert (cells["name"], cells["error"], cells["config/kind"], cells["config/lr"]) == (
        "'=1+1",
        "'@x",
        "'-y",
        "-0.5",
    )
    (row,) = read_studies(file)[0][0].rows
    assert (row.name, row.error, row.config) == ("=1+1", "@x", {"kind": "-y", "lr": -0.5})
