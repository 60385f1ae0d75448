from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.support.hungry import Hungry
from tests.support.toy import Toy
from tests.support.worker_process import place, run_capped, worker
from tuner.execution.worker import TrialOptions, run_trial
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter
from tuner.search.configurations import complete
from tuner.trial import MB, Device, EpochReport, Outcome, Phase
from tuner.workloads.base import Batch, Split
from tuner.workloads.task import TrainingTask

KEPT: list[Tensor] = []
NO_KILLS = {"folder": ""}


class Leaking(Hungry):
    """Keeps a tensor of ``mb`` MB beyond its end."""

    name: ClassVar[str] = "leaking"

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        KEPT[:] = [torch.ones(int(model.get_buffer("mb")) * MB // 4)]
        return super().evaluate(model, data, split)


class Failing(Toy):
    """Fails where it is told to, and lets its models be watched."""

    name: ClassVar[str] = "failing"

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.steps = 0
        self.models: list[weakref.ref[nn.Module]] = []

    def build_model(self, config: Any, data: Any) -> nn.Module:
        model = super().build_model(config, data)
        self.models.append(weakref.ref(model))
        self._at("start")
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.steps += 1
        self._at("first step" if self.steps == 1 else "training")
        return super().loss(model, batch)

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        self._at("evaluation")
        return super().evaluate(model, data, split)

    def _at(self, phase: Phase) -> None:
        if phase == self.phase:
            raise ValueError("no such thing")


class BrokenMeter(PeakMeter):
    """Measures a device that does not answer at the end."""

    def start(self) -> None:
        pass

    def left_bytes(self) -> int:
        raise RuntimeError("device-side assert")


def run(
    workload: Toy,
    options: TrialOptions | None = None,
    limit_bytes: int = 0,
    meter_class: type[PeakMeter] = PeakMeter,
    **values: float,
) -> list[Any]:
    """A trial's events, in this process."""
    placement = place(workload, complete(values, workload.hyperparameters), limit_bytes)
    meter = meter_class(ram_device(), lambda: None)
    return list(run_trial(TrainingTask(workload, None), placement, meter, options or TrialOptions(caps=False)))


def hungry(*sizes: int) -> list[dict[str, Any]]:
    return [complete({"mb": size}, Hungry.hyperparameters) for size in sizes]


@pytest.fixture(scope="module")
def in_worker() -> Iterator[Callable[..., Any]]:
    """Calls a function in one process that is set up as a worker: to load torch for each takes two seconds."""
    with worker() as call:
        yield call


def test_a_trial_that_outgrows_its_cap_runs_out_of_memory_and_its_worker_is_done(
    in_worker: Callable[..., Any],
) -> None:
    good, bad = in_worker(run_capped, Hungry(), hungry(100, 400), 200 * MB, NO_KILLS)
    assert (good.status, good.phase, good.reusable) == ("completed", "", True)
    assert (bad.status, bad.phase, bad.reusable) == ("out_of_memory", "first step", False)
    assert re.fullmatch(r"out of memory: needed 400 MB more, allowed 200 MB, in use \d+ [KM]B", bad.error)
    assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate" in bad.traceback
    assert good.peak_bytes < good.placement.limit_bytes
    assert bad.peak_bytes > bad.placement.limit_bytes + 190 * MB, "with what the failed allocation asked for"


def test_a_worker_that_a_trial_has_left_memory_in_is_not_used_again(in_worker: Callable[..., Any]) -> None:
    outcomes = in_worker(run_capped, Leaking(), hungry(1, 100), 400 * MB, NO_KILLS)
    assert [(outcome.status, outcome.reusable) for outcome in outcomes] == [("completed", True), ("completed", False)]


def test_a_device_that_does_not_answer_any_more_costs_the_worker_and_not_the_result() -> None:
    *_, outcome, weights = run(Toy(), meter_class=BrokenMeter)
    assert (outcome.status, outcome.reusable) == ("completed", False)
    assert "the worker cannot be used again: RuntimeError: device-side assert" in outcome.error
    assert outcome.metrics and weights


def test_a_share_that_the_worker_itself_fills_is_too_small() -> None:
    (outcome,) = run(Toy(), TrialOptions(), limit_bytes=MB)
    assert (outcome.status, outcome.phase, outcome.reusable) == ("out_of_memory", "start", False)
    assert "the trial has 0.001 GB, and a worker on cpu takes " in outcome.error
    assert outcome.peak_bytes > MB, "its worker and what was estimated, so that a retry gets as much"


class Raising(Toy):
    """Raises an error in its first step."""

    name: ClassVar[str] = "raising"

    def __init__(self, error: Exception, cause: Exception | None = None) -> None:
        self.error, self.cause = error, cause

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise self.error from self.cause


class Mute(RuntimeError):
    """Has no text, and is its own cause's cause."""

    def __init__(self) -> None:
        self.__cause__ = ValueError("cause")
        self.__cause__.__cause__ = self

    def __str__(self) -> str:
        raise ValueError("no text")


class Circular(Toy):
    """Raises ``Mute``."""

    name: ClassVar[str] = "circular"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise Mute


def test_an_exception_without_text_or_with_a_circle_of_causes_fails_its_trial_alone() -> None:
    outcome = run(Circular())[-1]
    assert outcome.status == "failed"
    assert "Mute: an error without a text" in outcome.error


@pytest.mark.parametrize("phase", ["start", "first step", "training", "evaluation"])
def test_the_outcome_says_in_which_phase_it_failed_and_nothing_of_the_trial_is_left(phase: Phase) -> None:
    workload = Failing(phase)
    outcome = run(workload)[-1]
    assert (outcome.status, outcome.phase) == ("failed", phase)
    assert " failed: ValueError: no such thing (test_worker.py, line " in outcome.error
    assert 'raise ValueError("no such thing")' in outcome.traceback
    assert [model() for model in workload.models] == [None]


SIGNAL = "DataLoader worker (pid 7) is killed by signal: {}. "
GONE = "DataLoader worker (pid(s) 7) exited unexpectedly"
FULL = "It is possible that dataloader's workers are out of shared memory."


@pytest.mark.parametrize(
    ("cause", "kills", "status", "error"),
    [
        (SIGNAL.format("Killed"), 1, "out_of_memory", "^the kernel killed a data loader's process, as the machine"),
        (SIGNAL.format("Killed"), 0, "failed", "exited unexpectedly"),
        (SIGNAL.format("Segmentation fault"), 1, "failed", "exited unexpectedly"),
        ("", 1, "out_of_memory", "^the kernel killed a data loader's process"),  # a thread is not told of the signal
        (SIGNAL.format("Bus error") + FULL, 1, "failed", "exited .*; /dev/shm may be full: .*--shm-size"),
    ],
)
def test_a_data_loaders_process_that_the_kernel_killed_for_memory_is_out_of_memory(
    cause: str, kills: int, status: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([0, kills])
    monkeypatch.setattr("tuner.execution.worker.oom_kills", lambda: next(counts))
    outcome = run(Raising(RuntimeError(GONE), RuntimeError(cause)))[-1]
    assert outcome.status == status
    assert re.search(error, outcome.error)


def test_a_data_loaders_process_that_was_killed_beside_a_gpu_was_short_of_ram(
    gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr("tuner.execution.worker.oom_kills", lambda: next(counts))
    monkeypatch.setattr("tuner.execution.worker.torch_device", lambda _: "cpu")
    workload = Raising(RuntimeError(GONE))
    placement = replace(place(workload, complete({}, Toy.hyperparameters)), device=gpu_16gb)
    meter, options = PeakMeter(ram_device(), lambda: None), TrialOptions(caps=False)
    *_, outcome = run_trial(TrainingTask(workload, None), placement, meter, options)
    assert isinstance(outcome, Outcome)
    assert (outcome.status, outcome.short_of, outcome.lost) == ("out_of_memory", "RAM", "worker")


def test_divergence_has_a_phase_and_leaves_the_worker_as_it_was() -> None:
    outcome = run(Toy(), fault=3)[-1]
    assert (outcome.status, outcome.phase, outcome.reusable) == ("diverged", "training", True)


def test_reports_come_before_the_outcome_and_the_weights_after_it() -> None:
    *reports, outcome, weights = run(Toy(), epochs=2)
    assert [report.epoch for report in reports if isinstance(report, EpochReport)] == [0, 1, 2]
    assert isinstance(outcome, Outcome)
    assert (outcome.status, outcome.error, outcome.epochs) == ("completed", "", 2)
    assert weights.startswith(b"PK")


def test_a_trial_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    options = TrialOptions(caps=False, checkpoints=tmp_path, checkpoint_seconds=0)
    whole = run(Toy(), options)
    (tmp_path / "t001.pt").write_bytes(b"damaged")
    placement = place(Toy(), complete({}, Toy.hyperparameters))
    halved = run_trial(TrainingTask(Toy(), None), placement, PeakMeter(ram_device(), lambda: None), options)
    assert [next(halved).epoch for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    del halved
    first, *again, _, outcome, _ = run(Toy(), options)
    told = [(report.epoch, report.again, report.memory_bytes) for report in again]
    assert told == [(1, True, None), (2, True, None)]
    assert (first.epoch, outcome.error) == (2, "")
    assert outcome.metrics == whole[-2].metrics


def test_a_checkpoint_that_cannot_be_read_or_written_is_told_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "t001.pt").write_bytes(b"damaged")
    (tmp_path / "t001.pt.partial").mkdir()
    outcome = run(Toy(), TrialOptions(caps=False, checkpoints=tmp_path, checkpoint_seconds=0), epochs=1)[-2]
    assert outcome.status == "completed"
    unread, unwritten = outcome.error.split("; ")
    assert unread == "checkpoint t001.pt not used: it is damaged, or of an earlier version (UnpicklingError)"
    assert unwritten == "checkpoint not written: Is a directory"


def test_without_the_folder_there_are_no_checkpoints(tmp_path: Path) -> None:
    outcome = run(Toy(), TrialOptions(caps=False, checkpoints=tmp_path / "none", checkpoint_seconds=0))[-2]
    assert (outcome.status, outcome.error) == ("completed", "")
    assert not (tmp_path / "none").exists()
