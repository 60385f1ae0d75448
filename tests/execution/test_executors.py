"""One contract, held by both executors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.conftest import share_ray
from tests.support.ray_trials import stop_and_go_on
from tests.support.toy import Fatal, Sharing, Toy, Wide
from tuner.decisions.plan import make_plan
from tuner.execution.child_executor import ChildExecutor
from tuner.execution.executor import Executor
from tuner.execution.in_process import InProcessExecutor
from tuner.execution.ray_executor import RayExecutor
from tuner.machine import peak
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter
from tuner.records.attempts import Line
from tuner.records.files import best_name
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import GB, Device, MemoryEstimate, Placement, Trial
from tuner.workloads.base import Workload
from tuner.workloads.task import Selection, TrainingTask

SLOW = {"fault": 4, "lr": 0.0001, "epochs": 100}  # the scheduler ends it
TOYS = (Toy(), [*({"fault": fault} for fault in (0, 1, 2, 3, 0)), SLOW])
WIDES = (Wide(), [{}, {}])


def study(
    folder: Path,
    executor: Executor,
    *tried: tuple[Workload, list[dict[str, Any]]],
    data: Any = None,
    scheduler: str = "fifo",
) -> StudyResult:
    """Of each workload these configurations, named by their number."""
    named = [
        (workload, [{"name": f"{n}", **config} for n, config in enumerate(listed)]) for workload, listed in tried
    ]
    return run_study(
        StudySpec(
            [
                Selection(workload, lambda: data, configurations(listed, workload.hyperparameters))
                for workload, listed in named
            ],
            Settings(
                output=str(folder),
                device="cpu",
                model_memory_gb=0.7,
                gpu_memory_buffer_gb=0,
                max_workers=1,
                on_oom="fail",
                max_attempts=1,
                report=False,
                scheduler=scheduler,
            ),
            label="test",
            command="a test",
        ),
        executor,
    )


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return study(tmp_path_factory.mktemp("in-process"), InProcessExecutor(), TOYS, WIDES, scheduler="asha")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("data") / "mapped.npy"
    np.save(path, np.ones(1_000_000))
    return {"array": np.ones(1_000_000), "mapped": np.load(path, mmap_mode="r")}


@pytest.fixture(scope="module")
def in_child(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> StudyResult:
    fatal, sharing = (Fatal(), [{"fault": fault} for fault in (1, 0)]), (Sharing(), [{}])
    folder = tmp_path_factory.mktemp("child")
    return study(folder, ChildExecutor(), TOYS, fatal, sharing, WIDES, data=data, scheduler="asha")


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> StudyResult:
    """All that is asked of Ray in one study, on the Ray that tests share: to start one takes seconds."""
    share_ray()
    fatal, sharing = (Fatal(), [{"fault": fault} for fault in (1, 0, 2, 0)]), (Sharing(), [{}, {}])
    return study(
        tmp_path_factory.mktemp("ray"), RayExecutor(), TOYS, fatal, sharing, WIDES, data=data, scheduler="asha"
    )


def rows_of(result: StudyResult, workload: str) -> list[Line]:
    return sorted((row for row in result.rows if row["workload"] == workload), key=lambda row: str(row["name"]))


def test_trials_end_with_their_status_metrics_and_weights_in_this_process(in_process: StudyResult) -> None:
    check_toys(in_process)


def test_trials_end_with_their_status_metrics_and_weights_in_a_child_process(in_child: StudyResult) -> None:
    check_toys(in_child)
    assert [row["status"] for row in rows_of(in_child, "fatal")] == ["failed", "completed"]
    assert "the trial's process was killed by SIG" in rows_of(in_child, "fatal")[0]["error"]
    assert rows_of(in_child, "sharing")[0]["val_loss"] == 0.0


@pytest.mark.ray
def test_trials_end_with_their_status_metrics_and_weights_on_ray(on_ray: StudyResult, shared_ray: None) -> None:
    check_toys(on_ray)


def check_toys(result: StudyResult) -> None:
    *rows, slow = rows_of(result, "toy")
    assert [row["status"] for row in rows] == ["completed", "failed", "out_of_memory", "diverged", "completed"]
    assert rows[0]["val_loss"] == rows[4]["val_loss"], "a worker's past has no influence"
    assert rows[1]["error"].startswith("first step: loss failed: ValueError: no such thing (toy.py, line ")
    assert rows[0]["peak_memory_gb"] > 0.05
    assert [row["status"] for row in rows_of(result, "toy-wide")] == ["completed"] * 2
    for workload in ("toy", "toy-wide"):
        assert (result.folder / best_name(workload)).stat().st_size > 0
    assert (slow["status"], slow["best_epoch"]) == ("pruned", slow["epochs"])
    assert slow["error"] == f"asha ended it after {slow['epochs']} of 100 epochs"
    assert 1 <= slow["epochs"] < 50 and slow["val_loss"] > 0.5 and slow["peak_memory_gb"] > 0.05
    assert not list((result.folder / "checkpoints").iterdir())


@pytest.mark.ray
def test_a_worker_that_dies_or_breaks_fails_its_trial_alone(on_ray: StudyResult, shared_ray: None) -> None:
    rows = rows_of(on_ray, "fatal")
    assert [row["status"] for row in rows] == ["failed", "completed", "failed", "completed"]
    assert "the trial's process was killed by SIG" in rows[0]["error"]
    assert "the trial's process ended with exit code 1: its output is in t0" in rows[2]["error"]


@pytest.mark.ray
def test_workers_see_the_drivers_data_without_a_copy(
    on_ray: StudyResult, data: dict[str, Any], shared_ray: None
) -> None:
    assert Sharing().evaluate(nn.Identity(), data, "test") == {"loss": 1.0}
    shared = [(row["status"], row["val_loss"]) for row in rows_of(on_ray, "sharing")]
    assert shared == [("completed", 0.0)] * 2


def test_in_process_the_notebooks_own_ram_is_no_trials_peak(
    gpu_16gb: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meters: list[PeakMeter] = []
    monkeypatch.setattr(peak, "make_cuda_context", lambda *_: 0)
    monkeypatch.setattr(
        "tuner.execution.in_process.run_trial", lambda task, placement, meter, options: meters.append(meter)
    )
    plan = make_plan([gpu_16gb], [GB], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    with closing(InProcessExecutor()) as executor:
        executor.open({"toy": TrainingTask(Toy(), None)}, plan, tmp_path)
        executor.submit(Placement(Trial("t1", "toy", "a", {}, 0), MemoryEstimate("given"), gpu_16gb, 1.0, GB, 1, GB))
    assert [meter.host_peak_bytes() for meter in meters] == [None]
    assert PeakMeter(gpu_16gb, lambda: None).host_peak_bytes(), "a worker's is"


def test_a_trial_that_is_stopped_goes_on_at_the_epoch_that_it_had_reached(tmp_path: Path) -> None:
    plan = make_plan([ram_device()], [GB // 2], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    with closing(InProcessExecutor()) as executor:
        executor.open({"toy": TrainingTask(Toy(), None)}, plan, tmp_path)
        stop_and_go_on(executor, plan, tmp_path)
    assert not list(tmp_path.iterdir())
