"""Compares the metrics of a trial that was trained again with those in the study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tuner.reporting.console import make_table

if TYPE_CHECKING:
    from rich.table import Table


def figures_table(
    here: Mapping[str, float | None], study: Mapping[str, float | None], seeds: tuple[int, int]
) -> Table:
    """A table of the metrics here and in the study. Its heads name the seeds if these differ."""
    heads = ("here", "in the study")
    if len(set(seeds)) > 1:
        heads = (f"here (seed {seeds[0]})", f"in the study (seed {seeds[1]})")
    table = make_table(("", *heads), left=("",))
    for name in dict.fromkeys([*study, *here]):
        table.add_row(name, *(_number(figures, name) for figures in (here, study)))
    return table


def _number(figures: Mapping[str, float | None], name: str) -> str:
    value = figures.get(name)
    if value is None:
        return ""
    return str(int(value)) if name == "best_epoch" else f"{value:.6f}"
