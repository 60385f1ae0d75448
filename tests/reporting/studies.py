"""Studies of rows that matter, for tests of figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.attempts import attempt
from tests.support.generated_study import OBJECTIVES
from tuner.records.attempts import Attempt
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import Chart


def rows_of(**columns: list[Any]) -> list[Attempt]:
    """Completed rows with these values of hyperparameters, and the metric ``val_loss``."""
    names = [key if key.startswith("val_") else f"config/{key}" for key in columns]
    return [
        attempt(trial_id=f"t{number}", name=f"n{number}", **dict(zip(names, values, strict=True)))
        for number, values in enumerate(zip(*columns.values(), strict=True))
    ]


def view_of(rows: list[Attempt]) -> RecordedStudy:
    """A study of which nothing but these rows is known."""
    return told(RecordedStudy(Path("nowhere"), "s", rows, objectives=OBJECTIVES), epochs=[], machine=[])


def told(study: RecordedStudy, **facts: Any) -> RecordedStudy:
    """The study with other facts; those of its folder's files are not read."""
    of_files = {name: facts.pop(name) for name in ("epochs", "machine", "snapshots", "is_open") if name in facts}
    other = replace(study, **facts)
    vars(other).update(of_files)
    return other


def points(chart: Chart, mode: str) -> Any:
    """The one trace of a chart that is drawn in this mode."""
    assert chart.plot
    (found,) = (trace for trace in chart.plot.data if trace.mode == mode)
    return found
