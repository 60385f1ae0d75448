"""The trial of a study that is trained again: which one it is, and what it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, ParameterError, did_you_mean, option
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.files import STUDY
from tuner.records.recorded_study import RecordedStudy, open_study
from tuner.records.study_record import StudyRecord, read_study
from tuner.spec.data_groups import DEFAULT_DATA, given_of
from tuner.spec.listed import chosen_before, source_of
from tuner.spec.stored_options import CALL
from tuner.trial import Configuration
from tuner.workloads.base import Trainable
from tuner.workloads.fingerprint import fingerprint
from tuner.workloads.lookup import WAS_OBJECT, classes_of, find_workload
from tuner.workloads.task import Selection, on_all_data

if TYPE_CHECKING:
    from tuner.workloads.lookup import WorkloadLike

BEST_TRIAL = "best"


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
