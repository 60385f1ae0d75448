from __future__ import annotations

import pytest

from tests.support.toy import Toy
from tests.support.worker_process import measure_here
from tuner.datasets.ratings import RatingData
from tuner.errors import WorkloadError
from tuner.estimation.measure import measure
from tuner.machine.devices import ram_device
from tuner.search.configurations import complete
from tuner.trial import MB
from tuner.workloads.graphsage.workload import GraphSAGE


def test_a_step_is_measured_in_a_process_of_its_own(ratings: RatingData) -> None:
    config = complete({"hidden_dim": 512}, GraphSAGE.hyperparameters)
    peak, found = measure(GraphSAGE(), config, ratings, ram_device())
    parameters = sum(p.nbytes for p in GraphSAGE().build_model(config, ratings).parameters())
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
