"""Optuna's studies, with tuner running their objectives: packed by memory, capped, and retried."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import optuna

from tuner.errors import ParameterError, option
from tuner.records.study_record import OPTUNA_CALL, read_study
from tuner.spec.commands import OptunaOptions
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.study.objective_trials import ObjectiveTrials
from tuner.study.prepare import Selected
from tuner.study.result import StudyResult
from tuner.study.stored_options import to_stored, with_own
from tuner.study.study import run_study
from tuner.trial import Configuration, Direction, Objective
from tuner.workloads.optuna_objective import VALUE, OptunaObjective
from tuner.workloads.task import Selection

__all__ = ["optimize"]


@public(OptunaOptions)
def optimize(options: OptunaOptions) -> StudyResult:
    """Runs an Optuna study's trials side by side, each in a process with the memory that it needs.

    It does what ``study.optimize(objective, n_trials)`` does, with any storage, sampler and pruner. The study then
    has its trials and ``best_params`` as usual. A trial that runs out of memory is tried again with more, with the
    same suggestions and as the same trial of the study.

    Returns:
        What tuner has recorded of the trials.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    study, number = options.study, options.n_trials
    if not isinstance(study, optuna.Study):
        raise ParameterError("study", f"a {type(study).__name__}", "must be an optuna.Study", "optuna.create_study()")
    if number < 1:
        raise ParameterError("n_trials", number, "must be at least 1")
    directions = [cast("Direction", direction.name.lower()) for direction in study.directions]
    names = [VALUE] if len(directions) == 1 else [f"{VALUE}_{place}" for place in range(len(directions))]
    objective = OptunaObjective(options.objective, names)
    listed = [Configuration(f"trial-{place}", {}) for place in range(1, number + 1)]
    settings = Settings.of(options.given())
    if folder := settings.resume:
        settings = with_own(read_study(Path(folder), option("resume", folder)), settings)
        if study.get_trials(deepcopy=False):
            study.sampler.reseed_rng()  # a new sampler with the same seed would repeat its suggestions
    selected = Selected(
        [Selection(objective, lambda: None, listed, Objective(names[0], directions[0]))],
        settings,
        label="optuna",
        command=OPTUNA_CALL,
        options=to_stored(settings),
        optuna=ObjectiveTrials(study, objective),
        shows_end=True,
        from_python=True,
    )
    return run_study(selected)
