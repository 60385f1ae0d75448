from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.toy import Toy
from tests.support.worker_process import measure_here
from tuner.estimation.service import EstimationService, predicted, step_sample, steps_in_epoch
from tuner.hyperparameters import Hyperparameter
from tuner.search.configurations import complete, configurations
from tuner.trial import GB, MB, Device, MemoryEstimate

CPU = Device("", "cpu", 0, "a machine", 16 * GB, 16 * GB, cores=2)


class Sized(Toy):
    """Knows its samples and its batch size."""

    name: ClassVar[str] = "sized"
    memory_scales_with: ClassVar[str | None] = "batch_size"
    hyperparameters: ClassVar[Any] = {**Toy.hyperparameters, "batch_size": Hyperparameter(8, 1, 100, "")}

    def training_samples(self, data: Any) -> int:
        return 30


def traced(activation_mb: float, parameter_bytes: int = 1) -> MemoryEstimate:
    return MemoryEstimate("traced", parameter_bytes=parameter_bytes, activation_bytes=int(activation_mb * MB))


def test_steps_are_samples_over_the_batch_and_one_where_that_is_unknown() -> None:
    assert steps_in_epoch(Sized(), {"batch_size": 8}, None) == 4
    assert steps_in_epoch(Sized(), {"batch_size": "auto"}, None) == 1
    assert steps_in_epoch(Toy(), {"batch_size": 8}, None) == 1


def test_what_has_run_takes_what_it_took_times_the_steps_of_its_data() -> None:
    known = [step_sample(traced(4), 20.0, 10), step_sample(traced(4, parameter_bytes=2), 50.0, 10)]
    assert predicted(known, traced(4), 30) == pytest.approx(60)


def test_another_one_lies_between_those_that_have_run() -> None:
    known = [step_sample(traced(size), size**1.5, 1) for size in (1, 4, 16)]
    assert predicted(known, traced(8), 1) == pytest.approx(8**1.5, rel=1e-4)
    assert predicted(known[:1], traced(1.5), 1) == pytest.approx(1.5), "of one it grows with memory"


def test_far_beyond_those_that_have_run_time_is_unknown() -> None:
    known = [step_sample(traced(size), 1.0, 1) for size in (1, 4, 16)]
    assert predicted(known, traced(40), 1) is None
    assert predicted([], traced(8), 1) is None
    assert predicted(known, MemoryEstimate("traced"), 1) is None


def test_a_time_comes_back_from_the_calibrations_file_and_the_latest_counts() -> None:
    service, config = EstimationService(), complete({"batch_size": 8}, Sized.hyperparameters)
    raw = service.raw(Sized(), config, None, CPU)
    service.learn_times(Sized(), None, CPU.name, [(raw, config, 8.0)])
    service.learn_times(Sized(), None, CPU.name, [(raw, config, 2.0), (replace(raw, method="given"), config, 9.0)])
    listed = configurations([config], Sized.hyperparameters)
    (found,) = service.estimate_all(Sized(), listed, None, CPU)
    assert found.raw.epoch_seconds == found.calibrated.epoch_seconds == pytest.approx(2.0)
    (found,) = EstimationService(calibration=False).estimate_all(Sized(), listed, None, CPU)
    assert found.raw.epoch_seconds is None
    assert not service.samples("sized", CPU.name), "peaks are another list"


def test_measured_steps_are_timed_and_a_time_that_fails_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_here(monkeypatch)
    service, config = EstimationService("measured"), complete({}, Sized.hyperparameters)
    seconds = service.raw(Sized(), config, None, CPU).epoch_seconds
    assert seconds is not None and seconds > 0

    def fails(*_: Any) -> None:
        raise RuntimeError("no clock")

    monkeypatch.setattr("tuner.training.rehearsal.epoch_seconds", fails)
    assert service.raw(Sized(), config, None, CPU).epoch_seconds is None
