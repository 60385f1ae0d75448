"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more.

Nothing heavy is imported before it is used: neither torch nor Ray comes with ``import tuner``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.api import run, tune_hyperparameters_parallel
    from tuner.averages import compare
    from tuner.comparison import results
    from tuner.errors import DataError, ExecutionError, InputError, TunerError
    from tuner.estimation import calibrate, estimate
    from tuner.forecast import plan
    from tuner.health.doctor import doctor
    from tuner.memory.static import auto_estimate_memory_from_configs, estimate_model_memory
    from tuner.optimization import optimize
    from tuner.optuna_export import export
    from tuner.pages import report
    from tuner.ray_tune.wrap import memory_aware
    from tuner.retraining.train import train
    from tuner.shell import completion
    from tuner.sizing.any_model.batch_size import compute_batch_size
    from tuner.sizing.any_model.budget import MemoryBudget
    from tuner.sizing.footprints.fitting import fit_footprint
    from tuner.sizing.memory_state import log_memory_state
    from tuner.sizing.transformers.gpu_memory import estimate_gpu_memory_requirements
    from tuner.weights import load_best

__all__ = [
    "DataError",
    "ExecutionError",
    "InputError",
    "MemoryBudget",
    "TunerError",
    "auto_estimate_memory_from_configs",
    "calibrate",
    "compare",
    "completion",
    "compute_batch_size",
    "doctor",
    "estimate",
    "estimate_gpu_memory_requirements",
    "estimate_model_memory",
    "export",
    "fit_footprint",
    "load_best",
    "log_memory_state",
    "memory_aware",
    "optimize",
    "plan",
    "report",
    "results",
    "run",
    "train",
    "tune_hyperparameters_parallel",
]

_MODULES = {
    "tuner.api": ("run", "tune_hyperparameters_parallel"),
    "tuner.averages": ("compare",),
    "tuner.comparison": ("results",),
    "tuner.errors": ("DataError", "ExecutionError", "InputError", "TunerError"),
    "tuner.estimation": ("calibrate", "estimate"),
    "tuner.forecast": ("plan",),
    "tuner.health.doctor": ("doctor",),
    "tuner.pages": ("report",),
    "tuner.ray_tune.wrap": ("memory_aware",),
    "tuner.memory.static": ("auto_estimate_memory_from_configs", "estimate_model_memory"),
    "tuner.optimization": ("optimize",),
    "tuner.optuna_export": ("export",),
    "tuner.retraining.train": ("train",),
    "tuner.shell": ("completion",),
    "tuner.sizing.footprints.fitting": ("fit_footprint",),
    "tuner.sizing.transformers.gpu_memory": ("estimate_gpu_memory_requirements",),
    "tuner.sizing.any_model.batch_size": ("compute_batch_size",),
    "tuner.sizing.any_model.budget": ("MemoryBudget",),
    "tuner.sizing.memory_state": ("log_memory_state",),
    "tuner.weights": ("load_best",),
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
