"""The trial of a study that is trained again: which one, what it trained on, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError, ParameterError, did_you_mean, option
from tuner.records.attempts import Attempt
from tuner.records.files import ATTEMPTS, STUDY
from tuner.records.journal import read_attempts
from tuner.records.seed_statistics import best_by_mean
from tuner.records.study_record import StudyRecord, read_study
from tuner.spec.groups import DEFAULT_DATA
from tuner.study.resume import fingerprint
from tuner.study.selection import chosen_before, source_of
from tuner.study.stored_options import CALL
from tuner.trial import ACCUMULATION, Config, Objective
from tuner.workloads.base import Trainable
from tuner.workloads.lookup import WAS_OBJECT, find_workload
from tuner.workloads.protocols import check
from tuner.workloads.task import Selection

if TYPE_CHECKING:
    from tuner.workloads.lookup import WorkloadLike

Losses = Mapping[str, float]  # how good each trial is, by its id: the less, the better
BEST_TRIAL = "best"


@dataclass(frozen=True)
class PastTrial:
    """The last attempt of a trial."""

    folder: Path  # the study's
    study: StudyRecord  # what its ``study.json`` says
    row: Attempt  # the attempt's line in the journal
    objective: Objective  # what the study compared its trials by
    chosen: str = ""  # which it is and why, in words, where it was chosen among several; else empty
    # Into how many micro-batches each of the trial's attempts has divided its batches.
    accumulations: tuple[int, ...] = (1,)
    notes: Sequence[str] = ()  # what could not be read of the study, a line each
    given: Trainable | None = None  # its workload, where the user gave that

    @property
    def workload(self) -> Trainable:
        """What it trained."""
        return self.given or find_workload(self.row.workload, self.study.classes)

    @property
    def config(self) -> Config:
        """Its complete configuration, as it was trained in the end."""
        (choice,) = self._chosen(DEFAULT_DATA)
        values: Config = choice.configurations[0].values
        return values

    @property
    def metrics(self) -> dict[str, float | None]:
        """Its figures, as they are written."""
        return dict(self.row.metrics)

    @property
    def threads(self) -> int:
        """CPU threads that the study's trials computed with."""
        return self.study.plan.threads or 1

    @property
    def source(self) -> str:
        """Where the study had the workload's data."""
        given = (self.study.options or {}).get("data", DEFAULT_DATA)
        assert isinstance(given, (str, Mapping))
        return source_of(given, self.row.workload, self.study.classes) or self.workload.default_data

    def load_data(self, source: str | None) -> object:
        """The data, split as the study had them.

        Raises:
            InputError: they are not there, cannot be read, or do not serve the trial.
        """
        try:
            (choice,) = self._chosen(source or self.source)
            data = choice.load_data()
        except InputError as error:
            if source is not None:
                raise
            raise InputError(
                f"{option('study', str(self.folder))}: its data: {error}; say by {option('data')} where they are now"
            ) from error
        check(choice.workload, choice.configurations, data)
        return data

    def has_data(self, data: object) -> bool:
        """Whether these are the study's data; they may lie in a folder of another name."""
        prints = self.study.fingerprints.get(self.row.workload)
        if prints == fingerprint(data):
            return True
        if not is_dataclass(data) or isinstance(data, type) or not hasattr(data, "name"):
            return False
        return prints == fingerprint(replace(data, name=Path(self.source).name))

    def _chosen(self, source: str) -> list[Selection]:
        name, options = self.row.workload, self.study.options or {}
        skip_bad = bool(options.get("skip_bad")) and self.workload.skips_bad_files
        split_seed = self.study.data_seed
        entry = {**self.row.config, "name": self.row.name}
        return chosen_before([entry], [name], source, split_seed, skip_bad, self.study.classes, [self.workload])


def find_trial(folder: Path, wanted: str, workload: WorkloadLike | None, seed: int | None) -> PastTrial:
    """The trial of a study that is meant: ``wanted`` is "best", a trial's id or the name of a configuration.

    Of a configuration that was trained with several seeds it is the best completed one, unless ``seed`` is one of
    theirs.

    Raises:
        InputError: there is no such study or trial, more than one is meant, or the study's data are not at hand.
    """
    study = read_study(folder, option("study", str(folder)))
    if programs := [each for each in study.workloads if each in study.programs]:
        raise InputError(
            f"{option('study', str(folder))}: {' and '.join(programs)} trains by itself: run it with a trial's "
            "hyperparameters, which tuner results lists"
        )
    if study.options is None:
        what = "options that were not kept" if study.command == CALL else "data that are not at hand here"
        raise InputError(
            f"{option('study', str(folder))}: it was started by {study.command}, with {what}: "
            f"tuner.load_best({str(folder)!r}) gives its best model"
        )
    needed = {"seed": study.seed, "plan": study.plan.threads, "fingerprint": study.fingerprint}
    if missing := [key for key, value in needed.items() if value is None]:
        raise InputError(
            f"{option('study', str(folder))}: its {STUDY} has no {missing[0]!r}: it is of another version of tuner"
        )
    names = study.workloads
    name, given = _named_workload(study, workload)
    if name is not None and name not in names:
        raise InputError(f"{option('workload', name)}: the study in {folder} is of {', '.join(names)}")
    lines, notes = read_attempts(folder / ATTEMPTS, names, some=True)
    attempts = [row for row in lines if name in (None, row.workload)]
    rows = sorted({row.trial_id: row for row in attempts}.values(), key=lambda row: row.trial_id)
    if not rows:
        again = f"continue it with {option('resume', str(folder))}"
        raise ParameterError("study", str(folder), "no trial has ended there yet", again)
    objectives = {
        each: _objective(folder, study, each, given) for each in dict.fromkeys(row.workload for row in rows)
    }
    losses = {row.trial_id: row.loss(objectives[row.workload]) for row in rows}
    if wanted == BEST_TRIAL:
        row, chosen = _best(folder, rows, seed, objectives, losses)
    else:
        row, chosen = _named(folder, rows, wanted, seed, losses)
    mine = [each for each in attempts if each.trial_id == row.trial_id]
    accumulations = tuple(int(each.config.get(ACCUMULATION, 1)) for each in mine)
    return PastTrial(folder, study, row, objectives[row.workload], chosen, accumulations, notes, given)


