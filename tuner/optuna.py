"""Optuna's studies, with tuner running their objectives: packed by memory, capped, and retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.spec.commands import OptunaOptions
from tuner.spec.options import public

if TYPE_CHECKING:
    from tuner.study.result import StudyResult

__all__ = ["optimize"]


@public(OptunaOptions)
def optimize(options: OptunaOptions) -> StudyResult:
    """Runs an Optuna study's trials side by side, each in a process with the memory that it needs.

    What ``study.optimize(objective, n_trials)`` does, with any storage, sampler and pruner. ``study.best_params`` and
    all else that the study says are there afterwards. A trial that runs out of memory is tried again with more, with
    the same suggestions and as the same trial of the study.

    Returns:
        What tuner has recorded of the trials.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    from tuner.study.optuna_trials import run_objective

    return run_objective(options)
