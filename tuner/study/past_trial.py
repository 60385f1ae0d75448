"""The trial of a study that is trained again: which one it is, what it was trained on, and the command for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, ParameterError, did_you_mean, joined, option
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.files import STUDY
from tuner.records.recorded_study import RecordedStudy, open_study
from tuner.records.study_record import OPTUNA_CALL, StudyRecord, read_study
from tuner.spec.commands import TrainOptions
from tuner.spec.data_groups import DEFAULT_DATA, given_of
from tuner.spec.listed import chosen_before, source_of
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments, command, in_terminal, program
from tuner.spec.stored_options import CALL, from_stored, functions_of
from tuner.trial import RANKS, Configuration
from tuner.values import to_text
from tuner.workloads.base import Trainable
from tuner.workloads.command_line import SCRIPT, CommandOptions
from tuner.workloads.lookup import WAS_OBJECT, classes_of, find_workload
from tuner.workloads.pickling import fingerprint
from tuner.workloads.program import arguments as arguments_of
from tuner.workloads.script import Command, script_in
from tuner.workloads.session import TRIALS
from tuner.workloads.task import Selection, on_all_data

if TYPE_CHECKING:
    from tuner.workloads.lookup import WorkloadLike

BEST_TRIAL = "best"
# Options that concern the other trials, where results go, and who is told.
ALONE = ("time_limit", "limit", "skip_too_large", "output", "resume", "max_workers", "tensorboard", "mlflow", "wandb")


@dataclass(frozen=True)
class PastTrial:
    """A trial of a study that has ended."""

    folder: Path  # the study's
    study: StudyRecord  # the study's ``study.json``
    row: Attempt  # the trial's last attempt
    objective: Objective  # what the study compared its trials by
    workload: Trainable
    notes: Sequence[str] = ()  # what could not be read of the study, a line each

    @property
    def threads(self) -> int:
        """The number of CPU threads of the study's trials."""
        return self.study.plan.threads or 1

    @property
    def source(self) -> str:
        """Where the workload's data were."""
        given = (self.study.options or {}).get("data", DEFAULT_DATA)
        assert isinstance(given, (str, Mapping))
        return source_of(given, self.row.workload, self.study.classes) or self.workload.default_data

    @property
    def spec(self) -> str | None:
        """The workload as a text that finds it again; None if there is none."""
        return classes_of([self.workload]).get(self.row.workload, self.row.workload)

    @property
    def loading(self) -> Mapping[str, Any]:
        """The options of how the study read the workload's data that were given."""
        given = given_of(self.study.options or {})
        return {name: value for name, value in given.items() if name in self.workload.data_options}

    def selection(self, source: str | None) -> Selection:
        """The trial's last configuration, with data from this source or from the study's own.

        Raises:
            InputError: this version does not know the workload or a hyperparameter any more.
        """
        (chosen,) = chosen_before(
            [Configuration(self.row.name, self.row.config)],
            [self.row.workload],
            source or self.source,
            self.study.data_seed,
            self.loading,
            self.study.classes,
            [self.workload],
        )
        last_epoch = self.study.last_epoch
        return chosen if last_epoch is None else on_all_data(chosen, last_epoch)

    def has_data(self, data: object) -> bool:
        """Whether these are the study's data; their folder may have another name now."""
        digest = self.study.fingerprints.get(self.row.workload)
        if digest == fingerprint(data):
            return True
        if not is_dataclass(data) or isinstance(data, type) or not hasattr(data, "name"):
            return False
        return digest == fingerprint(replace(data, name=Path(self.source).name))


