"""How to run a trial of a study again: the command or the call that is shown with it."""

import os
import shlex
from pathlib import Path
from types import NoneType

from tuner.errors import joined
from tuner.records.attempts import Attempt
from tuner.records.study_record import OPTUNA_CALL, StudyRecord
from tuner.spec.commands import TrainOptions
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments, command, in_terminal, program
from tuner.spec.stored_options import from_stored, functions_of
from tuner.trial import RANKS
from tuner.values import to_text
from tuner.workloads.command_line import SCRIPT, CommandOptions
from tuner.workloads.program import arguments as arguments_of
from tuner.workloads.script import Command, script_in
from tuner.workloads.session import TRIALS

# Options that concern the other trials, where results go, and who is told.
ALONE = ("time_limit", "limit", "skip_too_large", "output", "resume", "max_workers", "tensorboard", "mlflow", "wandb")


def how_to_repeat(study: StudyRecord, row: Attempt, folder: Path) -> str:
    """The command that runs a trial again; of a program its command line or its call.

    If no shorter command would do, it is ``tuner train``; if no command would, the call that loads the best model.
    """
    if row.parent_checkpoint:  # its values have changed as it was trained
        return load_best_call(folder)
    if row.workload in study.programs:
        return _call(study, row, folder)
    if study.options is None or study.classes.get(row.workload, "") is None:
        return load_best_call(folder, "" if study.options is None else "workload=…")
    settings = from_stored(study.options)
    if _is_listed(study, settings) and row.attempts <= 1:
        return command(of_trial(settings, row, study.plan.threads))
    return f"{program()} train {shlex.join(arguments(TrainOptions(study=str(folder), trial=row.trial_id)))}"


def _is_listed(study: StudyRecord, settings: Settings) -> bool:
    """Whether a mode or a file names the trials, with the values that they were trained with."""
    searched = settings.search is not None or settings.space is not None
    several = len(study.workloads) > 1 or bool(study.auto_batch)
    return not (searched or several or functions_of(study.options or {})) and isinstance(
        settings.config, (str, NoneType)
    )


def _call(study: StudyRecord, row: Attempt, folder: Path) -> str:
    """The command line of a script or a command, or the call of a function."""
    ranks = int(row.config.get(RANKS, 1))
    seeded = f"  # tuner seeded it with {row.seed}{f', in each of {ranks} ranks' if ranks > 1 else ''}"
    spec = study.classes.get(row.workload) or ""
    if study.command == OPTUNA_CALL:
        return f"{row.workload}(optuna.trial.FixedTrial({dict(row.config)})){seeded}"
    if not spec.startswith(SCRIPT):
        data = ", data" if functions_of({"data": (study.options or {}).get("data")}) else ""
        called = study.calls.get(row.workload, row.workload)
        return f"{called}({arguments_of(row.config, {})}{data}){seeded}"
    template = (study.options or {}).get("config_template")
    options = CommandOptions(suffix=Path(str(template)).suffix) if template else CommandOptions()
    script = script_in(spec).replaced(options=options)
    variables = script.own(row.trial_id, row.seed, folder / TRIALS / row.trial_id)
    start = [script.start[0], *map(os.path.relpath, script.start[1:])]
    if ranks > 1 and start[0] == "python":
        start[:1] = ["torchrun", "--nproc-per-node", str(ranks)]
    return shlex.join([*start, *script.command(row.config, variables)]) + (
        "" if isinstance(script, Command) else seeded
    )


def of_trial(settings: Settings, row: Attempt, threads: int | None) -> Settings:
    """The study of one trial alone, which gives the same figures on the CPU.

    The number of threads is part of it, as the last digits of a sum depend on that.
    """
    split_seed = None if settings.data_seed == row.seed else settings.data_seed
    alone = {name: settings.default(name) for name in ALONE}
    return settings.changed(**alone, only=row.name, seed=row.seed, seeds=1, split_seed=split_seed, threads=threads)


def load_best_call(folder: Path, workload: str = "") -> str:
    """The call that loads the best model of a study."""
    return f"tuner.load_best({joined(repr(str(folder)), workload, by=', ')})"


def values_again(row: Attempt) -> str:
    """A configuration's values as options of ``tuner run``, if nothing else is known of its study."""
    values = (f"{key}={to_text(value)}" for key, value in row.config.items())
    return " ".join(in_terminal("overrides", shlex.quote(text)) for text in values)
