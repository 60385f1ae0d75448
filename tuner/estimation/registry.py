"""Every estimator that there is: whoever adds a file to ``tuner.estimation.estimators`` need do nothing else."""

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
    modules = [import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__)]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Estimator) and value.__module__ == module.__name__
    ]
    return {cls.name: cls() for cls in sorted(classes, key=lambda cls: cls.order)}


def methods() -> tuple[Method, ...]:
    """What ``memory_estimation`` may be."""
    return (AUTO, *estimators())


def check_method(method: Method) -> None:
    """Refuses what is no method.

    Raises:
        ParameterError: it is none.
    """
    if method not in methods():
        raise ParameterError("memory_estimation", method, f"choose one of {', '.join(methods())}")


def can_be_calibrated(estimate: MemoryEstimate) -> bool:
    """Whether peaks of finished trials correct such an estimate; one that is calibrated already is not such."""
    estimator = estimators().get(estimate.method)
    return estimator is not None and estimator.can_be_calibrated
