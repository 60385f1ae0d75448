"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more.

Nothing heavy is imported before it is used: neither torch nor Ray comes with ``import tuner``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.api.compare import compare
    from tuner.api.estimate import calibrate, estimate
    from tuner.api.export import export
    from tuner.api.fit_footprint import fit_footprint
    from tuner.api.new_workload import new_workload
    from tuner.api.optimize import optimize
    from tuner.api.plan import plan
    from tuner.api.report import report
    from tuner.api.results import results
    from tuner.api.run import run
    from tuner.api.train import train
    from tuner.api.tune_hyperparameters import tune_hyperparameters_parallel
    from tuner.cli.completion import completion
    from tuner.errors import DataError, ExecutionError, InputError, TunerError
    from tuner.estimation.formulas.graphsage import auto_estimate_memory_from_configs, estimate_model_memory
    from tuner.health.doctor import doctor
    from tuner.integrations.ray_tune.wrap import memory_aware
    from tuner.records.weights import load_best
    from tuner.sizing.batch_size_finder.batch_size import compute_batch_size
    from tuner.sizing.batch_size_finder.budget import MemoryBudget
    from tuner.sizing.memory_state import log_memory_state
    from tuner.sizing.transformers.gpu_memory import estimate_gpu_memory_requirements
    from tuner.trial import Hyperparameter, TextHyperparameter
    from tuner.workloads.base import Workload

__all__ = [
    "DataError",
    "ExecutionError",
    "Hyperparameter",
    "InputError",
    "MemoryBudget",
    "TextHyperparameter",
    "TunerError",
    "Workload",
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
    "new_workload",
    "optimize",
    "plan",
    "report",
    "results",
    "run",
    "train",
    "tune_hyperparameters_parallel",
]

MODULES = {
    "tuner.api.tune_hyperparameters": ("tune_hyperparameters_parallel",),
    "tuner.api.run": ("run",),
    "tuner.api.compare": ("compare",),
    "tuner.api.results": ("results",),
    "tuner.errors": ("DataError", "ExecutionError", "InputError", "TunerError"),
    "tuner.api.estimate": ("calibrate", "estimate"),
    "tuner.api.plan": ("plan",),
    "tuner.health.doctor": ("doctor",),
    "tuner.api.report": ("report",),
    "tuner.integrations.ray_tune.wrap": ("memory_aware",),
    "tuner.estimation.formulas.graphsage": ("auto_estimate_memory_from_configs", "estimate_model_memory"),
    "tuner.api.optimize": ("optimize",),
    "tuner.api.export": ("export",),
    "tuner.api.train": ("train",),
    "tuner.cli.completion": ("completion",),
    "tuner.api.fit_footprint": ("fit_footprint",),
    "tuner.sizing.transformers.gpu_memory": ("estimate_gpu_memory_requirements",),
    "tuner.sizing.batch_size_finder.batch_size": ("compute_batch_size",),
    "tuner.sizing.batch_size_finder.budget": ("MemoryBudget",),
    "tuner.sizing.memory_state": ("log_memory_state",),
    "tuner.api.new_workload": ("new_workload",),
    "tuner.trial": ("Hyperparameter", "TextHyperparameter"),
    "tuner.records.weights": ("load_best",),
    "tuner.workloads.base": ("Workload",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("tuner")
    for module, names in MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
