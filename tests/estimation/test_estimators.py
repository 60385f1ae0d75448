from __future__ import annotations

from typing import Any

import pytest

from tests.support.toy import Toy
from tuner.errors import InputError, ParameterError
from tuner.estimation.estimators import ESTIMATORS, Estimator, can_be_calibrated, methods
from tuner.estimation.service import EstimationService
from tuner.search.configurations import complete
from tuner.trial import GB, Config, Device, MemoryEstimate

CPU = Device("", "cpu", 0, "a machine", 16 * GB, 16 * GB, cores=2)


class Guess(Estimator):
    """Serves configurations of more than one epoch."""

    name = "guessed"
    can_be_calibrated = True

    def estimate(
        self, workload: Any, config: Config, data: object, device: Device, **options: bool
    ) -> MemoryEstimate:
        """A GB of activations."""
        if config["epochs"] == 1:
            raise InputError("one epoch is too few")
        return MemoryEstimate("guessed", activation_bytes=GB)


@pytest.fixture
def fifth_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row more in the table of estimators, the first one."""
    rows = {"guessed": Guess(), **ESTIMATORS}
    for module in ("estimators", "service"):
        monkeypatch.setattr(f"tuner.estimation.{module}.ESTIMATORS", rows)


def test_there_are_four_estimators_and_auto() -> None:
    assert methods() == ("auto", "traced", "measured", "static", "learned")


@pytest.mark.usefixtures("fifth_estimator")
def test_a_row_more_is_an_estimator_more() -> None:
    assert methods() == ("auto", "guessed", "traced", "measured", "static", "learned")
    config = complete({}, Toy.hyperparameters)
    assert EstimationService("guessed").raw(Toy(), config, None, CPU).method == "guessed"
    assert EstimationService().raw(Toy(), config, None, CPU).activation_bytes == GB
    assert can_be_calibrated(MemoryEstimate("guessed"))


@pytest.mark.usefixtures("fifth_estimator")
def test_where_it_cannot_be_used_the_next_is_and_that_is_said() -> None:
    found = EstimationService("guessed").raw(Toy(), complete({"epochs": 1}, Toy.hyperparameters), None, CPU)
    assert (found.method, found.note) == ("traced", "not guessed: one epoch is too few")


@pytest.mark.parametrize(
    ("method", "expected"),
    [("traced", True), ("traced, calibrated", False), ("measured", False), ("static", False), ("given", False)],
)
def test_only_an_estimate_that_is_off_by_the_same_everywhere_is_calibrated(method: str, expected: bool) -> None:
    assert can_be_calibrated(MemoryEstimate(method)) == expected


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ParameterError, match=f"memory_estimation='guessed': choose one of {', '.join(methods())}"):
        EstimationService("guessed")
