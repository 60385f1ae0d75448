"""The content of a study's ``study.json``, and the folder that it stands in."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.decisions.plan import is_tight
from tuner.errors import ParameterError, one_line
from tuner.records.checking import LARGEST_AMOUNT
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import PlanRecord, StudyRecord
from tuner.reporting.console import print_text
from tuner.spec.stored_options import to_stored, with_options
from tuner.study.prepare import Study
from tuner.study.resume import description, listed, with_code, with_more_seeds
from tuner.trial import title
from tuner.workloads.base import Trainable
from tuner.workloads.contract import summarize
from tuner.workloads.lookup import classes_of
from tuner.workloads.pickling import git_revision
from tuner.workloads.program import Function, Program
from tuner.workloads.protocols import OptionalMethods, call
from tuner.workloads.task import TrainingTask, describe

if TYPE_CHECKING:
    from rich.console import Console

MOST_CALL = 300  # characters of a call
PACKAGES = ("torch", "ray", "numpy")


def open_folder(study: Study, console: Console) -> StudyFolder:
    """Opens the folder of ``output`` or ``resume``, or makes a new one under ``results/``."""
    folder = _opened(study, console)
    schemas = {name: task.workload.schema or {} for name, task in study.tasks.items()}
    folder.defaults = {name: {key: spec.default for key, spec in schema.items()} for name, schema in schemas.items()}
    folder.keep, folder.seeds = study.settings.keep, study.settings.seeds
    return folder


def _opened(study: Study, console: Console) -> StudyFolder:
    settings = study.settings
    if settings.resume:
        folder = StudyFolder.resume(Path(settings.resume), study.objectives, settings.seeds)
        if len(folder.attempts()) != len(study.attempts):  # it was not locked when they were read
            folder.close()
            rule = "another run has just written there"
            raise ParameterError("resume", settings.resume, rule, "look at it again")
        for note in folder.notes:
            print_text(console, note)
        return folder
    if settings.output:
        return StudyFolder(Path(settings.output), study.objectives)
    base = Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{'+'.join(study.tasks)}-{study.spec.label}"
    number, path = 1, base
    while True:
        try:
            return StudyFolder(path, study.objectives, new=True)
        except FileExistsError:
            number += 1
            path = base.with_name(f"{base.name}-{number}")


def to_record(study: Study) -> StudyRecord:
    """The content of ``study.json`` from now on.

    Raises:
        InputError: the data cannot be pickled, so that no worker could have them.
    """
    # What a search suggests is in ``suggestions.jsonl``.
    configurations, record = listed(study.trials, several=len(study.tasks) > 1), study.record
    if not study.settings.resume:
        return _new(study)
    record = with_code(with_options(record, study.settings), study.tasks)
    if study.spec.search or len(configurations) > len(record.configurations):
        study_id = study.spec.id or record.id
        return replace(record, configurations=configurations, id=study_id)
    if study.settings.seeds > record.seeds:
        return with_more_seeds(record, study.trials, study.settings.seeds)
    return record


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a study's results depend on."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def _new(study: Study) -> StudyRecord:
    return replace(
        with_code(description(study.tasks, study.trials, study.settings), study.tasks),
        auto_batch=study.sized.by_trial(),
        classes=classes_of([task.workload for task in study.tasks.values()]),
        programs=[name for name, task in study.tasks.items() if isinstance(task.workload, Program)],
        calls={name: call for name, task in study.tasks.items() if (call := _bound(task.workload))},
        scales=study.spec.scales,
        data=describe(study.tasks),
        last_epoch=study.spec.selections[0].last_epoch,
        cautions={name: text for name, task in study.tasks.items() if (text := doubt(task))},
        settings={} if study.spec.options else to_stored(study.settings),
        plan=PlanRecord(
            **vars(study.plan),
            workers=study.plan.workers,
            tight=_tight(study),
            epoch_seconds=_epoch_seconds(study),
            seconds=study.seconds if (study.seconds or 0.0) <= LARGEST_AMOUNT else None,
        ),
        versions=versions(),
        revision=git_revision(Path.cwd()),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        id=study.spec.id,
        command=study.spec.command,
        options=study.spec.options,
    )


def doubt(task: TrainingTask) -> str:
    """The workload's reason why the best trial may not be the best; empty if it has none."""
    try:
        return call(task.workload, OptionalMethods.caution, "", task.data)
    except Exception as error:  # a study is complete all the same
        return f"the workload's method caution failed: {summarize(error)}"


def _epoch_seconds(study: Study) -> dict[str, float]:
    seconds_of = {request.trial.trial_id: request.estimate.epoch_seconds for request in study.estimates.requests}
    return {trial_id: seconds for trial_id, seconds in seconds_of.items() if seconds and seconds <= LARGEST_AMOUNT}


def _tight(study: Study) -> list[str]:
    several = len(study.tasks) > 1
    tight = (request.trial for request in study.requests if is_tight(request.estimate, request.need_bytes))
    return list(dict.fromkeys(title(trial.workload, trial.name, several=several) for trial in tight))


def _bound(workload: Trainable) -> str:
    """How a function with bound arguments is called; empty for other workloads."""
    function = workload.function if isinstance(workload, Function) else None
    if not isinstance(function, partial):
        return ""
    given = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
    return one_line(f"partial({', '.join([workload.name, *given])})", MOST_CALL)