def find_trial(folder: Path, wanted: str, workload: WorkloadLike | None, seed: int | None) -> PastTrial:
    """The trial that ``wanted`` names: "best", a trial's id or the name of a configuration.

    If a configuration has several seeds, it is the trial with ``seed``, else the best one.

    Raises:
        InputError: there is no such study or trial, more than one is meant, or the study's data are not at hand.
    """
    where = option("study", str(folder))
    study = read_study(folder, where)
    _check_repeatable(folder, study)
    name, given = _named_workload(study, workload)
    if name is not None and name not in study.workloads:
        raise InputError(f"{option('workload', name)}: the study in {folder} is of {', '.join(study.workloads)}")
    recorded = open_study(folder, where, some=True)
    by_workload = {key: recorded.of_workload(key) for key in recorded.objectives if name in (None, key)}
    if not any(by_workload.values()):
        remedy = f"continue it with {option('resume', str(folder))}"
        raise ParameterError("study", str(folder), "no trial has ended there yet", remedy)
    meant = _meant(recorded, by_workload, wanted)
    row = next((row for row in meant if row.seed == seed), meant[0])
    if given is None and study.classes.get(row.workload, "") is None:
        raise InputError(
            f"{option('study', str(folder))}: its workload {row.workload} {WAS_OBJECT}: give it again, from Python: "
            f"tuner.train({str(folder)!r}, workload=…)"
        )
    trained = given or find_workload(row.workload, study.classes)
    return PastTrial(folder, study, row, study.objectives[row.workload], trained, recorded.notes)


def _check_repeatable(folder: Path, study: StudyRecord) -> None:
    where = option("study", str(folder))
    if programs := [name for name in study.workloads if name in study.programs]:
        raise InputError(
            f"{where}: {' and '.join(programs)} trains by itself: run it with a trial's hyperparameters, which tuner "
            "results lists"
        )
    if study.options is None:
        what = "options that were not kept" if study.command == CALL else "data that are not at hand here"
        raise InputError(
            f"{where}: it was started by {study.command}, with {what}: tuner.load_best({str(folder)!r}) gives its "
            "best model"
        )
    if unknown := [name for name in study.workloads if name not in study.objectives]:
        raise InputError(f"{where}: {STUDY} has no metric of {unknown[0]}: it is of another version of tuner")


def _named_workload(study: StudyRecord, wanted: WorkloadLike | None) -> tuple[str | None, Trainable | None]:
    """The name of the wanted workload, and the workload itself if it was given as an object or a class."""
    wanted = next((name for name, spec in study.classes.items() if spec == wanted is not None), wanted)
    if wanted is None or (isinstance(wanted, str) and ":" not in wanted):
        return wanted, None
    trainable = find_workload(wanted)
    return trainable.name, trainable


def _meant(study: RecordedStudy, by_workload: Mapping[str, Sequence[Attempt]], wanted: str) -> list[Attempt]:
    """The trial of this id, or the trials of this name or of the best one's name; the best first."""
    rows = [row for listed in by_workload.values() for row in listed]
    meant = [row for row in rows if row.trial_id == wanted] or [row for row in rows if row.name == wanted]
    if wanted == BEST_TRIAL:
        bests = {name: best.name for name in by_workload if (best := study.best(name))}
        meant = [row for row in rows if row.name == bests.get(row.workload)]
    if not meant and wanted == BEST_TRIAL:
        raise InputError(
            f"{option('study', str(study.path))}: none of its trials has reported its metric; name one by "
            f"{option('trial')}, such as {rows[0].trial_id} ({rows[0].status})"
        )
    if not meant:
        names = list(dict.fromkeys([*(row.trial_id for row in rows), *(row.name for row in rows)]))
        hint = did_you_mean(wanted, names, f"there are {', '.join(names)}", most=3, cutoff=0.5)
        raise InputError(f"{option('trial', wanted)}: no trial in {study.path} has ended that is called so; {hint}")
    workloads = list(dict.fromkeys(row.workload for row in meant))
    if len(workloads) > 1:
        trial, named = option("trial", wanted), " and one of ".join(workloads)
        raise InputError(f"{trial}: there is one of {named}; choose by {option('workload')}")
    return meant


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
