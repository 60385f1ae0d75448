"""One contract, held by both executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.toy import Fatal, Sharing, Toy
from tuner.execution.in_process import InProcessExecutor
from tuner.execution.loop import Executor
from tuner.execution.ray_executor import RayExecutor
from tuner.space import configurations
from tuner.study import Settings, StudyResult, run_study
from tuner.workloads.base import Choice

EXECUTORS = [InProcessExecutor, pytest.param(RayExecutor, marks=pytest.mark.ray)]


def study(
    workload: Toy,
    executor: Executor,
    folder: Path,
    faults: Sequence[int] = (),
    data: Any = None,
    listed: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> StudyResult:
    listed = listed or [{"name": f"{number}", "fault": fault} for number, fault in enumerate(faults)]
    return run_study(
        [Choice(workload, lambda: data, configurations(listed, workload.hyperparameters))],
        Settings(
            output=str(folder),
            device="cpu",
            model_memory_gb=0.7,
            gpu_memory_buffer_gb=0,
            max_workers=1,
            on_oom="fail",
            **settings,
        ),
        label="test",
        command="a test",
        executor=executor,
    )


@pytest.mark.parametrize("make", EXECUTORS)
def test_trials_end_with_their_status_metrics_and_weights(make: Callable[[], Executor], tmp_path: Path) -> None:
    listed: list[dict[str, Any]] = [
        {"name": f"{number}", "fault": fault} for number, fault in enumerate([0, 1, 2, 3, 0])
    ]
    listed.append({"name": "slow", "fault": 4, "lr": 0.0001, "epochs": 100})
    result = study(Toy(), make(), tmp_path / "out", listed=listed, scheduler="asha")
    by_name = {row["name"]: row for row in result.rows}
    slow = by_name["slow"]
    assert (slow["status"], slow["error"], slow["best_epoch"]) == ("pruned", "", slow["epochs"])
    assert 1 <= slow["epochs"] < 50 and slow["val_loss"] > 0.5 and slow["peak_memory_gb"] > 0.05
    assert not list((tmp_path / "out" / "checkpoints").iterdir())
    assert [by_name[f"{n}"]["status"] for n in range(5)] == [
        "completed",
        "failed",
        "out_of_memory",
        "diverged",
        "completed",
    ]
    assert by_name["0"]["val_loss"] == by_name["4"]["val_loss"], "a worker's past has no influence"
    assert by_name["1"]["error"] == "first step: ValueError: no such thing"
    assert by_name["0"]["peak_memory_gb"] > 0.05
    assert (tmp_path / "out" / "best.pt").stat().st_size > 0


@pytest.mark.ray
def test_a_worker_that_dies_or_breaks_fails_its_trial_alone(tmp_path: Path) -> None:
    result = study(Fatal(), RayExecutor(), tmp_path / "out", [1, 0, 2, 0])
    by_name = {row["name"]: row for row in result.rows}
    assert [by_name[f"{n}"]["status"] for n in range(4)] == ["failed", "completed", "failed", "completed"]
    for name in ("0", "2"):
        assert "the worker was lost: " in by_name[name]["error"]
        assert "\x1b" not in by_name[name]["error"]


@pytest.mark.ray
def test_workers_see_the_drivers_data_without_a_copy(tmp_path: Path) -> None:
    np.save(tmp_path / "mapped.npy", np.ones(1_000_000))
    data = {"array": np.ones(1_000_000), "mapped": np.load(tmp_path / "mapped.npy", mmap_mode="r")}
    assert Sharing().evaluate(nn.Identity(), data, "test") == {"loss": 1.0}
    (row,) = study(Sharing(), RayExecutor(), tmp_path / "out", [0], data).rows
    assert (row["status"], row["val_loss"]) == ("completed", 0.0)


@pytest.fixture(autouse=True)
def _no_ray_is_left() -> Iterator[Any]:
    import ray

    yield
    assert not ray.is_initialized()
