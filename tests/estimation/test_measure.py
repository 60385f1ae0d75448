from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.support.toy import Toy
from tests.support.worker_process import measure_here
from tuner.errors import WorkloadError
from tuner.estimation.measure import measure
from tuner.machine.devices import ram_device
from tuner.search.configurations import complete
from tuner.trial import MB, Config


class Large(Toy):
    """A toy of 16 MB."""

    def build_model(self, config: Config, data: Any) -> nn.Module:
        model = nn.Sequential(nn.Linear(1, 2000), nn.Linear(2000, 2000), nn.Linear(2000, 1))
        model.register_buffer("fault", super().build_model(config, data).get_buffer("fault"))
        return model


def test_a_step_is_measured_in_a_process_of_its_own() -> None:
    config = complete({}, Large.hyperparameters)
    peak, found = measure(Large(), config, None, ram_device())
    parameters = sum(p.nbytes for p in Large().build_model(config, None).parameters())
    assert found.parameter_bytes == found.gradient_bytes == parameters
    assert found.optimizer_bytes == pytest.approx(2 * parameters, rel=0.001)
    allocated = found.reserved_bytes - found.fragmentation_bytes
    assert allocated > 4 * parameters
    assert peak - found.context_bytes > allocated / 2
    assert 100 * MB < found.context_bytes < 1000 * MB
    assert found.total_bytes == pytest.approx(peak, rel=0.1)


def test_a_step_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_here(monkeypatch)  # that what fails comes out of a process, test_estimate.py shows
    with pytest.raises(WorkloadError, match=r"workload toy: loss failed: ValueError: no such thing \(toy.py, line "):
        measure(Toy(), complete({"fault": 1}, Toy.hyperparameters), None, ram_device())
