"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more.

Nothing heavy is imported before it is used: neither torch nor Ray comes with ``import tuner``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.api import load_best, run, tune_hyperparameters_parallel
    from tuner.errors import DataError, ExecutionError, InputError, TunerError
    from tuner.estimation import calibrate, estimate
    from tuner.forecast import plan
    from tuner.memory.static import auto_estimate_memory_from_configs, estimate_model_memory
    from tuner.pages import report

__all__ = [
    "DataError",
    "ExecutionError",
    "InputError",
    "TunerError",
    "auto_estimate_memory_from_configs",
    "calibrate",
    "estimate",
    "estimate_model_memory",
    "load_best",
    "plan",
    "report",
    "run",
    "tune_hyperparameters_parallel",
]

_MODULES = {
    "tuner.api": ("load_best", "run", "tune_hyperparameters_parallel"),
    "tuner.errors": ("DataError", "ExecutionError", "InputError", "TunerError"),
    "tuner.estimation": ("calibrate", "estimate"),
    "tuner.forecast": ("plan",),
    "tuner.pages": ("report",),
    "tuner.memory.static": ("auto_estimate_memory_from_configs", "estimate_model_memory"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("tuner")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
