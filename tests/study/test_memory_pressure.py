"""A study with too little memory, on a real Ray: allocations fail, workers are killed, and every trial completes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.hungry import Hungry
from tuner.execution.executor import Executor
from tuner.execution.in_process import InProcessExecutor
from tuner.execution.ray_executor import RayExecutor
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import GB
from tuner.workloads.task import Selection

SIZES = [300, 60, 30, 280, 20, 260, 40, 310, 20, 270, 50, 290]
KILLS = {1: 1, 2: 2}  # the second by SIGKILL, the third by Ray's memory monitor
BUDGET_GB = 1.5


def study(folder: Path, executor: Executor, trials: int, data: dict[str, Any], **settings: Any) -> StudyResult:
    listed = [
        {"name": f"{mb}-{number}", "mb": mb, "lr": 0.01 * (number + 1), "epochs": 1, "kill": KILLS.get(number, 0)}
        for number, mb in enumerate(SIZES[:trials])
    ]
    return run_study(
        StudySpec(
            [Selection(Hungry(), lambda: data, configurations(listed, Hungry.hyperparameters))],
            Settings(output=str(folder), device="cpu", gpu_memory_buffer_gb=0, threads=1, **settings),
            label="test",
            command="a test",
        ),
        executor,
    )


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("trials", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_under_pressure_every_trial_ends_completed_with_the_losses_of_a_study_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    memory = psutil.virtual_memory()
    spare = 3 * GB  # what other tests, a browser among them, may come to need meanwhile
    monkeypatch.setenv("RAY_memory_usage_threshold", str((memory.total - memory.available + spare) / memory.total))
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
    data = {"folder": str(tmp_path), "bytes": spare + 2 * GB}
    pressed = study(
        tmp_path / "pressed",
        RayExecutor(),
        trials,
        data,
        model_memory_gb=0.55,
        backoff=0.5,
        device_memory_gb=BUDGET_GB,
        packing="per-trial",
    )
    alone = study(tmp_path / "alone", InProcessExecutor(), trials, data, model_memory_gb=2.0)
    lines = [json.loads(line) for line in (tmp_path / "pressed" / "attempts.jsonl").read_text().splitlines()]
    first = {line["name"]: line for line in lines if line["attempts"] == 1}
    assert [row["status"] for row in pressed.rows] == ["completed"] * trials
    assert sum(line["status"] == "out_of_memory" for line in first.values()) > trials // 2
    assert first["60-1"]["lost"] == "worker"
    assert first["30-2"]["status"] == "out_of_memory"
    assert all(row["peak_memory_gb"] <= row["limit_gb"] for row in pressed.rows)
    same = ("name", "val_loss", "test_loss", "train_loss", "best_epoch")
    results = [{row["name"]: [row[key] for key in same] for row in result.rows} for result in (pressed, alone)]
    assert results[0] == results[1]
