"""A workload's successful trials as an Optuna study in memory, of which Optuna draws figures.

Trials that failed or ran out of memory are listed beside it. With several seeds, each trial is by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.objective import Objective
from tuner.records.attempts import CONFIG, Attempt
from tuner.records.epochs import EpochLine, histories
from tuner.records.optuna_space import frozen_trials, is_finite, quiet
from tuner.records.recorded_study import RecordedStudy
from tuner.records.row_queries import varying
from tuner.records.seed_statistics import has_seeds
from tuner.reporting.figures.chart import MOST_POINTS, padded_range, plain, some_drawn, thinned
from tuner.reporting.texts import count_text
from tuner.trial import SUCCESSFUL, ConfigValue

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

DRAWN = ("completed", "pruned")  # the statuses of trials that figures are of
MOST_KEYS = 12  # hyperparameters that are drawn
MOST_LINES = 60  # trials of figures that have a line for each; a browser is slow with more


class _Label(str):
    """A value that is not a number: Optuna shows it by ``repr``, which is its text, without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True)
class Drawn:
    """A workload's successful trials as Optuna studies. All names in them are escaped."""

    study: Study  # completed and pruned trials, in the order in which they ended: at most about MOST_POINTS
    shown: Study  # with running trials, but at most MOST_LINES; the best is last
    completed: Sequence[Attempt]  # those with the metric, the best first
    names: Mapping[str, str]  # of trials, by trial id
    objective: Objective
    keys: Sequence[str]  # the hyperparameters that vary, at most MOST_KEYS
    about: str  # a sentence about several seeds; empty with one
    lost: Sequence[Attempt]  # those that ended without a result
    ended: Mapping[str, int]  # the place of each completed or pruned trial in the order of their ends, from 1

    @property
    def metric(self) -> str:
        """The metric's name, escaped."""
        return plain(self.objective.metric)

    def trials(self) -> list[FrozenTrial]:
        """The trials of ``study``, by their numbers."""
        trials: list[FrozenTrial] = self.study.get_trials(deepcopy=False)
        return trials

    @property
    def left_out(self) -> str:
        """A sentence on how many trials are points; empty if all are."""
        return some_drawn(len(self.trials()), len(self.ended), "the best ones and others evenly spaced by rank")

    def lines(self) -> list[FrozenTrial]:
        """The completed trials of ``shown``."""
        return [trial for trial in self.shown.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]

    def value_range(self) -> list[float]:
        """The range of the metric's axis, without a few very bad values."""
        return padded_range([row.number(self.objective.metric) for row in self.completed], self.objective)

    def beyond(self, values: Iterable[float], what: str, span: Sequence[float] = ()) -> str:
        """A sentence on how many of these values the metric's axis leaves out; empty if none."""
        low, high = span or self.value_range()
        outside = sum(not low <= value <= high for value in values)
        verb = "is" if outside == 1 else "are"
        return f" {count_text(outside, what)} {verb} so bad that the axis ends before." if outside else ""

    def what_is_missing(self) -> str:
        """Why there is nothing to compare; empty if there is something."""
        if not self.completed:
            return f"No trial has ended with a {self.objective.metric} yet, so there is nothing to compare."
        if len(self.completed) == 1:
            return "Only one trial was successful, so there is nothing to compare."
        values = [row.number(self.objective.metric) for row in self.completed]
        if math.isinf(max(values) - min(values)):
            return f"The values of {self.objective.metric} are too far apart to be compared."
        return "" if self.keys else "All trials have the same hyperparameters, so there is nothing to compare."


def drawn(study: RecordedStudy, workload: str, by: Objective | None = None, most: int = MOST_POINTS) -> Drawn:
    """A workload's trials for figures ``by`` one of its objectives, by default the first; about ``most`` points."""
    objective, rows = by or study.objectives[workload], study.of_workload(workload)
    if by and by.metric != study.objectives[workload].metric:
        rows = sorted(rows, key=lambda row: (row.status != "completed", row.loss(by)))
    rows = [row for row in rows if row.status in DRAWN and math.isfinite(row.number(objective.metric))]
    completed = [row for row in rows if row.status == "completed"]
    keys = [plain(key.removeprefix(CONFIG)) for key in varying(completed)]
    record = replace(study.record, scales={plain(key): scale for key, scale in study.record.scales.items()})
    ordered = sorted(rows, key=lambda row: (row.ended_at or 0.0, row.trial_id))
    curves = histories(study.epochs)
    points = {row.trial_id for row in [*subset(rows, most), *thinned(_improving(ordered, objective), most)]}
    some = [row for row in ordered if row.trial_id in points]
    trials = frozen_trials([_escaped(row) for row in some], keys, replace(objective, others=()), curves, record)
    by_id = {row.trial_id: trial for row, trial in zip(some, trials, strict=True)}
    best = [by_id[row.trial_id] for row in subset([row for row in rows if row.trial_id in points], MOST_LINES)]
    return Drawn(
        _in_memory(study.name, objective, trials),
        _in_memory(study.name, objective, [*_running(study, objective.metric, curves), *reversed(best)]),
        completed,
        {trial_id: plain(name) for trial_id, name in study.trial_names.items()},
        objective,
        keys[:MOST_KEYS],
        " Configurations have several seeds; each trial is drawn." if has_seeds(rows) else "",
        [row for row in study.of_workload(workload) if row.status not in (*SUCCESSFUL, "interrupted", "paused")],
        {row.trial_id: place for place, row in enumerate(ordered, 1)},
    )


def _improving(ordered: Sequence[Attempt], objective: Objective) -> list[Attempt]:
    """The completed trials that were better than all before them."""
    better, least = list[Attempt](), math.inf
    for row in ordered:
        if row.status == "completed" and row.loss(objective) < least:
            better.append(row)
            least = row.loss(objective)
    return better


def subset(ranked: Sequence[Attempt], most: int, best: int = 10) -> list[Attempt]:
    """At most ``most`` rows: the ``best`` ones, and others that are evenly spaced by rank."""
    if len(ranked) <= most:
        return list(ranked)
    rest, room = ranked[best:], most - best
    return [*ranked[:best], *(rest[number * len(rest) // room] for number in range(room))]


def _escaped(row: Attempt) -> Attempt:
    def value_of(value: ConfigValue) -> ConfigValue:
        return value if is_finite(value) else _Label(plain(str(value)))

    return replace(row, config={plain(key): value_of(value) for key, value in row.config.items()})


def _in_memory(name: str, objective: Objective, trials: Sequence[FrozenTrial]) -> Study:
    import optuna

    with quiet():
        study = optuna.create_study(study_name=plain(name), direction=objective.direction)
        study.add_trials(trials)
    return study


def _running(study: RecordedStudy, metric: str, curves: Mapping[str, Mapping[int, EpochLine]]) -> list[FrozenTrial]:
    """The trials that have a curve, and no row of any workload yet."""
    from optuna.trial import TrialState, create_trial

    ended = {row.trial_id for row in study.rows}
    values = {
        trial_id: {epoch: line.metrics[metric] for epoch, line in curves[trial_id].items() if metric in line.metrics}
        for trial_id in study.running
        if trial_id not in ended and trial_id in curves
    }
    return [
        create_trial(
            state=TrialState.RUNNING,
            user_attrs={"trial_id": trial_id},
            intermediate_values={epoch: float(value) for epoch, value in by_epoch.items() if is_finite(value)},
        )
        for trial_id, by_epoch in values.items()
    ]
