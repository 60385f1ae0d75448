"""Results of studies as text: a table for each workload, how each study stands, and how to have the best again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.api.results import Comparison, again
from tuner.records.attempts import Attempt
from tuner.records.row_queries import head
from tuner.records.seed_statistics import has_seeds
from tuner.reporting.console import line_width
from tuner.reporting.result_tables import (
    ELSEWHERE,
    MOST_ROWS,
    best_value_text,
    print_averages,
    print_lines,
    row_columns,
    rows_left_out,
    trial_lines,
)
from tuner.reporting.texts import table_lines
from tuner.trial import title

if TYPE_CHECKING:
    from rich.console import Console


def print_results(console: Console, found: Comparison, top: int | None = None) -> None:
    """Prints what is shown; on a terminal or with COLUMNS within that width, elsewhere in lines of any length.

    Of more than ``MOST_ROWS`` rows it prints the first, unless the user has asked for the ``top`` ones.
    """
    width = line_width(console)
    for workload, objective in found.objectives.items():
        listed = [row for row in found.shown if row.workload == workload]
        rows = listed[: top or MOST_ROWS]
        if not rows:
            continue
        if len(found.objectives) > 1:
            console.print(workload, style="bold", markup=False)
        of_workload = [row for row in found.rows if row.workload == workload]
        if found.chosen:
            heads = {column: head(column, found.columns) for column in found.chosen}
            lines = table_lines(row_columns(rows, heads, ()), width)
        else:
            elsewhere = f"--columns, {ELSEWHERE}"
            lines = trial_lines(rows, of_workload, found.columns, objective, width, elsewhere=elsewhere)
        print_lines(console, lines)
        if top is None and (fewer := rows_left_out(listed, "--top or --csv")):
            console.out(fewer, highlight=False)
        for group in found.to_average(workload) if objective.metric else []:
            if len({row.name for row in group}) < len(group):
                print_averages(console, group, objective)
    if not found.shown:
        console.out(f"no trial of {len(found.rows)} meets what --where asks for", highlight=False)
    console.out("\n".join([*study_lines(found), *best_lines(found)]), highlight=False)


def study_lines(found: Comparison) -> list[str]:
    """For each study its folder, how many trials ended in which way, and the best value of each workload."""
    several = len(found.studies) > 1
    size = max(map(len, found.studies))
    lines = []
    for label, study in found.studies.items():
        rows = [row for row in found.rows if row.study == label]
        counts = ", ".join(f"{count} {status}" for status, count in Counter(row.status for row in rows).items())
        planned = len(study.record.configurations or rows) * study.record.seeds
        of_all = f"{len(rows)} of {planned}" if planned > len(rows) else f"{len(rows)}"
        trials = f"{of_all} trial{'s' * (max(planned, len(rows)) != 1)}"
        texts = [_best(found, rows, workload) for workload in found.objectives] if several else []
        best = "".join(f"; {text}" for text in texts if text)
        name = f"{label:<{size}}  " if several else ""
        lines.append(f"{name}{study.path}: {trials}: {counts or 'none has ended'}{best}")
    return lines


def best_lines(found: Comparison) -> list[str]:
    """Of each workload the best of the trials that meet the conditions, and how to have it again."""
    lines = []
    for workload, objective in found.objectives.items():
        if row := found.best(found.matching, workload):
            which, name = _called(found, row)
            whose = f" of {row.study}" if len(found.studies) > 1 else ""
            value = best_value_text(row, found.rows, objective)
            lines.append(f"{which}: {name}{whose}, {value}. {again(found, row)}")
    return lines


def _best(found: Comparison, rows: Sequence[Attempt], workload: str) -> str:
    """The best of a study's rows; empty where none has reported the metric."""
    if (row := found.best(rows, workload)) is None:
        return ""
    return f"{' '.join(_called(found, row))}, {best_value_text(row, rows, found.objectives[workload])}"


def _called(found: Comparison, row: Attempt) -> tuple[str, str]:
    """What a best row is, and the name of its trial, with the seed if its study has several."""
    several = has_seeds([own for own in found.rows if (own.study, own.workload) == (row.study, row.workload)])
    name = title(row.workload, row.name, several=len(found.objectives) > 1, seed=row.seed if several else None)
    return "best single trial" if several else "best", name
