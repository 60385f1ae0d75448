"""Tables of results for a terminal: trials, configurations over their seeds, and the accuracy of estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.records.attempts import Attempt
from tuner.records.row_queries import metric_columns
from tuner.records.seed_statistics import Interval, averages, summary
from tuner.reporting.console import make_table, print_table, print_text
from tuner.reporting.texts import value_text
from tuner.trial import Objective, title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HEADS = {
    "duration_s": "seconds",
    "gpu_fraction": "share",
    "estimated_memory_gb": "estimated",
    "peak_memory_gb": "peak",
}


def results_table(rows: Sequence[Attempt], metric: str, *, seeds: bool = False) -> Table:
    """The trials of one workload in the given order; ``seeds`` adds a column of seeds."""
    from rich.text import Text

    seed, error = ["seed"] * seeds, ["error"] * any(row.error for row in rows)
    tried = ["attempts"] * any(row.attempts > 1 for row in rows)
    shown = ["name", *seed, "status", *tried, *metric_columns(rows, metric), "epochs", *HEADS, *error]
    table = make_table([HEADS.get(column, column) for column in shown], left=("name", "status", "error"))
    for row in rows:
        texts = {column: value_text(column, row.value(column)) for column in shown}
        texts |= {column: f"{text} GB" for column, text in texts.items() if text and column.endswith("_gb")}
        table.add_row(*map(Text, texts.values()))
    return table


def print_averages(console: Console, rows: Sequence[Attempt], objective: Objective) -> None:
    """Prints a workload's configurations over their seeds, and which ones cannot be told from the best."""
    print_table(console, averages_table(rows, objective))
    if finding := summary(averages(rows, objective)):
        print_text(console, finding)


def averages_table(rows: Sequence[Attempt], objective: Objective) -> Table:
    """A row for each configuration of a workload: means with 95 % intervals, and the verdict."""
    from rich.text import Text

    metric = objective.metric
    others = {name: intervals(rows, name) for name in metric_columns(rows, metric) if name != metric}
    means = [f"mean {name}" for name in (metric, *others)]
    table = make_table(["name", *means, "seeds", "to the best", "verdict"], left=("name", "verdict"))
    for each in averages(rows, objective):
        table.add_row(
            Text(each.name),
            interval_text(each.interval),
            *(interval_text(by_name[each.name]) for by_name in others.values()),
            f"{len(each.values)}/{each.seeds}",
            interval_text(each.difference, signed=True),
            each.verdict,
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