def _named_workload(study: StudyRecord, wanted: WorkloadLike | None) -> tuple[str | None, Trainable | None]:
    """The name of the workload that is meant, and itself, where it is given and not only named."""
    wanted = next((name for name, spec in study.classes.items() if spec == wanted is not None), wanted)
    if wanted is None or (isinstance(wanted, str) and ":" not in wanted):
        return wanted, None
    found = find_workload(wanted)
    return found.name, found


def _objective(folder: Path, study: StudyRecord, name: str, given: Trainable | None) -> Objective:
    if given is None and study.classes.get(name, "") is None:
        raise InputError(
            f"{option('study', str(folder))}: its workload {name} {WAS_OBJECT}: give it again, from Python: "
            f"tuner.train({str(folder)!r}, workload=…)"
        )
    return study.objectives.get(name) or (given or find_workload(name, study.classes)).objective


def _best(
    folder: Path, rows: Sequence[Attempt], seed: int | None, objectives: Mapping[str, Objective], losses: Losses
) -> tuple[Attempt, str]:
    """A trial of the configuration that is best by its mean, and why it is that one."""
    completed = [row for row in rows if row.status == "completed" and losses[row.trial_id] < math.inf]
    if not completed:
        ids = f"{rows[0].trial_id} ({rows[0].status})"
        raise InputError(
            f"{option('study', str(folder))}: none of its trials is completed; name one by {option('trial')}, such "
            f"as {ids}"
        )
    _one_workload(f"{option('trial')} best", completed)
    best = best_by_mean(completed, objectives[completed[0].workload])
    assert best is not None
    row, which = _of_seeds([each for each in completed if each.name == best.name], seed, losses)
    if len({each.seed for each in completed}) == 1:
        return row, ""
    seeds = f"{len(best.values)} seed{'s' * (len(best.values) != 1)}"
    return row, f"configuration {best.name}, best by mean over {seeds}; {which}"


def _named(
    folder: Path, rows: Sequence[Attempt], wanted: str, seed: int | None, losses: Losses
) -> tuple[Attempt, str]:
    """The trial of this id; else one of this name, and why it is that one."""
    found = [row for row in rows if row.trial_id == wanted] or [row for row in rows if row.name == wanted]
    if not found:
        known = list(dict.fromkeys([*(row.trial_id for row in rows), *(row.name for row in rows)]))
        hint = did_you_mean(wanted, known, f"there are {', '.join(known)}", most=3, cutoff=0.5)
        raise InputError(f"{option('trial', wanted)}: no trial in {folder} has ended that is called so; {hint}")
    _one_workload(option("trial", wanted), found)
    completed = [row for row in found if row.status == "completed" and losses[row.trial_id] < math.inf]
    if len(found) > 1 and seed is None and not completed:
        seeds = ", ".join(str(row.seed) for row in found)
        raise InputError(
            f"{option('trial', wanted)}: it was trained with seeds {seeds}, and no trial of it is completed; "
            f"choose one by {option('seed')}"
        )
    row, which = _of_seeds(found, seed, losses)
    return row, f"configuration {row.name}; {which}" if len(found) > 1 else ""


def _of_seeds(rows: Sequence[Attempt], seed: int | None, losses: Losses) -> tuple[Attempt, str]:
    """Of one configuration's trials that of the seed, else the best completed one; and which it is."""
    if same := next((row for row in rows if row.seed == seed), None):
        return same, f"seed {seed}"
    best = min(rows, key=lambda row: (row.status != "completed", losses[row.trial_id]))
    return best, f"seed {best.seed}" + f", the best of {len(rows)}" * (len(rows) > 1)


def _one_workload(asked: str, rows: Sequence[Attempt]) -> None:
    names = list(dict.fromkeys(row.workload for row in rows))
    if len(names) > 1:
        raise InputError(f"{asked}: there is one of {' and one of '.join(names)}; choose by {option('workload')}")
