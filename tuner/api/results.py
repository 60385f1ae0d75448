"""Browsing the results of studies: the function behind ``tuner results``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.errors import InputError, printable
from tuner.objective import Objective
from tuner.records.attempts import BLANK, STUDY, Attempt, Line, frame_of
from tuner.records.attempts import columns as csv_columns
from tuner.records.ranking import best_first, best_of
from tuner.records.read_studies import by_data, name_in_study, objective_in, read_together
from tuner.records.recorded_study import RecordedStudy
from tuner.records.row_queries import parse_columns, parse_order, parse_where, sort_rows
from tuner.spec.commands import ResultsOptions
from tuner.spec.options import public
from tuner.study.past_trial import how_to_repeat, values_again
from tuner.values import split_conditions
from tuner.workloads.base import BUILT_IN

if TYPE_CHECKING:
    import pandas as pd

OTHER_DATA = "these studies have different data or splits: their figures may not be comparable"


@dataclass(frozen=True)
class Comparison:
    """Studies side by side."""

    studies: Mapping[str, RecordedStudy]  # by what their rows' column ``study`` says
    # What the trials of each workload are compared by; empty where there is no validation metric.
    objectives: Mapping[str, Objective]
    rows: Sequence[Attempt]  # of all studies, each workload's best first
    matching: Sequence[Attempt]  # the rows that meet the conditions
    shown: Sequence[Attempt]  # the first matching rows of each workload in the order of ``--sort``
    columns: Sequence[str]  # all columns: ``study``, then those of ``results.csv``
    chosen: Sequence[str] | None  # the columns of ``--columns``; None for those that suit the rows
    unread: Sequence[str]  # what could not be read, a line each

    @property
    def notes(self) -> list[str]:
        """What could not be read, and what should not be compared, a line each."""
        others = [
            f"{name}: these studies had other metrics or directions: all are ranked by {by.metric}, {by.direction}d"
            for name, by in self.objectives.items()
            if any(study.record.objectives.get(name, by) != by for study in self.studies.values())
        ]
        records = [study.record for study in self.studies.values()]
        several = (
            name for name in self.objectives if len({one.fingerprints.get(name) for one in records} - {None}) > 1
        )
        return [*self.unread, *(f"{name}: {OTHER_DATA}" for name in several), *others]

    @property
    def names(self) -> Sequence[str]:
        """The columns of ``records``: the chosen ones, else all."""
        return self.columns if self.chosen is None else self.chosen

    def records(self) -> list[Line]:
        """The rows that are shown, each with the same columns; None is what is missing."""
        return [{column: row.value(column) for column in self.names} for row in self.shown]

    def best(self, rows: Sequence[Attempt], workload: str) -> Attempt | None:
        """The best row of a workload among some of ``rows``; None if none has reported the metric."""
        return best_of([row for row in rows if row.workload == workload], self.objectives[workload])

    def to_average(self, workload: str) -> list[list[Attempt]]:
        """All trials of those configurations that have a matching trial, in groups whose means may be compared.

        A mean over the matching trials alone would be biased. With several studies, names include the study's.
        """
        names = {(row.study, row.name) for row in self.matching if row.workload == workload}
        rows = [row for row in self.rows if row.workload == workload and (row.study, row.name) in names]
        if len(self.studies) == 1:
            return [rows]
        groups = by_data(rows, workload, self.studies)
        return [[replace(row, name=name_in_study(row)) for row in group] for group in groups]


@public(ResultsOptions)
def results(options: ResultsOptions) -> pd.DataFrame:
    """The results of studies, a row for each trial: what ``tuner results`` shows.

    Returns:
        ``study``, then the columns of ``results.csv`` (seconds, GB of 2**30 bytes), each of the type of its values,
        also where some are missing. What could not be read of a study is a warning.

    Raises:
        InputError: something given cannot be used, or no attempt has ended yet.
    """
    comparison = side_by_side(options)
    for note in comparison.notes:
        warnings.warn(printable(note), stacklevel=3)
    return frame_of(comparison.shown, comparison.names)


def side_by_side(options: ResultsOptions) -> Comparison:
    """Reads studies and chooses what to show of them."""
    studies, rows, unread = read_together(options.paths)
    columns = [STUDY, *csv_columns(rows, expected=(name for study in studies.values() for name in _expected(study)))]
    objectives = {
        name: objective_in(name, rows, studies.values()) for name in dict.fromkeys(row.workload for row in rows)
    }
    rows = best_first(rows, objectives)
    orders = [parse_order(text, columns) for text in options.sort]
    conditions = [parse_where(part, columns, rows) for text in options.where for part in split_conditions(text)]
    chosen = None if options.columns is None else parse_columns(options.columns, columns)
    matching = [
        row for row in rows if all(condition.holds(row.value(condition.name, BLANK)) for condition in conditions)
    ]
    shown = [
        row
        for name in objectives
        for row in sort_rows([row for row in matching if row.workload == name], orders)[: options.top]
    ]
    return Comparison(studies, objectives, rows, matching, shown, columns, chosen, unread)


def again(comparison: Comparison, row: Attempt) -> str:
    """How to repeat a row's configuration: a command, a call, or the values as options of ``tuner run``."""
    study, name = comparison.studies[row.study], row.workload
    if study.record.known and name in (*BUILT_IN, *study.record.classes):
        of_study = [other for other in comparison.rows if other.study == row.study]
        best = comparison.best(of_study, name)
        kept = best is not None and row.trial_id == best.trial_id and row.weights_kept
        at_hand = study.record.options is not None and study.record.classes.get(name, "") is not None
        if kept or at_hand:
            with suppress(InputError):  # a class that cannot be found from here
                return f"Again: {how_to_repeat(study.record, row, study.path)}"
    return f"Its values: {values_again(row)}"


def _expected(study: RecordedStudy) -> list[str]:
    """The metrics that completed trials of a study have, which are columns before the first of them has ended."""
    metrics = study.record.metrics.values()
    return [*metrics, "best_epoch"] if metrics else []
