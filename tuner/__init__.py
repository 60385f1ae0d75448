"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more.

Nothing heavy is imported before it is used: neither torch nor Ray comes with ``import tuner``. Types are in the stub
beside this file, which ``scripts/generate`` makes.
"""

from __future__ import annotations

import importlib

MODULES = {
    "tuner.api.run": ("run", "tune_hyperparameters_parallel"),
    "tuner.api.compare": ("compare",),
    "tuner.api.results": ("results",),
    "tuner.errors": ("DataError", "ExecutionError", "InputError", "TunerError"),
    "tuner.api.estimate": ("calibrate", "estimate"),
    "tuner.api.plan": ("plan",),
    "tuner.health.doctor": ("doctor",),
    "tuner.health.status": ("status",),
    "tuner.api.report": ("write_report",),
    "tuner.api.inside_trial": ("checkpoint", "report", "trial_dir"),
    "tuner.integrations.ray_tune.wrap": ("memory_aware",),
    "tuner.estimation.graphsage_formula": ("auto_estimate_memory_from_configs", "estimate_model_memory"),
    "tuner.api.optimize": ("optimize",),
    "tuner.api.export": ("export",),
    "tuner.api.train": ("train",),
    "tuner.sizing.transformers.gpu_memory": ("estimate_gpu_memory_requirements",),
    "tuner.sizing.batch_size_finder.batch_size": ("compute_batch_size",),
    "tuner.sizing.memory_state": ("MemoryBudget", "log_memory_state"),
    "tuner.hyperparameters": ("Hyperparameter", "TextHyperparameter"),
    "tuner.records.weights": ("load_best",),
    "tuner.workloads.base": ("Workload",),
}
_HOMES = {name: module for module, names in MODULES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata

        from tuner.errors import DISTRIBUTION

        return metadata.version(DISTRIBUTION)
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
