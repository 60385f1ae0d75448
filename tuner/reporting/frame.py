"""The DataFrame of a study's trials that public functions return; a notebook shows it as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tuner.errors import InputError, printable
from tuner.objective import DIRECTIONS, Objective
from tuner.records.attempts import Attempt, attempts_of
from tuner.records.ranking import best_of
from tuner.records.row_queries import default_columns, head
from tuner.reporting.figures.estimates import estimate_against_peak
from tuner.reporting.figures.library import check_plotly
from tuner.reporting.figures.machine import machine_load
from tuner.reporting.figures.optuna_figures import (
    distribution,
    history,
    learning_curves,
    parallel_coordinates,
    slices,
    what_matters,
)
from tuner.reporting.figures.optuna_study import Drawn, drawn
from tuner.reporting.figures.timeline import timeline
from tuner.reporting.result_tables import best_value_text
from tuner.reporting.study_view import StudyView, read_study_view
from tuner.reporting.texts import count_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from torch import nn

FOLDER = "folder"
METRIC = "metric"
DIRECTION = "direction"
OTHERS = "others"  # further objectives, each a metric and its direction
SHOWN_ROWS = 60
SHOWN_COLUMNS = ("workload", "name", "seed", "status", "attempts", "error")  # identify a table of trials


class StudyFrame(pd.DataFrame):
    """A DataFrame with a row for each trial; parts of it are of this class, too.

    ``attrs`` has the study's ``folder``, the ``metric`` that trials are compared by, and its ``direction``.
    """

    @property
    def _constructor(self) -> Callable[..., StudyFrame]:
        return StudyFrame

    @property
    def best(self) -> pd.Series[Any]:
        """The best trial of this table: its row, with the configuration under ``config/…``.

        With several seeds it is the best trial of the configuration with the best mean. That configuration has at
        least two completed seeds, if any has.

        Raises:
            InputError: no trial of this table has the metric, or it is not known what trials are compared by.
        """
        objective = self._objective()
        metric = objective.metric
        if "status" in self and metric not in self and not (self["status"] == "completed").any():
            raise InputError(f"best: no trial of this table has reported {metric}; its column error says why")
        if missing := [name for name in ("name", "seed", "status", metric) if name not in self]:
            raise InputError(f"best: this table has no column {missing[0]!r}: take it of the table with all columns")
        rows = attempts_of(pd.DataFrame(self))
        best = best_of(rows, objective)
        if best is None:
            raise InputError(f"best: no trial of this table has reported {metric}; its column error says why")
        return self.iloc[[row.trial_id for row in rows].index(best.trial_id)]

    def best_model(self) -> nn.Module:
        """The model whose weights the study has kept: of its trial with the best value, in evaluation mode.

        Raises:
            InputError: as ``tuner.load_best``.
        """
        from tuner.records.weights import load_best

        model: nn.Module = load_best(self._about(FOLDER))
        return model

    def plot_curves(self) -> Figure:
        """Learning curves: the validation metric after each epoch.

        Raises:
            InputError: the study's folder cannot be read, or there is nothing to draw; as of every plot.
        """
        return learning_curves(self._drawn()).titled()

    def plot_parallel(self) -> Figure:
        """Parallel coordinates: a line for each trial through its hyperparameters to its metric."""
        return parallel_coordinates(self._drawn()).titled()

    def plot_metric(self) -> Figure:
        """The metric against each hyperparameter that varies."""
        return slices(self._drawn()).titled()

    def plot_importance(self) -> Figure:
        """How much each hyperparameter matters, by Optuna's PED-ANOVA; needs ten completed trials."""
        return what_matters(self._drawn())[0].titled()

    def plot_contour(self) -> Figure:
        """The metric over the two most important hyperparameters."""
        return what_matters(self._drawn())[-1].titled()

    def plot_history(self) -> Figure:
        """Each trial's metric in the order in which trials ended, and the best so far."""
        return history({"": self._drawn()}).titled()

    def plot_distribution(self) -> Figure:
        """The share of completed trials up to each value of the metric."""
        return distribution({"": self._drawn()}).titled()

    def plot_machine(self) -> Figure:
        """The load of the study's machine over time: CPU, RAM and GPUs."""
        return machine_load(self._study()).titled()

    def plot_timeline(self) -> Figure:
        """Every attempt on its device over time, with what it reserved and used, in GB of 2**30 bytes."""
        return timeline(self._study()).titled()

    def plot_memory(self) -> Figure:
        """The estimate of each completed trial's memory against its measured peak, in GB of 2**30 bytes."""
        return estimate_against_peak(self._study()).titled()

    def __repr__(self) -> str:
        """The table as pandas shows it, without what a terminal would obey."""
        return printable(super().__repr__())

    def _repr_html_(self) -> str | None:
        """Pandas' table of the important columns, if this is a table of trials; a selection is shown as it is."""
        if not self.attrs.get(METRIC) or any(name not in self for name in SHOWN_COLUMNS) or self.empty:
            plain: str | None = super()._repr_html_()  # type: ignore[misc]  # the stubs lack it
            return plain
        rows, known, objective = attempts_of(pd.DataFrame(self)), list(self.columns), self._objective()
        shown = [column for column in default_columns(rows, known, objective) if column in known]
        table = pd.DataFrame(self)[shown].rename(columns={column: head(column, known) for column in shown})
        html = table.to_html(max_rows=SHOWN_ROWS, show_dimensions=False, index=False, na_rep="")
        return f'<div style="overflow-x:auto">{html}</div><p>{escape(self._summary(rows))}</p>'

    def _summary(self, rows: Sequence[Attempt]) -> str:
        """How many trials ended in which way, the best one, and the study's folder."""
        counts, objective, folder = Counter(row.status for row in rows), self._objective(), self.attrs.get(FOLDER, "")
        text = f"{count_text(len(rows), 'trial')}: {', '.join(f'{count} {word}' for word, count in counts.items())}"
        if best := best_of(rows, objective):
            text += f" · best: {best.name}, {best_value_text(best, rows, objective)}"
        return text + (f" · {folder}" if folder else "")

    def _drawn(self) -> Drawn:
        study = self._study()
        return drawn(study, next(iter(study.objectives)))

    def _study(self) -> StudyView:
        """The whole study, even if this table has only some of its trials."""
        check_plotly()
        return read_study_view(Path(self._about(FOLDER)), None, lambda _: "")

    def _objective(self) -> Objective:
        others = tuple(Objective(metric, direction) for metric, direction in self.attrs.get(OTHERS, ()))
        return Objective(self._about(METRIC), DIRECTIONS[self.attrs.get(DIRECTION, "minimize")], others)

    def _about(self, key: str) -> str:
        if key not in self.attrs:
            raise InputError(
                f"this table does not say its study's {key}: use the one that was returned, of one workload"
            )
        return str(self.attrs[key])


def study_frame(table: pd.DataFrame, folder: str, objective: Objective) -> StudyFrame:
    """The frame of a study's trials; ``table`` has the columns of ``results.csv``."""
    frame = StudyFrame(table)
    frame.attrs.update({FOLDER: folder, METRIC: objective.metric, DIRECTION: objective.direction})
    if objective.others:
        frame.attrs[OTHERS] = [(other.metric, other.direction) for other in objective.others]
    return frame
