"""Footprints from a few measured rows."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.commands import refused
from tuner import InputError, fit_footprint
from tuner.sizing.footprints.footprint import read_footprint
from tuner.trial import GB

SIZES = [(8, 8, 16), (16, 24, 32), (32, 8, 4), (64, 24, 8), (45, 16, 16), (100, 4, 9)]


def guide(batch: float, negatives: float) -> float:
    return 2.7 + batch * (2 + negatives) * 0.01465


def measured(noise: float = 0.0, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {"batch_size": b, "n_negatives": n, "n_positives": p, "memory_gb": guide(b, n) * (1 + draw.gauss(0, noise))}
        for b, n, p in SIZES
    ]


def write_csv(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_the_guides_formula_is_found_in_exact_rows(tmp_path: Path) -> None:
    output = tmp_path / "encoder.toml"
    found = fit_footprint(write_csv(tmp_path, measured()), output)
    assert found.footprint.formula() == "2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)"
    assert max(found.errors) < 1e-4 > max(found.left_out_errors)
    assert found.left_out == ("n_positives: explains no memory",)
    assert read_footprint(output) == found.footprint
    assert (found.footprint.name, found.footprint.variables) == ("encoder", {"n_negatives": 24})


@pytest.mark.parametrize("seed", range(6))
def test_noisy_rows_give_what_is_within_a_few_percent(seed: int) -> None:
    found = fit_footprint(measured(noise=0.02, seed=seed)).footprint
    known = {name: value for name, value in {"n_negatives": 20, "n_positives": 16}.items() if name in found.variables}
    assert found.need_bytes({"batch_size": 50, **known}) / GB == pytest.approx(guide(50, 20), rel=0.05)


def test_rows_are_a_file_mappings_or_a_frame(tmp_path: Path) -> None:
    rows = measured(noise=0.02)
    fits = [fit_footprint(given, name="x") for given in (rows, pd.DataFrame(rows), write_csv(tmp_path, rows))]
    assert {fit.footprint.formula() for fit in fits} == {fits[0].footprint.formula()}
    assert fits[0].errors == pytest.approx(fits[2].errors)


def test_a_row_that_is_left_out_is_fitted_without(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"b": b, "memory_gb": 1 + b / 10 + wobble} for b, wobble in [(1, 0.03), (4, -0.05), (9, 0.1), (16, 0)]]
    found = fit_footprint(rows, batch="b")
    for number, row in enumerate(rows):
        others = [each for each in rows if each is not row]
        monkeypatch.setattr("tuner.sizing.footprints.fitting.LEAST_ROWS", 3)
        again = fit_footprint(others, batch="b").footprint
        assert len(again.terms) == len(found.footprint.terms) == 2
        error = abs(again.need_bytes({"b": row["b"]}) / GB / row["memory_gb"] - 1)
        assert found.left_out_errors[number] == pytest.approx(error, abs=1e-5)


def test_coefficients_are_never_negative() -> None:
    rows = [{"batch_size": b, "n": n, "memory_gb": 1 + b / 10 - n / 100} for b in (1, 2, 4, 8) for n in (1, 3, 9)]
    assert min(term.size_bytes for term in fit_footprint(rows).footprint.terms) > 0


def test_a_studys_results_are_understood(tmp_path: Path) -> None:
    rows = [
        {
            "trial_id": f"t{number}",
            "workload": "graphsage",
            "status": "failed" if number == 1 else "completed",
            "duration_s": 3.5 * number,
            "peak_memory_gb": None if number == 1 else 1 + batch / 10,
            "config/batch_size": batch,
            "config/lr": 0.01,
        }
        for number, batch in enumerate((1, 2, 4, 8, 16))
    ]
    found = fit_footprint(write_csv(tmp_path, rows))
    assert found.footprint.formula() == "1 + batch_size · 0.1"
    assert found.left_out == ("rows that are not completed: 1", "lr: is 0.01 in every row")
    with pytest.raises(InputError, match=r"rows.csv: has rows of graphsage and gt-ssl: give those of one workload"):
        fit_footprint(write_csv(tmp_path, [*rows, {**rows[0], "workload": "gt-ssl"}]))
    with pytest.raises(InputError, match=r"rows.csv: none of its 1 rows is completed"):
        fit_footprint(write_csv(tmp_path, rows[1:2]))


def test_of_a_studys_results_the_batch_is_that_of_a_micro_batch(tmp_path: Path) -> None:
    sizes = [(2, 1), (8, 2), (24, 3), (16, 1), (64, 2)]
    rows = [
        {"peak_memory_gb": 1 + size / parts / 10, "config/batch_size": size}
        | {"config/accumulation": None if parts == 1 else parts}
        for size, parts in sizes
    ]
    output = tmp_path / "own.toml"
    found = fit_footprint(write_csv(tmp_path, rows), output)
    assert found.footprint.formula() == "1 + batch_size · 0.1"
    assert found.left_out == ("accumulation: batch_size is divided by it",)
    assert read_footprint(output) == found.footprint
    assert found.footprint.batch_is_step
    assert fit_footprint(pd.DataFrame(rows)).footprint.terms == found.footprint.terms
    with pytest.raises(InputError, match="config/accumulation = 0: must be a finite number of more than 0"):
        fit_footprint([*rows, {**rows[0], "config/accumulation": 0}])


def test_accumulation_is_no_variable_of_own_rows() -> None:
    rows = [{**row, "accumulation": row["n_negatives"] + number} for number, row in enumerate(measured())]
    found = fit_footprint(rows)
    assert "accumulation" not in found.footprint.variables
    assert "accumulation: is no variable of the memory" in found.left_out
    assert not found.footprint.batch_is_step


def test_of_two_columns_of_memory_one_counts_and_the_other_is_no_variable() -> None:
    rows = [{**row, "peak_memory_gb": 1.1 * row["memory_gb"]} for row in measured()]
    found = fit_footprint(rows)
    assert found.footprint.formula() == "2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)"
    assert found.left_out[0] == "peak_memory_gb: the memory is that of memory_gb"


def test_variables_that_go_together_cannot_be_told_apart() -> None:
    rows = [{**row, "n_positives": 8 + row["n_negatives"]} for row in measured()]
    found = fit_footprint(rows)
    assert found.footprint.formula() == "2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)"
    assert found.left_out == ("n_positives: varies only together with n_negatives",)


def change(rows: list[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    return [{**row, **values} for row in rows]


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "has no rows"),
        (measured()[:3], "3 rows are too few: measure 4 or more"),
        (change(measured(), batch_size=8), "batch_size is 8 in every row: measure other batches too"),
        ([{"memory_gb": 1}], r"the column batch_size is missing \(columns are none\): name it: batch='COLUMN'"),
        ([{"memory": 1}], r"the column memory_gb is missing \(is it memory\? rename it\)"),
        ([{"b": 1}], r"the column memory_gb is missing \(columns are b\)"),
        (
            change(measured(), n_negatives="many"),
            "row 1: n_negatives = 'many': is not a number; leave the row or the",
        ),
        (change(measured(), n_negatives=-1), "row 1: n_negatives = -1: must be a finite number of 0 or more"),
        (change(measured(), memory_gb=0), "row 1: memory_gb = 0: must be a finite number of more than 0"),
        (change(measured(), memory_gb=float("inf")), "row 1: memory_gb = inf: must be a finite number"),
        ([*measured(), {"memory_gb": 3}], "row 7: batch_size is blank: fill it in, or leave"),
        (change(measured(), memory_gb=5), "memory does not grow with batch_size in these rows: measure larger"),
        (
            [{f"v{k}": k**n % 11 for k in range(2, 10)} | {"batch_size": n, "memory_gb": n} for n in range(1, 9)],
            "too many",
        ),
        (3, "must be a CSV file, a list of mappings or a DataFrame, not int"),
        ([3], "row 1: must be a mapping, not 3"),
    ],
)
def test_rows_that_say_too_little_are_refused_in_one_line(tmp_path: Path, rows: Any, fault: str) -> None:
    with pytest.raises(InputError, match=f"rows: .*{fault}") as caught:
        fit_footprint(rows, tmp_path / "new.toml")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("batch_size,memory_gb\n1,2\n2,\n", "line 3: memory_gb is blank"),
        ("batch_size,memory_gb\n1,2,3\n", "line 2: has more values than there are columns"),
        ("batch_size,memory_gb\n", "has no rows"),
    ],
)
def test_a_fault_of_a_csv_has_its_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"rows.csv: {fault}"):
        fit_footprint(path)
    with pytest.raises(InputError, match=r"none.csv: cannot be read: No such file or directory"):
        fit_footprint(tmp_path / "none.csv")


def test_the_command_prints_the_fit_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path, measured())
    command = [sys.executable, "-m", "tuner", "fit-footprint", "rows.csv", "--output", "own.toml"]
    first = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert first.stdout == (
        "GB = 2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)\n"
        "6 rows: error 0.0% median, 0.0% worst; of rows left out of the fit 0.0% median, 0.0% worst\n"
        "left out: n_positives: explains no memory\n"
    )
    assert first.returncode == 0
    kept = (tmp_path / "own.toml").read_bytes()
    monkeypatch.chdir(tmp_path)
    assert refused(capfd, *command[3:]) == "error: own.toml: already exists; give another name, or --overwrite"
    assert (tmp_path / "own.toml").read_bytes() == kept
