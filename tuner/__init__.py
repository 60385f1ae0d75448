"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more.

Nothing heavy is imported before it is used: neither torch nor Ray comes with ``import tuner``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.cli.completion import completion
    from tuner.commands.compare import compare
    from tuner.commands.estimate import calibrate, estimate
    from tuner.commands.export import export
    from tuner.commands.new_workload import new_workload
    from tuner.commands.optimize import optimize
    from tuner.commands.plan import plan
    from tuner.commands.ratings import tune_hyperparameters_parallel
    from tuner.commands.report import report
    from tuner.commands.results import results
    from tuner.commands.run import run
    from tuner.commands.train import train
    from tuner.errors import DataError, ExecutionError, InputError, TunerError
    from tuner.health.doctor import doctor
    from tuner.memory.static import auto_estimate_memory_from_configs, estimate_model_memory
    from tuner.ray_tune.wrap import memory_aware
    from tuner.records.weights import load_best
    from tuner.sizing.any_model.batch_size import compute_batch_size
    from tuner.sizing.any_model.budget import MemoryBudget
    from tuner.sizing.footprints.fitting import fit_footprint
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

_MODULES = {
    "tuner.commands.ratings": ("tune_hyperparameters_parallel",),
    "tuner.commands.run": ("run",),
    "tuner.commands.compare": ("compare",),
    "tuner.commands.results": ("results",),
    "tuner.errors": ("DataError", "ExecutionError", "InputError", "TunerError"),
    "tuner.commands.estimate": ("calibrate", "estimate"),
    "tuner.commands.plan": ("plan",),
    "tuner.health.doctor": ("doctor",),
    "tuner.commands.report": ("report",),
    "tuner.ray_tune.wrap": ("memory_aware",),
    "tuner.memory.static": ("auto_estimate_memory_from_configs", "estimate_model_memory"),
    "tuner.commands.optimize": ("optimize",),
    "tuner.commands.export": ("export",),
    "tuner.commands.train": ("train",),
    "tuner.cli.completion": ("completion",),
    "tuner.sizing.footprints.fitting": ("fit_footprint",),
    "tuner.sizing.transformers.gpu_memory": ("estimate_gpu_memory_requirements",),
    "tuner.sizing.any_model.batch_size": ("compute_batch_size",),
    "tuner.sizing.any_model.budget": ("MemoryBudget",),
    "tuner.sizing.memory_state": ("log_memory_state",),
    "tuner.commands.new_workload": ("new_workload",),
    "tuner.trial": ("Hyperparameter", "TextHyperparameter"),
    "tuner.records.weights": ("load_best",),
    "tuner.workloads.base": ("Workload",),
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
