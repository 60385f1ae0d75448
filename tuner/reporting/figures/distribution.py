"""The distribution of the metric: how many trials are at least as good as each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.records.attempts import Attempt
from tuner.reporting.figures.chart import Chart, plain, usual_range
from tuner.reporting.figures.style import new_plot, series
from tuner.reporting.texts import count_text, number_text
from tuner.trial import Objective


def distribution(studies: Mapping[str, Sequence[Attempt]], objective: Objective) -> Chart:
    """The empirical distribution function of the completed trials' metric, a line for each study.

    With one study, its name is not shown.
    """
    metric, one = objective.metric, len(studies) == 1
    title = f"Distribution of {metric}"
    losses = {
        name: sorted(
            row.loss(objective) for row in rows if row.status == "completed" and row.value(metric) is not None
        )
        for name, rows in studies.items()
    }
    known = {name: found for name, found in losses.items() if len(found) > 1}
    if not known:
        return Chart(title, "Fewer than two trials have completed, so there is no distribution.")
    plot = new_plot(
        300, showlegend=not one, margin={"l": 56, "r": 14, "t": 8 if one else 36, "b": 42}, dragmode=False
    )
    low, high = usual_range([objective.loss(loss) for found in known.values() for loss in found], objective)
    for number, (name, found) in enumerate(losses.items()):
        if name not in known:
            continue
        count = len(found)
        values = [objective.loss(loss) for loss in found]
        start = [values[0]]  # the line rises from 0 there
        plot.add_scatter(
            mode="lines",
            name=plain(name),
            x=[*start, *values],
            y=[0, *(round(place / count, 4) for place in range(1, count + 1))],
            **series(number, shape="hv"),
            hovertemplate=f"%{{y:.0%}} are at %{{x}} or better<extra>{'' if one else plain(name)}</extra>",
        )
    pad = (high - low or 1) * 0.03
    plot.update_xaxes(title=plain(metric), range=[low - pad, high + pad], showgrid=False, fixedrange=True)
    plot.update_yaxes(title="share at least as good", tickformat=".0%", range=[0, 1.02], fixedrange=True)
    return Chart(title, " ".join(_finding(name, found, objective, one) for name, found in known.items()), plot)


def _finding(name: str, losses: Sequence[float], objective: Objective, one: bool) -> str:
    at = {share: number_text(objective.loss(losses[round(share * (len(losses) - 1))])) for share in (0, 0.1, 0.5)}
    who = (
        f"Of {count_text(len(losses), 'completed trial')}" if one else f"{name}, {count_text(len(losses), 'trial')}:"
    )
    return f"{who} the best has {at[0]}, a tenth {at[0.1]} or better, and half {at[0.5]} or better."
