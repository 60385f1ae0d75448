"""One contract, held by both executors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.ray_trials import Slow, placements, until
from tests.toy import Fatal, Sharing, Toy
from tuner.devices import ram_device
from tuner.execution.in_process import InProcessExecutor
from tuner.execution.loop import Executor
from tuner.execution.ray_executor import RayExecutor
from tuner.interrupts import Interrupt, orderly
from tuner.placement import make_plan
from tuner.space import configurations
from tuner.study import Settings, StudyResult, run_study
from tuner.trial import GB, EpochReport, Outcome
from tuner.workloads.base import Choice, Job

EXECUTORS = [InProcessExecutor, pytest.param(RayExecutor, marks=pytest.mark.ray)]


def study(workload: Toy, executor: Executor, folder: Path, faults: list[int], data: Any = None) -> StudyResult:
    listed = [{"name": f"{number}", "fault": fault} for number, fault in enumerate(faults)]
    return run_study(
        [Choice(workload, lambda: data, configurations(listed, workload.hyperparameters))],
        Settings(
            output=str(folder),
            device="cpu",
            model_memory_gb=0.7,
            gpu_memory_buffer_gb=0,
            max_workers=1,
            on_oom="fail",
        ),
        label="test",
        command="a test",
        executor=executor,
    )


@pytest.mark.parametrize("make", EXECUTORS)
def test_trials_end_with_their_status_metrics_and_weights(make: Callable[[], Executor], tmp_path: Path) -> None:
    result = study(Toy(), make(), tmp_path / "out", [0, 1, 2, 3, 0])
    by_name = {row["name"]: row for row in result.rows}
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


@pytest.mark.parametrize("make", EXECUTORS)
def test_a_trial_that_is_stopped_goes_on_at_the_epoch_that_it_had_reached(
    make: Callable[[], Executor], tmp_path: Path
) -> None:
    plan = make_plan([ram_device()], [GB // 2], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    (first,) = placements(plan, 1, epochs=10_000)
    interrupt = Interrupt()
    with orderly(interrupt), closing(make()) as executor:
        executor.open({"toy": Job(Slow(), None)}, plan, tmp_path)
        executor.submit(first)
        while until(executor, EpochReport).epoch == 0:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupt.requested, signal.alarm(0)) == (True, 0), "Ray's own handler would end this process soon"
        executor.stop()
        stopped = until(executor, Outcome)
        assert (stopped.status, stopped.error, stopped.phase) == ("interrupted", "", "")
        executor.submit(replace(first, trial=replace(first.trial, attempt=2)))
        assert until(executor, EpochReport).epoch == stopped.epochs > 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{first.trial.trial_id}.pt"]


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
