"""A study on the disk, ended or not: the source of every table, figure, page and result."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine, read_epochs
from tuner.records.files import ATTEMPTS, EPOCHS, MACHINE, SNAPSHOT, STUDY
from tuner.records.journal import is_open, read_attempts
from tuner.records.machine_log import MachineLine, read_machine
from tuner.records.ranking import best_first, best_of, stands
from tuner.records.study_record import UNKNOWN, StudyRecord, read_study
from tuner.trial import FRONT, Configuration, Device, title
from tuner.workloads.base import BUILT_IN
from tuner.workloads.lookup import find_workload
from tuner.workloads.objectives import is_score
from tuner.workloads.session import LOGS


@dataclass(frozen=True, eq=False)
class RecordedStudy:
    """A study's journal. The other files of its folder are read on first use."""

    path: Path  # its folder, or a CSV file
    name: str  # the folder's or the file's, or the value in the file's column ``study``
    attempts: Sequence[Attempt] = ()  # the journal's lines in order; of a file its rows
    record: StudyRecord = UNKNOWN  # the content of ``study.json``
    objectives: Mapping[str, Objective] = field(default_factory=dict)  # what each workload's trials are compared by
    notes: Sequence[str] = ()  # about what could not be read

    @cached_property
    def rows(self) -> list[Attempt]:
        """The latest attempt of each trial that has ended, each workload's best first."""
        return best_first(self.attempts if self.path.is_file() else latest(self.attempts), self.objectives)

    def of_workload(self, workload: str, among: Collection[str] | None = None) -> list[Attempt]:
        """The rows of one workload, best first; with ``among`` only those with these ids."""
        return [row for row in self.rows if row.workload == workload and (among is None or row.trial_id in among)]

    def best(self, workload: str, among: Collection[str] | None = None) -> Attempt | None:
        """A workload's best trial, perhaps among these ids; None if none has reported the metric."""
        return best_of(self.of_workload(workload, among), self.objectives[workload])

    def no_best(self, workload: str, among: Collection[str] | None = None) -> str:
        """The reason why a workload, or a table of the trials with these ids, has no best trial."""
        subject = "no trial" if among is None else "no trial of this table"
        if wrong := next((row for row in self.of_workload(workload, among) if row.status == "infeasible"), None):
            return f"{subject} meets the constraints: {wrong.error} ({wrong.name})"
        return f"{subject} has reported {self.objectives[workload].metric}; see its column error"

    def front(self, workload: str) -> list[Attempt]:
        """The completed trials that no other dominates; with one objective the best trial."""
        front = [row for row in self.of_workload(workload) if row.metrics.get(FRONT) == 1]
        return front or [row for row in [self.best(workload)] if row]

    @property
    def unkept(self) -> list[Attempt]:
        """Trials that are better than that of ``best.pt``, but whose weights were not kept; ``error`` says why."""
        better: list[Attempt] = []
        for workload, objective in self.objectives.items():
            ranked = [row for row in self.of_workload(workload) if stands(row, objective)]
            better += takewhile(lambda row: not row.weights_kept, ranked)
        return better

    @cached_property
    def epochs(self) -> Sequence[EpochLine]:
        """The reports of its trials in order."""
        return read_epochs(self.path / EPOCHS)

    @cached_property
    def machine(self) -> Sequence[MachineLine]:
        """The load of its machine over time."""
        return read_machine(self.path / MACHINE)

    @cached_property
    def snapshots(self) -> Sequence[str]:
        """The names of traces in its folder, for PyTorch's memory viewer."""
        return sorted(file.name for file in self.path.glob(f"*{SNAPSHOT}"))

    def log(self, trial_id: str) -> Path:
        """The file of what a trial printed, if it did."""
        return self.path / LOGS / f"{trial_id}.log"

    @property
    def total(self) -> int:
        """The number of trials, with those that have not ended."""
        return max(len(self.rows), len(self.record.configurations) * self.record.seeds)

    @property
    def running(self) -> dict[str, EpochLine]:
        """The last line of each trial whose attempt has not ended, by trial id."""
        ended = {(row.trial_id, row.attempts) for row in self.attempts}
        return {line.trial_id: line for line in self.epochs if (line.trial_id, line.attempt) not in ended}

    @cached_property
    def is_open(self) -> bool:
        """Whether a process writes it; the trials of one that was killed do not run."""
        return is_open(self.path / ATTEMPTS)

    @cached_property
    def planned(self) -> dict[str, tuple[Configuration, int]]:
        """The configuration and the seed of each trial, by trial id."""
        first, listed = self.record.seed or 0, self.record.configurations
        pairs = [(one, seed) for seed in range(first, first + self.record.seeds) for one in listed]
        width = max(3, len(str(len(pairs))))
        return {f"t{number:0{width}d}": pair for number, pair in enumerate(pairs, 1)}

    @cached_property
    def trial_names(self) -> dict[str, str]:
        """The name of each trial, by trial id."""
        several, seeds = len(self.objectives) > 1, self.record.seeds
        names = {
            trial_id: title("", one.name, several=False, seed=seed if seeds > 1 else None)
            for trial_id, (one, seed) in self.planned.items()
        }
        for row in self.rows:
            names[row.trial_id] = title(row.workload, row.name, several=several, seed=row.seed if seeds > 1 else None)
        return names

    def devices(self) -> list[tuple[Device, int]]:
        """The plan's devices with the bytes that they have for trials."""
        return list(zip(self.record.plan.devices, self.record.plan.budgets, strict=False))


