"""Tables of results for a terminal: trials, configurations over their seeds, and the accuracy of estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.errors import joined, printable
from tuner.objective import Objective
from tuner.records.attempts import BLANK, CONFIG, Attempt, columns, is_blank
from tuner.records.row_queries import default_columns, head, is_metric, metric_columns, varying
from tuner.records.seed_statistics import Interval, averages, some_names, summary
from tuner.reporting.console import print_text
from tuner.reporting.texts import (
    MOST_OF_ERROR,
    TextColumn,
    count_text,
    counted,
    decimals_apart,
    metric_text,
    table_lines,
    value_text,
    with_error,
)
from tuner.trial import FRONT, SUCCESSFUL, title

if TYPE_CHECKING:
    from rich.console import Console

LEFT = ("study", "trial_id", "workload", "name", "status", "device", "error")
# The columns that a narrow terminal omits first. Metrics other than the objective follow. Errors of trials that have
# failed stay, and are cut.
SPARED = ("duration_s", "estimated_memory_gb", "peak_memory_gb", "epochs", "attempts")
HEAD, TAIL = 20, 5  # the first and the last rows that are shown of many, unless all are asked for
MOST_ROWS = 30  # that are all shown
ELSEWHERE = "a wider terminal or results.csv"  # what shows the columns that are left out


def best_text(best: Attempt, rows: Sequence[Attempt], objective: Objective) -> str:
    """The best row's value, and those of its hyperparameters that vary between the rows."""
    config = {key: best.value(key, BLANK) for key in varying(rows)}
    values = [
        f"{key.removeprefix(CONFIG)}={value_text(key, value)}" for key, value in config.items() if not is_blank(value)
    ]
    return f"{best_value_text(best, rows, objective)}{' with ' * bool(values)}{', '.join(values)}"


def best_value_text(best: Attempt, rows: Sequence[Attempt], objective: Objective) -> str:
    """The best row's values with the metrics' names, told apart from those of the other rows, and a bad status."""
    names = [one.metric for one in objective.all]
    apart = {name: decimals_apart(row.number(name) for row in rows) for name in names}
    status = "" if best.status == "completed" else f" ({best.status})"
    return ", ".join(f"{name} {metric_text(best.number(name), apart[name])}" for name in names) + status


def print_trials(
    console: Console, rows: Sequence[Attempt], objective: Objective, headline: Sequence[str] = ()
) -> None:
    """Prints the trials of one workload with its ``headline`` metrics and the hyperparameters that vary."""
    listed, fewer = head_and_tail(rows, "results.csv")
    print_lines(console, trial_lines(listed, rows, columns(rows), objective, console.width, headline))
    if fewer:
        print_text(console, fewer)


def head_and_tail(rows: Sequence[Attempt], elsewhere: str) -> tuple[Sequence[Attempt], str]:
    """The rows that a terminal shows, and how many others ended in which way; an empty text if it shows all."""
    if len(rows) <= MOST_ROWS:
        return rows, ""
    left_out = rows[HEAD:-TAIL]
    what = f"{count_text(len(left_out), 'trial')} between the first {HEAD} and the last {TAIL}"
    return [*rows[:HEAD], *rows[-TAIL:]], (
        f"left out: {what} ({counted(row.status for row in left_out)}), shown by {elsewhere}"
    )


def trial_lines(
    rows: Sequence[Attempt],
    of_all: Sequence[Attempt],
    known_columns: Sequence[str],
    objective: Objective,
    width: int | None,
    headline: Sequence[str] = (),
    elsewhere: str = ELSEWHERE,
) -> list[str]:
    """A table of one workload's trials with those of the ``known`` columns that suit all that it has.

    A narrow terminal omits columns, the status first where all trials are completed: otherwise rows are sorted by it.
    """
    shown, compared = (
        default_columns(of_all, known_columns, objective, headline),
        [one.metric for one in objective.all],
    )
    metrics = [name for name in shown if is_metric(name) and name not in (*compared, FRONT)]
    says_nothing = all(row.status == "completed" for row in rows)
    heads = {column: head(column, known_columns) for column in shown}
    error = ["error"] * all(row.status in SUCCESSFUL for row in rows)
    spared = (*["status"] * says_nothing, *error, *SPARED, *metrics)
    return table_lines(row_columns(rows, heads, spared), width, elsewhere)


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Prints a table, its head in bold."""
    first, *others = lines
    console.print(first, style="bold", markup=False, highlight=False, soft_wrap=True)
    if others:
        print_text(console, "\n".join(others))


def row_columns(rows: Sequence[Attempt], heads: Mapping[str, str], order: Sequence[str]) -> list[TextColumn]:
    """Columns of rows, by their heads; ``order`` names those that are left out first, and others stay."""
    columns = {column: [row.value(column, BLANK) for row in rows] for column in heads}
    decimals = {column: decimals_apart(values) for column, values in columns.items()}
    return [
        TextColumn(
            printable(shown_as),
            [printable(value_text(column, value, decimals[column]), MOST_OF_ERROR) for value in columns[column]],
            left=column in LEFT,
            spared=order.index(column) + 1 if column in order else 0,
            names=column in ("study", "name"),
            is_cut=column == "error",
        )
        for column, shown_as in heads.items()
    ]


def print_averages(
    console: Console,
    rows: Sequence[Attempt],
    objective: Objective,
    hyperparameters: Sequence[str] = (),
    headline: Sequence[str] = (),
) -> None:
    """Prints a workload's configurations over their seeds, and which do not differ significantly from the best."""
    shown, fewer = average_columns(rows, objective, hyperparameters, headline)
    print_lines(console, table_lines(shown, console.width))
    if below := joined(fewer, summary(averages(rows, objective)), by="\n"):
        print_text(console, below)


