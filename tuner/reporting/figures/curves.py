"""Learning curves: the validation metric against the epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.reporting.figures.chart import Chart, Names, plain, usual_range
from tuner.reporting.figures.style import colour, new_plot, shade
from tuner.reporting.result_tables import has_seeds
from tuner.reporting.study_view import StudyView
from tuner.reporting.texts import count_text, number_text
from tuner.trial import Objective

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

SHOWN = 60  # the maximum number of curves
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
)  # of the best curves, which are named
FEW_EPOCHS = 12  # the maximum number of epochs with a tick each; plotly would add ticks between
Curves = Mapping[str, Mapping[int, float]]  # by trial and epoch


def learning_curves(study: StudyView, workload: str) -> Chart:
    """The metric of a workload's trials after each epoch; the best trials are emphasised."""
    title, metric = "Learning curves", study.objectives[workload].metric
    if not study.epochs:
        return Chart(title, "This study kept no epochs (epochs.jsonl), so there are no curves.")
    rows = study.of_workload(workload)
    all_ = _by_trial(study, metric)
    others = {row.trial_id for name in study.objectives if name != workload for row in study.of_workload(name)}
    running = [trial_id for trial_id in study.running if trial_id not in {row.trial_id for row in rows} | others]
    ranked = [trial_id for trial_id in (*(row.trial_id for row in rows), *running) if all_.get(trial_id)]
    if not ranked:
        return Chart(title, f"No epoch with a {metric} has ended yet, so there are no curves.")
    best = [row.trial_id for row in rows[: len(SYMBOLS)] if row.status == "completed" and all_.get(row.trial_id)]
    shown = {trial_id: all_[trial_id] for trial_id in subset(ranked, SHOWN)}
    plot = _draw(shown, best, study.objectives[workload], study.trial_names)
    return Chart(title, _finding(study, workload, all_, len(shown), len(ranked)), plot)


def _draw(curves: Curves, best: Sequence[str], objective: Objective, names: Names) -> Plot:
    plot = new_plot(380, showlegend=True, margin={"l": 56, "r": 14, "t": 36, "b": 42})
    others = [trial_id for trial_id in curves if trial_id not in best]
    for trial_id in [*others, *reversed(best)]:
        rank = best.index(trial_id) if trial_id in best else None
        points = sorted(curves[trial_id].items())
        if rank is None:
            look = {"line": {"width": 1.1, "color": colour("muted")}, "marker": {"size": 5}, "opacity": 0.42}
        else:
            look = {"line": {"width": 2.4, "color": shade(rank / 6)}, "marker": {"size": 8, "symbol": SYMBOLS[rank]}}
        plot.add_scatter(
            **look,
            mode="lines" if rank is None and len(points) > 1 else "lines+markers",
            name=plain(names.get(trial_id, trial_id)),
            x=[epoch for epoch, _ in points],
            y=[value for _, value in points],
            customdata=[[trial_id]] * len(points),
            hovertemplate="%{fullData.name}<br>epoch %{x}: %{y}<extra></extra>",
            showlegend=rank is not None,
            legendrank=rank,
        )
    values = [value for points in curves.values() for value in points.values()]
    (low, high), most = usual_range(values, objective), max(max(points) for points in curves.values())
    pad = (high - low or 1) * 0.05
    plot.update_xaxes(title="epoch", showgrid=False, tickformat="d", dtick=1 if most <= FEW_EPOCHS else None)
    return plot.update_yaxes(title=plain(objective.metric), range=[low - pad, high + pad])


def subset(ranked: Sequence[str], most: int) -> list[str]:
    """At most ``most`` items: the best ten, and others that are evenly spaced by rank."""
    if len(ranked) <= most:
        return list(ranked)
    rest, room = ranked[10:], most - 10
    return [*ranked[:10], *(rest[number * len(rest) // room] for number in range(room))]


def _by_trial(study: StudyView, metric: str) -> dict[str, dict[int, float]]:
    """The metric by trial and epoch; a later attempt overrides an earlier one."""
    found: dict[str, dict[int, float]] = {}
    for line in study.epochs:
        value = line.metrics.get(metric)
        if isinstance(value, (int, float)):
            found.setdefault(line.trial_id, {})[line.epoch] = value
    return found


def _finding(study: StudyView, workload: str, all_: Curves, shown: int, ranked: int) -> str:
    rows, metric = study.of_workload(workload), study.objectives[workload].metric
    text = f"{metric} on the validation split after each epoch"
    text += (
        f", {count_text(ranked, 'trial')}"
        if shown == ranked
        else (f": {shown} of {ranked:,} trials, the ten best and others evenly spaced by rank")
    )
    best = next((row for row in rows if row.status == "completed"), None)
    points = all_.get(best.trial_id) if best else None
    if not best or not points:
        return text + "."
    epoch = min(points, key=lambda each: study.objectives[workload].loss(points[each]))
    last = max(points)
    which = "best single trial" if has_seeds(rows) else "best"
    name = study.trial_names[best.trial_id]
    text += f". The {which}, {name}, was best at {number_text(points[epoch])} after epoch {epoch} of {last}"
    if last > 1:
        text += "; it was still improving at its end" if epoch == last else ", and did not get better after that"
    return f"{text}.{_result(best.number(metric), points[epoch], points[last])}"


def _result(value: float, at_best: float, at_last: float) -> str:
    """Why the table has another value than the curve's best: a function's result is what it returns at its end."""
    shown = number_text(value)
    if not math.isfinite(value) or shown == number_text(at_best):
        return ""
    why = (
        "its value after the last epoch" if shown == number_text(at_last) else "the value that it returned at its end"
    )
    return f" The table has {shown}, {why}."
