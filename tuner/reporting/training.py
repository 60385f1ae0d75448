"""The progress of one training: a line for each epoch on a terminal, fewer lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.reporting.console import make_table, print_text
from tuner.trial import EpochReport, Objective

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINE_SECONDS = 10.0  # between two lines that are not on a terminal


@dataclass(eq=False)
class TrainingProgress:
    """Prints epochs as they end."""

    console: Console
    objective: Objective  # compares epochs on the validation split
    _began: float = field(default_factory=time.monotonic, init=False)
    _printed: float = field(default_factory=time.monotonic, init=False)
    _best: tuple[float, int] = field(default=(math.nan, 0), init=False)  # value and epoch

    def reported(self, report: EpochReport) -> None:
        """Training has begun, or an epoch has ended. The last epoch always has a line."""
        now = time.monotonic()
        if report.epoch == 0:
            self._began = self._printed = now
            return
        value = report.metrics.get(self.objective.metric)
        if value is not None and self.objective.better(
            value, self._best[0] if self._best[1] else self.objective.worst
        ):
            self._best = value, report.epoch
        ended = report.epoch == report.epochs
        if self.console.is_terminal or ended or now - self._printed >= LINE_SECONDS:
            self._printed = now
            print_text(self.console, self._line(report, now - self._began))

    def _line(self, report: EpochReport, seconds: float) -> str:
        words = [f"epoch {report.epoch:{len(str(report.epochs))}d}/{report.epochs}"]
        words += [
            f"{name} {report.metrics[name]:.4f}"
            for name in ("train_loss", self.objective.metric)
            if name in report.metrics
        ]
        if self._best[1]:
            words.append(f"best {self._best[0]:.4f} in epoch {self._best[1]}")
        left = seconds / report.epoch * (report.epochs - report.epoch)
        words.append(f"about {left:.0f} s left" if left else f"{seconds:.1f} s")
        return ", ".join(words)


def figures_table(
    here: Mapping[str, float | None], study: Mapping[str, float | None], seeds: tuple[int, int]
) -> Table:
    """The metrics of a training beside those of the study's trial; the heads have the seeds if they differ."""
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
