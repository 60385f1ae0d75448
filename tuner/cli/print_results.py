"""Results of studies as text: a table for each workload, how each study stands, and how to have the best again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from tuner.api.results import Comparison, again
from tuner.errors import joined
from tuner.records.attempts import Attempt
from tuner.records.row_queries import head
from tuner.records.seed_statistics import has_seeds
from tuner.reporting import result_tables
from tuner.reporting.console import line_width
from tuner.reporting.texts import count_text, counted, metric_text, sparkline, table_lines
from tuner.trial import title

if TYPE_CHECKING:
    from rich.console import Console


def print_results(console: Console, compared: Comparison, *, all_rows: bool = False) -> None:
    """Prints what is shown; on a terminal or with COLUMNS within that width, elsewhere in lines of any length.

    Of many rows it prints the first and the last, unless the user has asked for ``all_rows``.
    """
    width = line_width(console)
    for workload, objective in compared.objectives.items():
        listed = [row for row in compared.shown if row.workload == workload]
        rows, fewer = (listed, "") if all_rows else result_tables.head_and_tail(listed, "--all or --csv")
        if not rows:
            continue
        if len(compared.objectives) > 1:
            console.print(workload, style="bold", markup=False)
        of_workload = [row for row in compared.rows if row.workload == workload]
        if compared.chosen:
            heads = {column: head(column, compared.columns) for column in compared.chosen}
            lines = table_lines(result_tables.row_columns(rows, heads, ()), width)
        else:
            elsewhere = f"--columns, {result_tables.ELSEWHERE}"
            lines = result_tables.trial_lines(
                rows, of_workload, compared.columns, objective, width, elsewhere=elsewhere
            )
        result_tables.print_lines(console, lines)
        if fewer:
            console.out(fewer, highlight=False)
        for group in compared.to_average(workload) if objective.metric else []:
            if len({row.name for row in group}) < len(group):
                result_tables.print_averages(console, group, objective)
    if not compared.shown:
        console.out(f"no trial of {len(compared.rows)} meets what --where asks for", highlight=False)
    lines = [*study_lines(compared), *best_lines(compared)]
    if console.is_terminal and console.encoding.startswith("utf"):
        lines += history_lines(compared)
    console.out("\n".join(lines), highlight=False)


def study_lines(compared: Comparison) -> list[str]:
    """For each study its folder, how many trials ended in which way, and the best value of each workload."""
    several = len(compared.studies) > 1
    size = max(map(len, compared.studies))
    lines = []
    for label, study in compared.studies.items():
        rows = [row for row in compared.rows if row.study == label]
        counts = counted(row.status for row in rows)
        planned = len(study.record.configurations or rows) * study.record.seeds
        of_all = f"{len(rows):,} of " if planned > len(rows) else ""
        trials = f"{of_all}{count_text(max(planned, len(rows)), 'trial')}: {counts or 'none has ended'}"
        bests = [_best(compared, rows, workload) for workload in compared.objectives] if several else []
        name = f"{label:<{size}}  " if several else ""
        lines.append(joined(f"{name}{study.path}: {trials}", *bests))
    return lines


def best_lines(compared: Comparison) -> list[str]:
    """Of each workload the best of the trials that meet the conditions, and how to have it again."""
    lines = []
    for workload, objective in compared.objectives.items():
        if row := compared.best(compared.matching, workload):
            which, name = _called(compared, row)
            whose = f" of {row.study}" if len(compared.studies) > 1 else ""
            value = result_tables.best_value_text(row, compared.rows, objective)
            lines.append(f"{which}: {name}{whose}, {value}. {again(compared, row)}")
    return lines


def history_lines(compared: Comparison) -> list[str]:
    """Of each workload a small plot of the best value so far over the trials in the order in which they ended."""
    lines = []
    for workload, objective in compared.objectives.items():
        done = [row for row in compared.matching if row.workload == workload and row.status == "completed"]
        ordered = sorted(done, key=lambda row: (row.ended_at or 0.0, row.trial_id))
        losses = [loss for row in ordered if math.isfinite(loss := row.loss(objective))]
        bests = [objective.loss(loss) for loss in accumulate(losses, min)]
        if len(set(bests)) > 1:
            ends = f"{metric_text(bests[0])} to {metric_text(bests[-1])}"
            lines.append(f"best {objective.metric} so far, {ends}: {sparkline(bests)}")
    return lines


def _best(compared: Comparison, rows: Sequence[Attempt], workload: str) -> str:
    """The best of a study's rows; empty where none has reported the metric."""
    if (row := compared.best(rows, workload)) is None:
        return ""
    value = result_tables.best_value_text(row, rows, compared.objectives[workload])
    return f"{' '.join(_called(compared, row))}, {value}"


def _called(compared: Comparison, row: Attempt) -> tuple[str, str]:
    """What a best row is, and the name of its trial, with the seed if its study has several."""
    several = has_seeds(
        [other for other in compared.rows if (other.study, other.workload) == (row.study, row.workload)]
    )
    name = title(row.workload, row.name, several=len(compared.objectives) > 1, seed=row.seed if several else None)
    return "best single trial" if several else "best", name
