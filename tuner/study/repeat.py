"""How to have a trial of a study again: a command, or a call; a pure function of what is recorded of it."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from pathlib import Path
from types import NoneType

from tuner.records.attempts import Attempt
from tuner.records.study_record import OPTUNA_CALL, StudyRecord
from tuner.spec.commands import TrainOptions
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments, in_terminal
from tuner.study.selection import source_of
from tuner.study.stored_options import from_stored, functions_of
from tuner.trial import arguments as arguments_of
from tuner.workloads.base import Trainable
from tuner.workloads.built_in import is_built_in
from tuner.workloads.lookup import Classes, find_workload
from tuner.workloads.script import SCRIPT, Script

# Of one trial alone: what became of the others, where its results went and who was told.
ALONE = ("time_limit", "limit", "skip_too_large", "output", "resume", "max_workers", "tensorboard", "mlflow", "wandb")


def how_to_repeat(study: StudyRecord, row: Attempt, folder: Path, workload: Trainable | None = None) -> str:
    """The command that runs a trial again; where no command can, the call that gives its study's best model.

    Of a program it is what the trial was: the script's command line, or the function's call.

    What a search suggested depends on what ran beside it, so such a trial is trained again by its record.
    """
    if row.workload in study.programs:
        return _of_program(study, row)
    if study.classes.get(row.workload, "") is None:
        return load_best_call(folder, _constructor(workload))
    if study.options is None:
        return load_best_call(folder)
    settings = from_stored(study.options)
    if (
        functions_of(study.options)
        or settings.search not in (None, "grid")
        or settings.space
        or not isinstance(settings.config, (str, NoneType))
    ):
        return f"{program()} train {shlex.join(arguments(TrainOptions(study=str(folder), trial=row.trial_id)))}"
    return command(of_trial(settings_of_workload(settings, row, study), row, study.plan.threads))


def _of_program(study: StudyRecord, row: Attempt) -> str:
    """The call of a program for its configuration, and the seed, which the call itself does not set."""
    return f"{_call(study, row)}  # tuner seeded it with {row.seed}"


def _call(study: StudyRecord, row: Attempt) -> str:
    spec = study.classes.get(row.workload) or ""
    if study.command == OPTUNA_CALL:
        return f"{row.workload}(optuna.trial.FixedTrial({dict(row.config)}))"
    if not spec.startswith(SCRIPT):
        data = ", data" if functions_of({"data": (study.options or {}).get("data")}) else ""
        return f"{row.workload}({arguments_of(row.config, {})}{data})"
    script = Script.of(spec)
    return shlex.join(["python", os.path.relpath(script.path), *script.command(arguments_of(row.config, {}))])


def of_trial(settings: Settings, row: Attempt, threads: int | None) -> Settings:
    """The study of one trial alone; on the CPU it gives the same figures.

    The number of threads is part of it, since the last digits of a sum depend on that; so is the memory with which
    the trial ended well, if that was more than was asked for.
    """
    seed = row.seed
    split_seed = None if settings.data_seed == seed else settings.data_seed
    memory = settings.given_gb
    if not settings.estimates_memory and memory is not None and row.attempts > 1 and row.limit_gb:
        memory = max(memory, math.ceil(100 * row.limit_gb) / 100)
    alone = {name: settings.default(name) for name in ALONE}
    return settings.changed(
        **alone,
        only=row.name,
        seed=seed,
        seeds=1,
        split_seed=split_seed,
        threads=threads,
        **{settings.given_by: memory},
    )


def settings_of_workload(settings: Settings, row: Attempt, study: StudyRecord) -> Settings:
    """A study's settings as far as they are of one trial: of its workload, and with the batch that it was given."""
    if len(study.workloads) > 1:
        settings = _of_workload(settings, row, study.classes)
    batch = study.auto_batch.get(row.trial_id)
    if batch is None:
        return settings
    key = find_workload(row.workload, study.classes).memory_scales_with  # beside other trials it would be another
    others = [text for text in settings.overrides if text.partition("=")[0] != key]
    return settings.changed(overrides=[*others, f"{key}={batch}"])


def command(settings: Settings) -> str:
    """The command line of a study."""
    return f"{program()} {shlex.join(arguments(settings))}".rstrip()


def program() -> str:
    """The words by which this process's tuner is started again, also where ``tuner`` is not found."""
    found = shutil.which("tuner")  # it may be one of another environment
    if found and Path(found).parent == Path(sys.executable).parent:
        return "tuner"
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return shlex.join([python, "-m", "tuner"])


def load_best_call(folder: Path, workload: str = "") -> str:
    """The call that gives the best model of a study that was started from Python."""
    return f"tuner.load_best({', '.join(filter(None, [repr(str(folder)), workload]))})"


def values_again(row: Attempt) -> str:
    """A configuration's values as options of ``tuner run``, where nothing else is known of its study."""
    return " ".join(in_terminal("overrides", shlex.quote(f"{key}={value}")) for key, value in row.config.items())


def _constructor(workload: Trainable | None) -> str:
    """How an object of the user's own was made, in Python."""
    if workload is None or is_built_in(workload):
        return "…"
    return f"{type(workload).__name__}({'…' if vars(workload) else ''})"


def _of_workload(settings: Settings, row: Attempt, known: Classes) -> Settings:
    """A study's settings, without those that are of other workloads than a row's."""
    name = row.workload
    workload = find_workload(name, known)
    keys = row.config if workload.schema is None else workload.schema  # a row lacks optional keys at their defaults
    return settings.changed(
        workload=known.get(name, name),
        data=source_of(settings.data, name, known),
        overrides=[text for text in settings.overrides if text.partition("=")[0] in keys],
        skip_bad=settings.skip_bad and workload.skips_bad_files,
    )