def open_study(folder: Path, where: str = "", *, some: bool = False, needs_record: bool = False) -> RecordedStudy:
    """The study of a folder, which may be running. Messages begin with ``where``, by default the folder.

    A folder without ``study.json`` has a note, or is refused if it is needed. With ``some`` a journal that has only
    incomplete lines is refused.

    Raises:
        InputError: it is not the folder of a study, or cannot be read.
    """
    has_record = needs_record or (folder / STUDY).exists() or not (folder / ATTEMPTS).is_file()
    record = read_study(folder, where) if has_record else UNKNOWN
    attempts, notes = read_attempts(folder / ATTEMPTS, record, some=some)
    attempts = [_present(row) for row in attempts]
    if not has_record:
        notes.append(f"{folder}: holds no {STUDY}: it is unknown how its trials were run")
    objectives = objectives_in(attempts, record)
    return RecordedStudy(folder, folder.resolve().name, attempts, record, objectives, notes)


def latest(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The latest attempt of each trial, in the order of their ids."""
    by_trial = {row.trial_id: row for row in attempts}
    return [by_trial[trial_id] for trial_id in sorted(by_trial)]


def objectives_in(rows: Sequence[Attempt], record: StudyRecord = UNKNOWN) -> dict[str, Objective]:
    """What the trials of each workload are compared by: the record of a study says it, or it is ``guessed``."""
    names = record.workloads or list(dict.fromkeys(row.workload for row in rows))
    return {name: record.objectives.get(name) or guessed(name, rows) for name in names}


def guessed(workload: str, rows: Sequence[Attempt]) -> Objective:
    """What trials of a table are compared by: a built-in workload's own metric, or the first validation metric there.

    More of it is better if its name says so. Without one the metric is empty.
    """
    if workload in BUILT_IN:
        return find_workload(workload).objective
    metrics = (key for row in rows if row.workload == workload for key in row.metrics)
    metric = next((key for key in metrics if key.startswith("val_")), "")
    return Objective(metric, "maximize" if is_score(metric) else "minimize")


def _present(row: Attempt) -> Attempt:
    """A row without missing metrics."""
    if None not in row.metrics.values():
        return row
    return replace(row, metrics={name: value for name, value in row.metrics.items() if value is not None})
