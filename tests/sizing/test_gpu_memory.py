"""The traced estimates against what was measured on a GPU, where that table exists; and the code that compares."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from scripts.benchmarks.memory_models import MODELS, WORKLOADS, Step, parse_sizes, percentile, read_steps, trace
from scripts.gpu import measure_gpu_memory as script
from scripts.gpu.measure_gpu_memory import Measured, read_table, write_table
from tests.support.recorded_events import events_from_trace
from tuner.estimation import calibration
from tuner.estimation.caching_allocator import replay
from tuner.estimation.cards import find_card
from tuner.trial import MB, MemoryEstimate

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/data/gpu_memory.csv"
SNAPSHOT = TABLE.with_name(script.SNAPSHOT)
MOST_MEDIAN, MOST_PERCENTILE, MOST_MEDIAN_CALIBRATED = 0.03, 0.08, 0.015


def estimate(row: Measured) -> MemoryEstimate:
    """What the tracer expects of the step that a row measured."""
    step = Step(row.name, row.model, parse_sizes(row.sizes))
    return trace(step, "cuda", find_card(row.gpu)).to_estimate("cuda")


def errors(rows: Sequence[Measured], estimates: Sequence[MemoryEstimate]) -> list[float]:
    """Relative errors of reserved bytes, without a sign and without context."""
    return [abs(found.reserved_bytes / row.peak_reserved - 1) for row, found in zip(rows, estimates, strict=True)]


def calibrated_errors(rows: Sequence[Measured], estimates: Sequence[MemoryEstimate]) -> list[float]:
    """The same with each row's estimate calibrated on all others of its model, and on no other model's.

    Reserved bytes are fitted, not those with the context, which would hide an error behind 500 MB: so the
    calibration's additive part is here what every step reserves and no trace sees.
    """
    found = []
    for row, raw in zip(rows, estimates, strict=True):
        samples = [
            calibration.to_sample(other, measured.peak_reserved)
            for measured, other in zip(rows, estimates, strict=True)
            if measured.model == row.model and measured.name != row.name
        ]
        total = calibration.fit(samples).correct(raw).total_bytes
        found.append(abs(total / row.peak_reserved - 1))
    return found


@pytest.fixture(scope="module")
def table() -> tuple[list[Measured], list[MemoryEstimate]]:
    if not TABLE.exists():
        pytest.skip("not measured yet: run scripts/benchmark measure_gpu_memory on a machine with a GPU")
    rows = read_table(TABLE)[::3]  # of all of them the traces take a minute
    return rows, [estimate(row) for row in rows]


def test_traced_estimates_are_near_what_a_gpu_reserved(table: tuple[Any, Any]) -> None:
    found = errors(*table)
    assert statistics.median(found) <= MOST_MEDIAN
    assert percentile(found, 0.95) <= MOST_PERCENTILE


def test_calibrated_estimates_are_nearer(table: tuple[Any, Any]) -> None:
    assert statistics.median(calibrated_errors(*table)) <= MOST_MEDIAN_CALIBRATED


def test_the_table_holds_steps_as_they_are_now() -> None:
    rows, listed = read_table(TABLE), {(step.name, step.model): step.sizes for step in read_steps()}
    assert len(rows) >= 71, "for these the H200 had time"
    assert all(listed[row.name, row.model] == parse_sizes(row.sizes) for row in rows)


@pytest.mark.skipif(
    not SNAPSHOT.exists(), reason="no recording: scripts/benchmark measure_gpu_memory --snapshot NAME"
)
def test_the_simulator_replays_a_recording() -> None:
    recorded = json.loads(SNAPSHOT.read_text())
    entries = [dict(zip(recorded["fields"], entry, strict=True)) for entry in recorded["entries"]]
    found = replay(events_from_trace(entries))
    assert found.peak_reserved_bytes == pytest.approx(recorded["peak_reserved"], rel=0.01)
    assert found.peak_allocated_bytes == pytest.approx(recorded["peak_allocated"], rel=0.01)


def made_up(count: int = 8) -> tuple[list[Measured], list[MemoryEstimate]]:
    """Devices that reserve 64 MiB and a tenth of the activations more than the estimates say."""
    rows, estimates = [], []
    for k in range(1, count + 1):
        raw = MemoryEstimate("traced", parameter_bytes=50 * MB, activation_bytes=100 * k * MB, context_bytes=500 * MB)
        peak = raw.parameter_bytes + 64 * MB + raw.activation_bytes * 11 // 10
        sizes = f"width={k} block=sdpa"
        rows.append(
            Measured(
                f"step-{k}", "mlp", sizes, "NVIDIA H100 80GB HBM3", "9.0", "1.2", "2.11.0", peak - MB, peak, 400 * MB
            )
        )
        estimates.append(raw)
    return rows, estimates


def test_errors_are_of_reserved_bytes_without_context() -> None:
    rows, estimates = made_up(1)
    rows[0] = replace(rows[0], peak_reserved=200 * MB)
    assert errors(rows, estimates) == [0.25]


def test_calibration_on_other_rows_takes_a_systematic_error_away() -> None:
    rows, estimates = made_up()
    assert min(errors(rows, estimates)) > 0.10
    assert max(calibrated_errors(rows, estimates)) < 0.001


def test_calibration_does_not_see_the_row_that_is_judged() -> None:
    rows, estimates = made_up()
    rows[3] = replace(rows[3], peak_reserved=rows[3].peak_reserved * 2)
    found = calibrated_errors(rows, estimates)
    assert found[3] == pytest.approx(0.5, abs=0.02)
    assert statistics.median(found) < 0.01


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows, _ = made_up()
    write_table(tmp_path / "data/table.csv", rows)
    assert read_table(tmp_path / "data/table.csv") == rows
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["table.csv"]


def test_without_a_gpu_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(script.main, ["--output", str(tmp_path / "table.csv")])
    assert result.exit_code == 2
    assert result.output.startswith("error: no GPU: ")
    assert result.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_at_last(function: Any, step: Step) -> Measured:
        if step.name == read_steps()[-1].name:
            raise click.ClickException(f"{step.name} was not measured")
        return made_up(1)[0][0]

    monkeypatch.setattr(script, "no_gpu", lambda: None)
    monkeypatch.setattr(script, "in_new_process", fails_at_last)
    (tmp_path / "table.csv").write_text("as it was")
    result = CliRunner().invoke(script.main, ["--output", str(tmp_path / "table.csv")])
    assert result.exit_code == 1
    assert (tmp_path / "table.csv").read_text() == "as it was"


def test_a_part_of_the_steps_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "no_gpu", lambda: None)
    result = CliRunner().invoke(script.main, ["--only", "mlp"])
    assert result.exit_code == 2
    assert "give --output" in result.output


def test_the_list_has_steps_of_every_model() -> None:
    steps = read_steps()
    assert len(steps) >= 40
    assert len({step.name for step in steps}) == len(steps)
    assert {step.model for step in steps} == {*WORKLOADS, *MODELS}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_first_step_of_each_model_is_estimated_for_a_gpu(model: str) -> None:
    step = next(step for step in read_steps() if step.model == model)
    sizes = " ".join(f"{key}={value}" for key, value in step.sizes.items())
    row = Measured(step.name, model, sizes, "NVIDIA H100 80GB HBM3", "9.0", "1.2", "2.11.0", 0, 0, 0)
    assert estimate(row).reserved_bytes > 2 * 32 * MB


def test_a_step_is_excluded_only_where_its_row_says_so() -> None:
    step = Step("gat", "gat", {}, "emulated: masks")
    assert (step.why_not("emulated"), step.why_not("real"), step.why_not("cpu")) == ("masks", "", "")
