"""The rows that figures compare: trials, or configurations by their means if there are several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tuner.records.attempts import CONFIG, Attempt
from tuner.records.seed_statistics import averages
from tuner.records.study_record import Scale
from tuner.reporting.figures.axes import Axis, metric_axis, value_axis
from tuner.reporting.result_tables import has_seeds
from tuner.reporting.study_view import StudyView, mean_id
from tuner.trial import SUCCESSFUL, Objective

DIGITS = 6  # the decimals of a mean, as of trials' metrics


@dataclass(frozen=True)
class Compared:
    """The rows that a workload's figures compare."""

    rows: list[Attempt]  # trials, or configurations with their means; the best first
    trials: list[Attempt]  # the trials behind the means; empty if the rows are trials
    objective: Objective  # what they are compared by, a column of both lists
    trial_metric: str  # the name of a single trial's metric
    noun: str  # "trial" or "configuration"
    scales: Mapping[str, Scale] = field(default_factory=dict)  # of the ranges in the search space

    @property
    def metric(self) -> str:
        """The column's name."""
        return self.objective.metric

    @property
    def median(self) -> str:
        """The name of the metric's median in texts."""
        return f"median of {self.metric}" if self.trials else f"median {self.metric}"

    def axis(self, key: str) -> Axis:
        """A hyperparameter's axis with the positions of ``rows`` and then ``trials``."""
        return value_axis(key, [*self.rows, *self.trials], self.scales.get(key.removeprefix(CONFIG)))

    @property
    def level(self) -> Axis:
        """The metric's axis with the same positions."""
        return metric_axis(self.objective, [*self.rows, *self.trials])


def compared(study: StudyView, workload: str) -> Compared:
    """A workload's successful trials that have the metric, or their configurations if there are several seeds."""
    rows, objective = study.of_workload(workload), study.objectives[workload]
    metric = objective.metric
    done = [row for row in rows if row.status in SUCCESSFUL and row.value(metric) is not None]
    if not has_seeds(rows):
        return Compared(done, [], objective, metric, "trial", study.record.scales)
    done = [row for row in done if row.status == "completed"]  # as in the means
    best = {row.name: row for row in reversed(done)}
    mean = f"mean {metric}"
    means = [
        _with_metric(best[each.name], mean, round(each.interval.mean, DIGITS), mean_id(best[each.name]))
        for each in averages(rows, objective)
        if each.interval
    ]
    trials = [_with_metric(row, mean, row.number(metric)) for row in done]
    return Compared(means, trials, replace(objective, metric=mean), metric, "configuration", study.record.scales)


def _with_metric(row: Attempt, name: str, value: float, trial_id: str = "") -> Attempt:
    return replace(row, trial_id=trial_id or row.trial_id, metrics={**row.metrics, name: value})