def average_columns(
    rows: Sequence[Attempt],
    objective: Objective,
    hyperparameters: Sequence[str] = (),
    headline: Sequence[str] = (),
    most: int = MOST_ROWS,
) -> tuple[list[TextColumn], str]:
    """A row for each of a workload's best configurations, and a line that says how many were left out, if any.

    They have means with 95 % intervals, the verdict, and hyperparameters.
    """
    metric, means = objective.metric, averages(rows, objective)
    listed = means[:most]
    fewer = f"left out: the {count_text(len(means) - most, 'configuration')} after these"
    first = {row.name: row for row in reversed(rows)}
    tried = {key: key.removeprefix(CONFIG) for key in hyperparameters}
    names = metric_columns(rows, Objective(metric), headline)
    others = {name: intervals(rows, name) for name in names if name != metric}
    shown = [
        TextColumn("name", [printable(average.name) for average in listed], left=True, names=True),
        TextColumn(f"mean {metric}", [interval_text(average.interval) for average in listed]),
        *(
            TextColumn(f"mean {name}", [interval_text(by_name[average.name]) for average in listed], spared=3)
            for name, by_name in others.items()
        ),
        TextColumn("seeds", [f"{len(average.values)}/{average.seeds}" for average in listed], spared=1),
        TextColumn("to the best", [interval_text(average.difference, signed=True) for average in listed], spared=2),
        TextColumn("verdict", [average.verdict for average in listed], left=True),
        *row_columns([first[average.name] for average in listed], tried, ()),
    ]
    return shown, fewer if len(means) > most else ""


def intervals(rows: Sequence[Attempt], metric: str) -> Mapping[str, Interval | None]:
    """Each configuration's mean of a metric, by name; None for those without a completed trial."""
    return {average.name: average.interval for average in averages(rows, Objective(metric))}


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """A mean with half the width of its 95 % interval, if known; empty for None."""
    return with_error(interval.mean, interval.half_width, signed=signed) if interval else ""


def measured_rows(rows: Sequence[Attempt]) -> list[Attempt]:
    """The completed rows with an estimate and a known peak."""
    return [row for row in rows if row.status == "completed" and row.peak_bytes and row.estimated_bytes is not None]


def estimate_accuracy(rows: Sequence[Attempt]) -> str:
    """Summarises the errors of estimates and names trials that exceeded their shares; empty without any."""
    measured = measured_rows(rows)
    if not measured:
        return ""
    errors = [(row.estimated_bytes or 0) / (row.peak_bytes or 1) - 1 for row in measured]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    median = statistics.median(map(abs, errors))
    several, seeds = len({row.workload for row in rows}) > 1, len({row.seed for row in rows}) > 1
    names = [title(row.workload, row.name, several=several, seed=row.seed if seeds else None) for row in measured]
    over = [
        name
        for name, row in zip(names, measured, strict=True)
        if (row.peak_bytes or 0) > (row.limit_bytes or math.inf)
    ]
    beyond = f"; these took more than was reserved for them: {some_names(over)}" if over else ""
    return (
        f"estimates: off by {median:.1%} at the median, {errors[worst]:+.1%} at worst ({names[worst]}), "
        f"{sum(error < 0 for error in errors)} of {len(errors)} under the peak{beyond}"
    )


def figures_lines(
    here: Mapping[str, float | None], study: Mapping[str, float | None], seeds: tuple[int, int]
) -> list[str]:
    """The metrics of a trial that was trained again, and those in the study. Heads name the seeds if these differ."""
    names = list(dict.fromkeys([*study, *here]))
    shown = [TextColumn("", list(map(printable, names)), left=True)]
    for where, metrics, seed in zip(("here", "in the study"), (here, study), seeds, strict=True):
        heading = f"{where} (seed {seed})" if len(set(seeds)) > 1 else where
        shown.append(TextColumn(heading, [_figure(name, metrics.get(name)) for name in names]))
    return table_lines(shown)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if name == "best_epoch" else metric_text(value, 6)
