"""The fronts of trials with several objectives, and how the first front grew."""

import math
from collections.abc import Sequence
from itertools import combinations

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.optuna_space import quiet
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import Chart, of_trials, plain, some_drawn, thinned
from tuner.reporting.figures.style import colour, house_style
from tuner.reporting.texts import count_text, number_text
from tuner.trial import FRONT

MOST_PAIRS = 6  # of objectives, which are drawn
HEIGHT = 300  # of a row of plots, in CSS pixels
BEYOND = 1.1  # the reference point's distance from the best value, in ranges of an objective


def fronts(study: RecordedStudy, workload: str) -> Chart:
    """A point for each completed trial, for every two objectives; of two alone, the first front is joined."""
    from plotly.subplots import make_subplots

    title, objective, rows = "Fronts", study.objectives[workload], _ranked(study, workload)
    if not rows:
        return Chart(title, "No trial has completed with all metrics yet.")
    names = {trial_id: plain(name) for trial_id, name in study.trial_names.items()}
    pairs = list(combinations(objective.all, 2))[:MOST_PAIRS]
    wide = min(2, len(pairs))
    plot = make_subplots(-(-len(pairs) // wide), wide)
    for place, (across, up) in enumerate(pairs):
        where = {"row": place // wide + 1, "col": place % wide + 1}
        for first in (False, True):
            ranked = [row for row in rows if (row.metrics[FRONT] == 1) is first]
            shown = sorted(ranked if first else thinned(ranked), key=lambda row: row.loss(across))
            plot.add_scatter(
                **where,
                mode="lines+markers" if first and len(objective.all) == 2 else "markers",
                x=[row.number(across.metric) for row in shown],
                y=[row.number(up.metric) for row in shown],
                **of_trials([row.trial_id for row in shown], names, "%{x}, %{y}"),
                marker={"size": 9 if first else 6, "color": colour("completed" if first else "muted")},
                line={"shape": "hv", "width": 1.5},
                opacity=1 if first else 0.5,
            )
        plot.update_xaxes(title=plain(across.metric), **where)
        plot.update_yaxes(title=plain(up.metric), **where)
    first_front = sum(row.metrics[FRONT] == 1 for row in rows)
    text = f"{count_text(len(rows), 'completed trial')}; no other trial is better in every metric than "
    text += f"one of the {first_front} in blue."
    return Chart(title, text, house_style(plot, HEIGHT * -(-len(pairs) // wide) + 40))


def hypervolume(study: RecordedStudy, workload: str) -> Chart:
    """The hypervolume that is dominated by the completed trials, in the order in which they ended."""
    import optuna
    from optuna.visualization import plot_hypervolume_history

    title, objective, rows = "Hypervolume", study.objectives[workload], _ranked(study, workload)
    if len(rows) < 2:
        return Chart(title, "Fewer than two trials have completed with all metrics.")
    ordered = thinned(sorted(rows, key=lambda row: (row.ended_at or 0.0, row.trial_id)))
    reference = [_reference(one, ordered) for one in objective.all]
    with quiet():
        drawn = optuna.create_study(directions=[one.direction for one in objective.all])
        for row in ordered:
            values = [row.number(one.metric) for one in objective.all]
            drawn.add_trial(optuna.trial.create_trial(values=values))
        plot = plot_hypervolume_history(drawn, reference)
    at = ", ".join(f"{one.metric} {number_text(value)}" for one, value in zip(objective.all, reference, strict=True))
    plot.update_traces(mode="lines", line={"shape": "hv", "color": colour("ink"), "width": 2.2})
    plot.update_xaxes(title="completed trials in the order in which they ended", showgrid=False)
    text = f"The volume that the trials so far dominate, up to {at}."
    text += some_drawn(len(ordered), len(rows), "evenly spaced in time")
    return Chart(title, text, house_style(plot, HEIGHT))


def _ranked(study: RecordedStudy, workload: str) -> list[Attempt]:
    rows, objective = study.of_workload(workload), study.objectives[workload]
    return [row for row in rows if FRONT in row.metrics and all(map(math.isfinite, row.losses(objective)))]


def _reference(objective: Objective, rows: Sequence[Attempt]) -> float:
    """A value that is a little worse than all of the trials'."""
    losses = [row.loss(objective) for row in rows]
    best, worst = min(losses), max(losses)
    return objective.loss(best + BEYOND * (worst - best or abs(best) or 1.0))
