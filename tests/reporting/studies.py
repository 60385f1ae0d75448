"""Studies of rows that matter, for tests of figures."""

from __future__ import annotations

from typing import Any

from tests.support.attempts import attempt
from tests.support.generated_study import OBJECTIVES
from tuner.records.attempts import Attempt
from tuner.records.study_record import UNKNOWN
from tuner.reporting.figures.chart import Chart
from tuner.reporting.study_view import StudyView


def rows_of(**columns: list[Any]) -> list[Attempt]:
    """Completed rows with these values of hyperparameters, and the metric ``val_loss``."""
    names = [key if key.startswith("val_") else f"config/{key}" for key in columns]
    return [
        attempt(trial_id=f"t{number}", name=f"n{number}", **dict(zip(names, values, strict=True)))
        for number, values in enumerate(zip(*columns.values(), strict=True))
    ]


def view_of(rows: list[Attempt]) -> StudyView:
    """A study of which nothing but these rows is known."""
    return StudyView("s", UNKNOWN, [], rows, [], OBJECTIVES, lambda _: "")


def points(chart: Chart, mode: str) -> Any:
    """The one trace of a chart that is drawn in this mode."""
    assert chart.plot
    (found,) = (trace for trace in chart.plot.data if trace.mode == mode)
    return found
