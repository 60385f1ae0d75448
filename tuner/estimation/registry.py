"""The table of estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tuner.errors import ParameterError
from tuner.estimation.estimator import Estimator
from tuner.estimation.estimators.learned import LearnedEstimator
from tuner.estimation.estimators.measured import MeasuredEstimator
from tuner.estimation.estimators.static import StaticEstimator
from tuner.estimation.estimators.traced import TracedEstimator
from tuner.trial import MemoryEstimate

Method: TypeAlias = str
"""``AUTO`` or an estimator's name."""
AUTO: Method = "auto"


ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (TracedEstimator(), MeasuredEstimator(), StaticEstimator(), LearnedEstimator())
}
"""By name, in the order in which they are tried."""


def methods() -> tuple[Method, ...]:
    """The values of ``memory_estimation``."""
    return (AUTO, *ESTIMATORS)


def check_method(method: Method) -> Method:
    """The method itself. Raises ``ParameterError`` if there is no such method."""
    if method not in methods():
        raise ParameterError("memory_estimation", method, f"choose one of {', '.join(methods())}")
    return method


def can_be_calibrated(estimate: MemoryEstimate) -> bool:
    """Whether measured peaks correct this estimate. A calibrated estimate is not corrected again."""
    estimator = ESTIMATORS.get(estimate.method)
    return estimator is not None and estimator.can_be_calibrated
