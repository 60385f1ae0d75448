from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.toy import Toy
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.placement import Plan
from tuner.space import configurations
from tuner.study import Settings, StudyResult, run_study
from tuner.trial import EpochReport


class Interrupted(InProcessExecutor):
    """A user presses Ctrl-C when the second trial begins to train."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        events = super().poll(timeout_seconds)
        if isinstance(events[0][0], EpochReport) and events[0][0].trial_id == "t002":
            raise KeyboardInterrupt
        return events


def study(folder: Path, *listed: dict[str, Any], executor: type = InProcessExecutor, **settings: Any) -> StudyResult:
    return run_study(
        Toy(),
        lambda: None,
        configurations(listed, Toy.hyperparameters),
        Settings(output=str(folder), device="cpu", gpu_memory_buffer_gb=0, **{"model_memory_gb": 0.1} | settings),
        label="test",
        executor=executor(),
    )


def test_rows_come_back_best_first_and_as_a_frame(tmp_path: Path) -> None:
    result = study(tmp_path / "out", {"name": "slow", "lr": 0.001}, {"name": "fast"})
    assert [row["name"] for row in result.rows] == ["fast", "slow"]
    assert result.exit_code == 0
    assert list(result.to_frame().columns)[:6] == ["trial_id", "workload", "name", "seed", "status", "attempts"]
    assert json.loads((tmp_path / "out" / "study.json").read_text())["plan"]["workers"] >= 1


def test_a_trial_that_fails_leaves_its_reason_and_the_others_alone(tmp_path: Path) -> None:
    listed = [{"name": str(fault), "fault": fault} for fault in range(4)]
    result = study(tmp_path / "out", *listed)
    assert {row["name"]: row["status"] for row in result.rows} == {
        "0": "completed",
        "1": "failed",
        "2": "out_of_memory",
        "3": "diverged",
    }
    errors = {row["name"]: row["error"] for row in result.rows}
    assert errors["1"] == "ValueError: no such thing"
    assert result.exit_code == 1
    assert "in loss" in (tmp_path / "out" / "tracebacks.log").read_text()


def test_an_interrupt_keeps_what_is_finished_and_names_what_is_not(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", {"name": "a"}, {"name": "b"}, {"name": "c"}, executor=Interrupted, max_workers=2)
    rows = [json.loads(line) for line in (tmp_path / "out" / "attempts.jsonl").read_text().splitlines()]
    assert [(row["name"], row["status"], row["attempts"]) for row in rows] == [
        ("a", "completed", 1),
        ("b", "interrupted", 1),
        ("c", "interrupted", 1),
    ]


def test_epochs_replace_every_configurations_own(tmp_path: Path) -> None:
    result = study(tmp_path / "out", {"name": "a"}, {"name": "b", "epochs": 9}, epochs=2)
    assert [row["epochs"] for row in result.rows] == [2, 2]
    with pytest.raises(InputError, match="--epochs 101: must be at most 100"):
        study(tmp_path / "more", {}, epochs=101)


def test_what_trials_took_corrects_the_next_studys_estimates(tmp_path: Path) -> None:
    listed = [{"name": str(epochs), "epochs": epochs} for epochs in range(1, 7)]
    first = study(tmp_path / "first", *listed, auto_memory=True)
    second = study(tmp_path / "second", *listed, auto_memory=True)
    apart = study(tmp_path / "apart", *listed, auto_memory=True, calibration=False)

    def error(result: StudyResult) -> float:
        return max(abs(row["estimated_memory_gb"] / row["peak_memory_gb"] - 1) for row in result.rows)

    assert error(second) < 0.2
    assert error(second) < error(first)
    assert apart.plan.footprint_bytes == first.plan.footprint_bytes != second.plan.footprint_bytes


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = study(tmp_path / "out", {"name": "a"}, dry_run=True)
    assert (result.rows, result.folder) == ([], None)
    assert list(tmp_path.iterdir()) == []
    assert "0.10 GB a trial, as given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_memory_gb": 0}, "--model-memory-gb 0: must be more than 0"),
        ({"model_memory_gb": float("nan")}, "--model-memory-gb nan"),
        ({"gpu_memory_buffer_gb": -1}, "--gpu-memory-buffer-gb -1: must be 0 or more"),
        ({"max_workers": 0}, "--max-workers 0: must be at least 1"),
        ({"threads": 0}, "--threads 0"),
        ({"epochs": 0}, "--epochs 0"),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings).check()


def test_the_plan_type_carries_the_workers(tmp_path: Path) -> None:
    plan = study(tmp_path / "out", {"name": "a"}, dry_run=True, max_workers=1).plan
    assert isinstance(plan, Plan)
    assert plan.workers == 1
