"""The registry of estimators. A new file in ``tuner.estimation.estimators`` is found without further changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeAlias

from tuner.errors import ParameterError
from tuner.estimation import estimators as package
from tuner.estimation.estimator import Estimator
from tuner.trial import MemoryEstimate

Method: TypeAlias = str
"""``AUTO`` or an estimator's name."""
AUTO: Method = "auto"


@cache
def estimators() -> Mapping[str, Estimator]:
    """All estimators by name, in the order in which they are tried."""
    modules = [import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Estimator) and value.__module__ == module.__name__
    ]
    return {cls.name: cls() for cls in sorted(classes, key=lambda cls: cls.order)}


def methods() -> tuple[Method, ...]:
    """The values of ``memory_estimation``."""
    return (AUTO, *estimators())


def check_method(method: Method) -> None:
    """Raises ``ParameterError`` if there is no such method."""
    if method not in methods():
        raise ParameterError("memory_estimation", method, f"choose one of {', '.join(methods())}")


def can_be_calibrated(estimate: MemoryEstimate) -> bool:
    """Whether measured peaks correct this estimate. A calibrated estimate is not corrected again."""
    estimator = estimators().get(estimate.method)
    return estimator is not None and estimator.can_be_calibrated
