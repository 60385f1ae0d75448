"""Tables of results for a terminal: trials, configurations over their seeds, and the accuracy of estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.errors import printable
from tuner.records.attempts import CONFIG, Attempt
from tuner.records.row_queries import head, metric_columns
from tuner.records.seed_statistics import Interval, averages, summary
from tuner.reporting.console import make_table, print_table, print_text
from tuner.reporting.figures.axes import varying
from tuner.reporting.texts import MOST_OF_ERROR, value_text
from tuner.trial import Objective, title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEAST_OF_ERROR = 12  # the characters of an error for which other columns are left out
UNLIMITED = 10_000  # the width in columns that a table may have while it is measured
HEADS = {
    "duration_s": "seconds",
    "gpu_fraction": "share",
    "estimated_memory_gb": "estimated",
    "peak_memory_gb": "peak",
}


def best_text(best: Attempt, rows: Sequence[Attempt], objective: Objective) -> str:
    """The value of the best of these rows, and its hyperparameters that vary between them."""
    known = {key: best.value(key) for key in varying(rows)}
    values = [
        f"{key.removeprefix(CONFIG)}={value_text(key, value)}" for key, value in known.items() if value is not None
    ]
    return f"{objective.metric} {best.number(objective.metric):.4f}{' with ' * bool(values)}{', '.join(values)}"


def print_trials(
    console: Console, rows: Sequence[Attempt], metric: str, headline: Sequence[str] = (), *, seeds: bool = False
) -> None:
    """Prints the trials of one workload with its ``headline`` metrics and the hyperparameters that vary."""

    def table_with(shown: Sequence[str], most_of_error: int) -> Table:
        return results_table(rows, metric, shown, headline, seeds=seeds, most_of_error=most_of_error)

    print_fitting(console, table_with, [*reversed(HEADS), *varying(rows)])


def print_fitting(
    console: Console, table_with: Callable[[Sequence[str], int], Table], columns: Sequence[str]
) -> None:
    """Prints a table with as many of the columns as a line has room for, the first ones; errors take what is left.

    ``table_with`` makes it of columns and how much of an error it has.
    """
    shown = list(columns)
    unlimited = console.options.update(max_width=UNLIMITED)
    while shown:
        if console.measure(table_with(shown, LEAST_OF_ERROR), options=unlimited).maximum <= console.width:
            break
        shown.pop()
    print_table(console, table_with(shown, MOST_OF_ERROR))
    if left_out := [HEADS.get(key, key.removeprefix(CONFIG)) for key in columns[len(shown) :]]:
        print_text(console, f"left out, as lines are too long: {', '.join(left_out)}")


def results_table(
    rows: Sequence[Attempt],
    metric: str,
    others: Sequence[str] = tuple(HEADS),
    headline: Sequence[str] = (),
    *,
    seeds: bool = False,
    most_of_error: int = MOST_OF_ERROR,
) -> Table:
    """The trials of one workload in the given order, with ``others`` of hyperparameters and of ``HEADS``.

    ``seeds`` adds a column of seeds.
    """
    from rich.text import Text

    seed, error = ["seed"] * seeds, ["error"] * any(row.error for row in rows)
    tried = ["attempts"] * any(row.attempts > 1 for row in rows)
    shown = [
        "name",
        *seed,
        "status",
        *tried,
        *metric_columns(rows, metric, headline),
        *(column for column in others if column not in HEADS),
        "epochs",
        *(column for column in HEADS if column in others),
        *error,
    ]
    heads = [HEADS.get(column, head(column, shown)) for column in shown]
    table = make_table(heads, left=("name", "status", "error"))
    for row in rows:
        texts = {column: value_text(column, row.value(column)) for column in shown}
        texts |= {column: f"{text} GB" for column, text in texts.items() if text and column.endswith("_gb")}
        if "error" in texts:
            texts["error"] = printable(texts["error"], most_of_error)
        table.add_row(*map(Text, texts.values()))
    return table


def print_averages(
    console: Console,
    rows: Sequence[Attempt],
    objective: Objective,
    hyperparameters: Sequence[str] = (),
    headline: Sequence[str] = (),
) -> None:
    """Prints a workload's configurations over their seeds, and which ones cannot be told from the best."""
    print_fitting(console, lambda shown, _: averages_table(rows, objective, shown, headline), hyperparameters)
    if finding := summary(averages(rows, objective)):
        print_text(console, finding)


def averages_table(
    rows: Sequence[Attempt],
    objective: Objective,
    hyperparameters: Sequence[str] = (),
    headline: Sequence[str] = (),
) -> Table:
    """A row for each configuration of a workload: means with 95 % intervals, the verdict, and hyperparameters."""
    from rich.text import Text

    metric = objective.metric
    others = {name: intervals(rows, name) for name in metric_columns(rows, metric, headline) if name != metric}
    means = [f"mean {name}" for name in (metric, *others)]
    heads = ["name", *means, "seeds", "to the best", "verdict"]
    table = make_table([*heads, *(key.removeprefix(CONFIG) for key in hyperparameters)], left=("name", "verdict"))
    first = {row.name: row for row in reversed(rows)}
    for each in averages(rows, objective):
        table.add_row(
            Text(printable(each.name)),
            interval_text(each.interval),
            *(interval_text(by_name[each.name]) for by_name in others.values()),
            f"{len(each.values)}/{each.seeds}",
            interval_text(each.difference, signed=True),
            each.verdict,
            *(Text(value_text(key, first[each.name].value(key))) for key in hyperparameters),
        )
    return table


def intervals(rows: Sequence[Attempt], metric: str) -> Mapping[str, Interval | None]:
    """The mean of a metric for each configuration of a workload, by name; None if no trial is completed."""
    return {each.name: each.interval for each in averages(rows, Objective(metric))}


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """A mean with half the width of its 95 % interval, if known; empty for None."""
    if interval is None:
        return ""
    mean = f"{interval.mean:+.4f}" if signed else f"{interval.mean:.4f}"
    return mean if interval.half_width is None else f"{mean} ± {interval.half_width:.4f}"


def has_seeds(rows: Sequence[Attempt]) -> bool:
    """Whether trials have several seeds."""
    return len({row.seed for row in rows}) > 1


def estimate_accuracy(rows: Sequence[Attempt]) -> str:
    """The errors of estimates, and the trials that exceeded their shares; empty if no peak is known."""
    measured = [(row, row.peak_memory_gb) for row in rows if row.peak_memory_gb and row.status == "completed"]
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
