"""The DataFrame of a study's trials that public functions return; a notebook shows it as a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tuner.errors import InputError, printable
from tuner.records.attempts import frame_of
from tuner.records.recorded_study import RecordedStudy, open_study
from tuner.records.row_queries import default_columns, head
from tuner.reporting.figures import optuna_figures
from tuner.reporting.figures.chart import check_plotly
from tuner.reporting.figures.machine import estimate_against_peak, machine_load
from tuner.reporting.figures.optuna_study import Drawn, drawn
from tuner.reporting.figures.timeline import timeline
from tuner.reporting.result_tables import best_value_text
from tuner.reporting.texts import count_text, counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from torch import nn

FOLDER = "folder"
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
            InputError: no trial of this table has the metric, or the study's folder cannot be read.
        """
        study = self._study()
        if "trial_id" not in self:
            raise InputError("best: this table has no column 'trial_id': use the table with all columns")
        (workload,), ids = study.objectives, self["trial_id"].tolist()
        if best := study.best(workload, ids):
            return self.iloc[ids.index(best.trial_id)]
        raise InputError(f"best: {study.no_best(workload, ids)}")

    def best_model(self) -> nn.Module:
        """The model of the study's best trial, in evaluation mode.

        Raises:
            InputError: as ``tuner.load_best``.
        """
        from tuner.records.weights import load_best

        model: nn.Module = load_best(self._folder())
        return model

    def plot_curves(self) -> Figure:
        """Learning curves: the validation metric after each epoch.

        Raises:
            InputError: the study's folder cannot be read, or there is nothing to draw; as of every plot.
        """
        return optuna_figures.learning_curves(self._drawn()).titled()

    def plot_parallel(self) -> Figure:
        """Parallel coordinates: a line for each trial through its hyperparameters to its metric."""
        return optuna_figures.parallel_coordinates(self._drawn()).titled()

    def plot_metric(self) -> Figure:
        """The metric against each hyperparameter that varies."""
        return optuna_figures.slices(self._drawn()).titled()

    def plot_importance(self) -> Figure:
        """How much each hyperparameter matters, by Optuna's PED-ANOVA; needs ten completed trials."""
        return optuna_figures.what_matters(self._drawn())[0].titled()

    def plot_contour(self) -> Figure:
        """The metric over the two most important hyperparameters."""
        return optuna_figures.what_matters(self._drawn())[-1].titled()

    def plot_history(self) -> Figure:
        """Each trial's metric in the order in which trials ended, and the best so far."""
        return optuna_figures.history({"": self._drawn()}).titled()

    def plot_distribution(self) -> Figure:
        """The share of completed trials up to each value of the metric."""
        return optuna_figures.distribution({"": self._drawn()}).titled()

    def plot_machine(self) -> Figure:
        """The load of the study's machine over time: CPU, RAM and GPUs."""
        return machine_load(self._drawable()).titled()

    def plot_timeline(self) -> Figure:
        """Every attempt on its device over time, with what it reserved and used, in GB of 2**30 bytes."""
        return timeline(self._drawable()).titled()

    def plot_memory(self) -> Figure:
        """The estimate of each completed trial's memory against its measured peak, in GB of 2**30 bytes."""
        return estimate_against_peak(self._drawable()).titled()

    def __repr__(self) -> str:
        """The table as pandas shows it, without what a terminal would obey."""
        return printable(super().__repr__())

    def _repr_html_(self) -> str | None:
        """Pandas' table of the important columns, if this is a table of trials; a selection is shown as it is."""
        with suppress(InputError):
            if self.empty or any(name not in self for name in ("trial_id", *SHOWN_COLUMNS)):
                raise InputError("a selection")
            return self._of_trials(self._study())
        plain: str | None = super()._repr_html_()  # type: ignore[misc]  # the stubs lack it
        return plain

    def _of_trials(self, study: RecordedStudy) -> str:
        """The table, and below it how many trials ended in which way, the best one, and the study's folder."""
        (workload,), columns, ids = study.objectives, list(self.columns), set(self["trial_id"])
        objective, rows = study.objectives[workload], study.of_workload(workload, ids)
        shown = [column for column in default_columns(rows, columns, objective) if column in columns]
        table = pd.DataFrame(self)[shown].rename(columns={column: head(column, columns) for column in shown})
        html = table.to_html(max_rows=SHOWN_ROWS, show_dimensions=False, index=False, na_rep="")
        text = f"{count_text(len(self), 'trial')}: {counted(self['status'])}"
        if best := study.best(workload, ids):
            text += f" · best: {best.name}, {best_value_text(best, rows, objective)}"
        text += f" · {self.attrs[FOLDER]}"
        return f'<div style="overflow-x:auto">{html}</div><p>{escape(text)}</p>'

    def _drawn(self) -> Drawn:
        study = self._drawable()
        return drawn(study, next(iter(study.objectives)))

    def _drawable(self) -> RecordedStudy:
        check_plotly()
        return self._study()

    def _study(self) -> RecordedStudy:
        """The whole study, even if this table has only some of its trials."""
        return open_study(Path(self._folder()))

    def _folder(self) -> str:
        if FOLDER not in self.attrs:
            raise InputError(
                "this table does not say its study's folder: use the table that was returned, of a single workload"
            )
        return str(self.attrs[FOLDER])


def study_frame(study: RecordedStudy) -> StudyFrame:
    """The frame of a study's trials, with the columns of ``results.csv``; of one workload it says its folder."""
    frame = StudyFrame(frame_of(study.rows))
    if len(study.objectives) == 1:
        (objective,) = study.objectives.values()
        frame.attrs.update({FOLDER: str(study.path), "metric": objective.metric, "direction": objective.direction})
    return frame
