"""Tables of results for a terminal: trials, configurations over their seeds, and the accuracy of estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.errors import printable
from tuner.records.attempts import CONFIG, Attempt
from tuner.records.row_queries import head, metric_columns, varying
from tuner.records.seed_statistics import Interval, averages, summary
from tuner.reporting.columns import TextColumn, table_lines
from tuner.reporting.console import print_text
from tuner.reporting.texts import MOST_OF_ERROR, value_text, with_error
from tuner.trial import Objective, title

if TYPE_CHECKING:
    from rich.console import Console

HEADS = {
    "duration_s": "seconds",
    "gpu_fraction": "share",
    "estimated_memory_gb": "estimated",
    "peak_memory_gb": "peak",
}
LEFT = ("study", "trial_id", "workload", "name", "status", "device", "error")
# The columns that a narrow terminal omits first. Metrics other than the objective follow.
SPARED = ("error", *HEADS, "epochs", "attempts")
ELSEWHERE = "a wider terminal or results.csv"  # what shows the columns that are left out


def best_text(best: Attempt, rows: Sequence[Attempt], objective: Objective) -> str:
    """The best row's value, and those of its hyperparameters that vary between the rows."""
    known = {key: best.value(key) for key in varying(rows)}
    values = [
        f"{key.removeprefix(CONFIG)}={value_text(key, value)}" for key, value in known.items() if value is not None
    ]
    return f"{objective.metric} {best.number(objective.metric):.4f}{' with ' * bool(values)}{', '.join(values)}"


def print_trials(
    console: Console, rows: Sequence[Attempt], metric: str, headline: Sequence[str] = (), *, seeds: bool = False
) -> None:
    """Prints the trials of one workload with its ``headline`` metrics and the hyperparameters that vary."""
    columns = trial_columns(rows, metric, headline, seeds=seeds)
    print_lines(console, table_lines(columns, console.width, ELSEWHERE))


def spared_order(rows: Sequence[Attempt], metrics: Sequence[str]) -> tuple[str, ...]:
    """The order in which a narrow terminal omits columns; ``metrics`` are those other than the objective.

    The column status goes first where all trials are completed. Otherwise it stays, as rows are sorted by it, too.
    """
    says_nothing = all(row.status == "completed" for row in rows)
    return (*["status"] * says_nothing, *SPARED, *metrics)


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Prints a table, its head in bold."""
    first, *others = lines
    console.print(first, style="bold", markup=False, highlight=False, soft_wrap=True)
    if others:
        print_text(console, "\n".join(others))


def trial_columns(
    rows: Sequence[Attempt], metric: str, headline: Sequence[str] = (), *, seeds: bool = False
) -> list[TextColumn]:
    """The trials of one workload in the given order; ``seeds`` adds a column of seeds."""
    metrics = metric_columns(rows, metric, headline)
    shown = [
        "name",
        *["seed"] * seeds,
        "status",
        *["attempts"] * any(row.attempts > 1 for row in rows),
        *metrics,
        *varying(rows),
        "epochs",
        *HEADS,
        *["error"] * any(row.error for row in rows),
    ]
    order = spared_order(rows, metrics[:0:-1])
    heads = {column: HEADS.get(column, head(column, shown)) for column in shown}
    return row_columns(rows, heads, order, unit=" GB")


def row_columns(
    rows: Sequence[Attempt], heads: Mapping[str, str], order: Sequence[str], unit: str = ""
) -> list[TextColumn]:
    """Columns of rows, by their heads.

    ``order`` names those that are left out first; others stay. ``unit`` stands behind sizes of memory.
    """

    def text(column: str, row: Attempt) -> str:
        shown = printable(value_text(column, row.value(column)), MOST_OF_ERROR)
        return f"{shown}{unit}" if shown and column.endswith("_gb") else shown

    return [
        TextColumn(
            printable(shown_as),
            [text(column, row) for row in rows],
            left=column in LEFT,
            spared=order.index(column) + 1 if column in order else 0,
            names=column in ("study", "name"),
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
    print_lines(console, table_lines(average_columns(rows, objective, hyperparameters, headline), console.width))
    if finding := summary(averages(rows, objective)):
        print_text(console, finding)


def average_columns(
    rows: Sequence[Attempt],
    objective: Objective,
    hyperparameters: Sequence[str] = (),
    headline: Sequence[str] = (),
) -> list[TextColumn]:
    """A row for each configuration of a workload: means with 95 % intervals, the verdict, and hyperparameters."""
    metric, listed = objective.metric, averages(rows, objective)
    first = {row.name: row for row in reversed(rows)}
    tried = {key: key.removeprefix(CONFIG) for key in hyperparameters}
    others = {name: intervals(rows, name) for name in metric_columns(rows, metric, headline) if name != metric}
    return [
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


def intervals(rows: Sequence[Attempt], metric: str) -> Mapping[str, Interval | None]:
    """Each configuration's mean of a metric, by name; None for those without a completed trial."""
    return {average.name: average.interval for average in averages(rows, Objective(metric))}


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """A mean with half the width of its 95 % interval, if known; empty for None."""
    return with_error(interval.mean, interval.half_width, signed=signed) if interval else ""


def has_seeds(rows: Sequence[Attempt]) -> bool:
    """Whether trials have several seeds."""
    return len({row.seed for row in rows}) > 1


def measured_rows(rows: Sequence[Attempt], first_shares_gb: Sequence[float]) -> list[Attempt]:
    """The completed rows with a known peak and an estimate.

    A share of ``PlanRecord.first_shares_gb`` is no estimate.
    """
    known = [row for row in rows if row.status == "completed" and row.peak_memory_gb]
    return [row for row in known if row.estimated_memory_gb not in first_shares_gb]


def estimate_accuracy(rows: Sequence[Attempt], first_shares_gb: Sequence[float]) -> str:
    """Summarises the errors of estimates and names trials that exceeded their shares; empty without any."""
    measured = [(row, row.number("peak_memory_gb")) for row in measured_rows(rows, first_shares_gb)]
    if not measured:
        return ""
    errors = [row.estimated_memory_gb / peak - 1 for row, peak in measured]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    median = statistics.median(abs(error) for error in errors)
    under = sum(error < 0 for error in errors)
    several = len({row.workload for row in rows}) > 1
    seeds = len({row.seed for row in rows}) > 1
    names = [title(row.workload, row.name, several=several, seed=row.seed if seeds else None) for row, _ in measured]
    over = [name for name, (row, peak) in zip(names, measured, strict=True) if peak > (row.limit_gb or math.inf)]
    beyond = f"; these took more than was reserved for them: {', '.join(over)}" if over else ""
    return (
        f"estimates: off by {median:.1%} at the median, {errors[worst]:+.1%} at worst ({names[worst]}), "
        f"{under} of {len(errors)} under the peak{beyond}"
    )


def figures_lines(
    here: Mapping[str, float | None], study: Mapping[str, float | None], seeds: tuple[int, int]
) -> list[str]:
    """The metrics of a trial that was trained again, and those in the study. Heads name the seeds if these differ."""
    differ = len(set(seeds)) > 1
    heads = [
        f"{head} (seed {seed})" if differ else head
        for head, seed in zip(("here", "in the study"), seeds, strict=True)
    ]
    names = list(dict.fromkeys([*study, *here]))
    figures = [[_figure(name, given.get(name)) for name in names] for given in (here, study)]
    columns = [TextColumn(head, texts) for head, texts in zip(heads, figures, strict=True)]
    return table_lines([TextColumn("", [printable(name) for name in names], left=True), *columns])


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if name == "best_epoch" else f"{value:.6f}"
