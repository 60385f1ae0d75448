"""The content of a study's folder, for the page and the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.errors import InputError
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine, read_epochs
from tuner.records.files import ATTEMPTS, EPOCHS, MACHINE, SNAPSHOT
from tuner.records.journal import read_attempts
from tuner.records.machine_log import MachineLine, read_machine
from tuner.records.ranking import best_first
from tuner.records.read_studies import objective_in
from tuner.records.study_record import StudyRecord, read_study
from tuner.reporting.figures.attempt_bars import Bar, to_bars, without_pauses
from tuner.trial import Device, title

Again = Callable[[Attempt], str]


@dataclass(frozen=True)
class StudyView:
    """A study, finished or not."""

    name: str  # the folder's
    record: StudyRecord  # the content of study.json
    attempts: list[Attempt]  # the journal's lines, in order
    rows: list[Attempt]  # the latest attempt of each trial, the best of each workload first
    epochs: list[EpochLine]
    objectives: Mapping[str, Objective]  # what the trials of each workload are compared by
    again: Again  # returns the command that runs a row's trial again
    notes: Sequence[str] = ()  # about what could not be read
    machine: Sequence[MachineLine] = ()  # the load of the study's machine over time
    snapshots: Sequence[str] = ()  # the names of traces in its folder, for PyTorch's memory viewer

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
    def bars(self) -> tuple[list[Bar], list[tuple[float, float]]]:
        """The attempts as bars without long pauses, and these pauses."""
        return without_pauses(to_bars(self.attempts))

    @cached_property
    def trial_names(self) -> dict[str, str]:
        """The name of each trial, by trial id."""
        several, seeds, first = len(self.objectives) > 1, self.record.seeds, self.record.seed or 0
        planned = [
            title("", configuration.name, several=False, seed=seed if seeds > 1 else None)
            for seed in range(first, first + seeds)
            for configuration in self.record.configurations
        ]
        width = max(3, len(str(len(planned))))
        names = {f"t{number:0{width}d}": name for number, name in enumerate(planned, 1)}
        for row in self.rows:
            names[row.trial_id] = title(row.workload, row.name, several=several, seed=row.seed if seeds > 1 else None)
        return names

    def of_workload(self, workload: str) -> list[Attempt]:
        """The rows of one workload, best first."""
        return [row for row in self.rows if row.workload == workload]

    def devices(self) -> list[tuple[Device, int]]:
        """The plan's devices with the bytes that they have for trials."""
        return list(zip(self.record.plan.devices, self.record.plan.budgets, strict=False))


def read_study_view(
    folder: Path, objectives: Mapping[str, Objective] | None, again: Again, where: str = ""
) -> StudyView:
    """Reads the folder of a study, which may be running. Messages begin with ``where``, by default the folder.

    Args:
        folder: the study's.
        objectives: what the trials of each workload are compared by; None for what the study says.
        again: returns the command that runs a row's trial again.
        where: the beginning of messages.

    Raises:
        InputError: it is not the folder of a study, or cannot be read.
    """
    study = read_study(folder, where)
    attempts, notes = read_attempts(folder / ATTEMPTS, study)
    if objectives is None:
        objectives = {name: study.objectives.get(name) or _objective(name, attempts) for name in study.workloads}
    attempts = [row for row in attempts if row.workload in objectives]
    latest = {row.trial_id: row for row in attempts}
    rows = best_first([latest[trial_id] for trial_id in sorted(latest)], objectives)
    return StudyView(
        folder.resolve().name,
        study,
        attempts,
        rows,
        read_epochs(folder / EPOCHS),
        objectives,
        again,
        notes,
        read_machine(folder / MACHINE),
        sorted(file.name for file in folder.glob(f"*{SNAPSHOT}")),
    )


def _objective(workload: str, rows: Sequence[Attempt]) -> Objective:
    """What trials of a study are compared by that does not say it, as an earlier version began it."""
    found = objective_in(workload, rows)
    if not found.metric:
        raise InputError(
            f"report: it is not known what trials of {workload!r} are compared by: no trial has a val_… metric"
        )
    return found
