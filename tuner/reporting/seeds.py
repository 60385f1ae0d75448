"""Configurations over their seeds, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.records.attempts import Attempt
from tuner.records.row_queries import metric_columns
from tuner.records.seed_statistics import Interval, averages, summary
from tuner.reporting.console import print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_averages(console: Console, rows: Sequence[Attempt], metric: str) -> None:
    """A workload's configurations over their seeds, and which of them cannot be told from the best.

    Args:
        console: where to write.
        rows: the workload's trials, of several seeds.
        metric: what they are compared by.
    """
    print_table(console, averages_table(rows, metric))
    if said := summary(averages(rows, metric)):
        console.print(said, markup=False, soft_wrap=True, highlight=False)


def averages_table(rows: Sequence[Attempt], metric: str) -> Table:
    """One line for each configuration of a workload: means with their 95 % intervals, and the verdict.

    Args:
        rows: the workload's trials, of several seeds.
        metric: what they are compared by.
    """
    from rich.table import Table
    from rich.text import Text

    found = averages(rows, metric)
    others = {name: intervals(rows, name) for name in metric_columns(rows, metric) if name != metric}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("name", f"mean {metric}", *(f"mean {name}" for name in others), "seeds", "to the best", "verdict"):
        table.add_column(head, justify="left" if head in ("name", "verdict") else "right")
    for each in found:
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
    """The mean of a metric for each configuration of a workload, by name; None where no trial is completed."""
    return {each.name: each.interval for each in averages(rows, metric)}


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """A mean with half the width of its 95 % interval, as far as that is known; empty for None."""
    if interval is None:
        return ""
    mean = f"{interval.mean:+.4f}" if signed else f"{interval.mean:.4f}"
    return mean if interval.half_width is None else f"{mean} ± {interval.half_width:.4f}"


def has_seeds(rows: Sequence[Attempt]) -> bool:
    """Whether trials have several seeds."""
    return len({row.seed for row in rows}) > 1
