"""Optuna's studies, with tuner running their objectives: packed by memory, capped, and retried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import optuna

from tuner.decisions.plan import Plan
from tuner.errors import ParameterError, WorkloadError, both_given, option
from tuner.objective import Direction, Objective
from tuner.records.recorded_study import open_study
from tuner.records.study_record import OPTUNA_CALL, UNKNOWN, StudyRecord, read_study
from tuner.spec.commands import OptunaOptions
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.spec.stored_options import to_stored, with_own
from tuner.spec.study_spec import Search, StudySpec
from tuner.study.objective_trials import ObjectiveTrials, check_has_trials
from tuner.study.result import NOT_RUN, StudyResult
from tuner.study.resume import check_same
from tuner.study.study import run_study
from tuner.trial import MOST_TRIALS
from tuner.workloads.optuna_objective import VALUE, OptunaObjective
from tuner.workloads.task import Selection

__all__ = ["optimize"]


@public(OptunaOptions)
def optimize(options: OptunaOptions) -> StudyResult:
    """Runs an Optuna study's trials side by side, each in a process with the memory that it needs.

    It does what ``study.optimize`` does with the same arguments, with any storage, sampler and pruner. The study then
    has its trials and ``best_params`` as usual. A trial that runs out of memory is tried again with more, with the
    same suggestions and as the same trial of the study. With ``n_trials=0`` or less nothing runs or is written,
    and the result is that of the folder to resume, if there is one.

    Returns:
        What tuner has recorded of the trials.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        WorkloadError: a trial raised what ``catch`` does not name.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    study = options.study
    if not isinstance(study, optuna.Study):
        raise ParameterError("study", f"a {type(study).__name__}", "must be an optuna.Study", "optuna.create_study()")
    directions = [cast("Direction", direction.name.lower()) for direction in study.directions]
    names = [VALUE] if len(directions) == 1 else [f"{VALUE}_{place}" for place in range(len(directions))]
    catch = _tuple("catch", Exception if options.catch is None else options.catch, "exception classes", _is_error)
    first, *others = (Objective(name, direction) for name, direction in zip(names, directions, strict=True))
    objective = OptunaObjective(options.objective, names, catch)
    callbacks = _tuple("callbacks", options.callbacks or (), "functions of a study and a trial", callable)
    settings, record = _settings(options)
    recorded = open_study(Path(settings.resume)) if settings.resume else NOT_RUN
    if settings.resume:
        check_same(record, replace(record, workload=objective.name), settings.resume)
        check_has_trials(study, recorded, option("resume", settings.resume))
        study.sampler.reseed_rng()  # a new sampler with the same seed would repeat its suggestions
    if (options.n_trials is not None and options.n_trials <= 0) or options.timeout == 0:  # as Optuna, nothing
        nothing = Plan((), 0, (), "uniform", 0, (), (), (), threads=1, bound="max_workers")
        return StudyResult(nothing, {}, recorded, {objective.name: objective}).with_objects()
    most = options.n_trials or 10 ** max(3, len(str(settings.num_samples))) - 1
    with closing(ObjectiveTrials(study, objective, callbacks, options.timeout, record.id)) as trials:
        spec = StudySpec(
            [Selection(objective, lambda: None, list(record.configurations), replace(first, others=tuple(others)))],
            settings,
            label="optuna",
            command=OPTUNA_CALL,
            options=to_stored(settings),
            search=Search(objective, trials, {}, 1, min(most, MOST_TRIALS), options.n_trials is None, trials.name_of),
            id=trials.id,
            shows_end=True,
            from_python=True,
        )
        result = run_study(spec)
    if trials.fault:
        raise WorkloadError(trials.fault)
    return result


def _settings(options: OptunaOptions) -> tuple[Settings, StudyRecord]:
    """The study's settings, in which ``num_samples`` says how long trial ids are; and what a resumed study was."""
    given = {"fail_fast": options.fail_fast, **options.given()}
    given.pop("callbacks", None)  # they take other arguments
    settings, record, number = Settings.of(given), UNKNOWN, max(0, options.n_trials or 0)
    if options.n_jobs is not None:
        if options.max_workers is not None:
            raise both_given("n_jobs", "max_workers")
        settings = settings.changed(max_workers=None if options.n_jobs == -1 else options.n_jobs)
    if not (folder := settings.resume):
        return settings.changed(num_samples=number or MOST_TRIALS), record
    record = read_study(Path(folder), option("resume", folder))
    settings = with_own(record, settings)
    has = len(record.configurations)
    planned = settings.num_samples or has
    most = 10 ** max(3, len(str(planned))) - 1  # more would have longer ids
    if number and not has <= number <= most:
        remedy = f"give {has + number} for {number} more, or 0 for none" if number < has else f"give at most {most}"
        raise ParameterError("n_trials", number, f"{folder} has {has}, and they count, too", remedy)
    return settings.changed(num_samples=max(planned, number)), record


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _tuple(name: str, given: object, what: str, allowed: Callable[[object], bool]) -> tuple[Any, ...]:
    """What is given, one or several, as a tuple."""
    values = tuple(given) if isinstance(given, Iterable) else (given,)
    if wrong := [value for value in values if not allowed(value)]:
        raise ParameterError(name, wrong[0], f"must be {what}")
    return values
