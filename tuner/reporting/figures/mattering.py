"""Which hyperparameters matter: their importance, and a contour of the two most important ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.records.attempts import CONFIG
from tuner.reporting.figures.axes import Axis, varying
from tuner.reporting.figures.chart import Chart, Names, hover, plain, usual_range
from tuner.reporting.figures.compared import Compared, compared
from tuner.reporting.figures.style import colour, new_plot
from tuner.reporting.importance import Importance, importances, judged, resamples
from tuner.reporting.study_view import StudyView
from tuner.reporting.texts import count_text, number_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MOST = 15  # the maximum number of hyperparameters that are drawn
GRID = 24  # the points of the contour's grid along a range
REACH = 0.09  # the width of the smoothing, of an axis that is 1 long
MANY = 200  # more points are drawn smaller
FEW = 30  # with fewer trials importance is a hint only


def what_matters(study: StudyView, workload: str) -> list[Chart]:
    """A chart of the importance of a workload's hyperparameters, and a contour of the two most important ones.

    Where importance is not known there is no contour, and the one chart says why.
    """
    title, found = "Importance of hyperparameters", compared(study, workload)
    rows = [row for row in found.rows if row.status == "completed"]
    tried = varying(rows)
    keys = judged(rows, tried)
    try:
        known = importances(rows, keys, found.objective, found.scales)
    except InputError as error:
        return [Chart(title, f"Importance is not known: {error}")]
    pruned = len(found.rows) - len(rows)
    left_out = [key.removeprefix(CONFIG) for key in tried if key.removeprefix(CONFIG) not in keys]
    text = _finding(known, found, len(rows))
    text += f" Not judged, as some trials lack it: {', '.join(left_out)}." if left_out else ""
    if pruned:
        text += f" {count_text(pruned, 'pruned trial')} left out: what made them bad counts for less than it should."
    chart = Chart(title, text, _draw_bars(known[:MOST]))
    return [chart, _contour(found, known[0].key, known[1].key, study.trial_names)]


def _finding(known: Sequence[Importance], found: Compared, count: int) -> str:
    first, second, *_ = known
    text = (
        f"How much each hyperparameter tells the best third of {count_text(count, found.noun)} from all, by Optuna's "
    )
    text += f"PED-ANOVA: {first.key} {first.share:.0%}, {second.key} {second.share:.0%}. "
    if not resamples(count):
        text += "There are too many trials to resample them. "
    elif second.high > first.low:
        text += "Which of them comes first is not certain: their lines, 80% of resamples of the trials, overlap. "
    else:
        text += "Lines are 80% of resamples of the trials. "
    return text + (f"With fewer than {FEW} it is a hint only." if count < FEW else "")


def _draw_bars(known: Sequence[Importance]) -> Plot:
    plot = new_plot(
        max(300, 70 + 30 * len(known)), margin={"l": 56, "r": 14, "t": 4, "b": 42}, dragmode=False, bargap=0.5
    )
    plot.add_bar(
        orientation="h",
        x=[round(each.share, 4) for each in known],
        y=[plain(each.key) for each in known],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [round(each.high - each.share, 4) for each in known],
            "arrayminus": [round(each.share - each.low, 4) for each in known],
            "color": colour("ink"),
            "thickness": 1.2,
            "width": 4,
        },
        marker={"color": colour("completed")},
        customdata=[[None, f"{each.share:.0%}", f"{each.low:.0%} to {each.high:.0%}"] for each in known],
        hovertemplate="%{y}: %{customdata[1]}<br>80% of resamples: %{customdata[2]}<extra></extra>",
    )
    plot.update_xaxes(title="share of the importance of all", tickformat=".0%", rangemode="tozero", fixedrange=True)
    return plot.update_yaxes(
        autorange="reversed",
        type="category",
        fixedrange=True,
        showgrid=False,
        tickfont={"color": colour("ink")},
        ticklabelstandoff=6,
    )


def _contour(found: Compared, first: str, second: str, names: Names) -> Chart:
    """The metric over two hyperparameters: medians of pairs of listed values, smoothed means along ranges."""
    count = len(found.rows)
    across, along = (found.axis(f"{CONFIG}{key}").first(count) for key in (first, second))
    values = [row.number(found.metric) for row in found.rows]
    grid = smoothed(across, along, values)
    title = f"{found.metric} over {across.label} and {along.label}"
    cells = [
        (value, x, y)
        for y, line in zip(_lines(along), grid, strict=True)
        for x, value in zip(_lines(across), line, strict=True)
        if value is not None
    ]
    best = min(cells, key=lambda each: found.objective.loss(each[0]))
    if across.scale == along.scale == "even":
        text = f"The median of each pair of values; the best is {number_text(best[0])}"
    else:
        text = f"Means of nearby {found.noun}s, which are the points; the best is {number_text(best[0])}"
    text += f", at {across.label} {across.text_at(best[1])} and {along.label} {along.text_at(best[2])}. "
    if any(row.status == "pruned" for row in found.rows):
        text += "Pruned trials count with their last value. "
    text += f"A stronger colour means a better {found.metric}; parts without a colour were not tried."
    return Chart(title, text, _draw_contour(across, along, grid, found, names))


def _lines(axis: Axis) -> list[float]:
    """Where the grid has points along an axis."""
    if axis.scale == "even":
        return sorted({place for place in axis.places if place is not None})
    return [round(number / (GRID - 1), 4) for number in range(GRID)]


def smoothed(across: Axis, along: Axis, values: Sequence[float]) -> list[list[float | None]]:
    """The metric on a grid; None where no trial is near.

    Along a range it is the mean of all trials with Gaussian weights of the width ``REACH`` (Nadaraya 1964,
    Watson 1964); of listed values only trials with the very value count. With two lists it is the median.
    """
    points = [
        (x, y, value)
        for x, y, value in zip(across.places, along.places, values, strict=True)
        if x is not None and y is not None
    ]
    return [[_value_at(x, y, across, along, points) for x in _lines(across)] for y in _lines(along)]


def _value_at(
    x: float, y: float, across: Axis, along: Axis, points: Sequence[tuple[float, float, float]]
) -> float | None:
    lists = across.scale == "even", along.scale == "even"
    near = [
        (0.0 if lists[0] else px - x, 0.0 if lists[1] else py - y, value)
        for px, py, value in points
        if (abs(px - x) < 1e-9 if lists[0] else abs(px - x) <= 2 * REACH)
        and (abs(py - y) < 1e-9 if lists[1] else abs(py - y) <= 2 * REACH)
    ]
    if not near:
        return None
    if all(lists):
        return float(f"{statistics.median(value for *_, value in near):.5g}")
    weights = [math.exp(-(dx * dx + dy * dy) / (2 * REACH * REACH)) for dx, dy, _ in near]
    total = sum(weight * value for weight, (*_, value) in zip(weights, near, strict=True))
    return float(f"{total / sum(weights):.5g}")


def _draw_contour(
    across: Axis, along: Axis, grid: Sequence[Sequence[float | None]], found: Compared, names: Names
) -> Plot:
    plot = new_plot(340, margin={"l": 56, "r": 14, "t": 8, "b": 42}, dragmode=False)
    low, high = usual_range([row.number(found.metric) for row in found.rows], found.objective)
    stops = [[place, colour(name)] for place, name in ((0, "best"), (0.5, "middle"), (1, "worst"))]
    scale = {"colorscale": stops, "reversescale": found.objective.direction == "maximize", "zmin": low, "zmax": high}
    bar = {"thickness": 12, "outlinewidth": 0, "title": {"text": plain(found.metric), "side": "right"}}
    content = {"x": _lines(across), "y": _lines(along), "z": grid, "colorbar": bar, "hoverongaps": False, **scale}
    lists = across.scale == along.scale == "even"
    if "even" in (across.scale, along.scale):
        plot.add_heatmap(
            **content,
            xgap=2 * (across.scale == "even"),
            ygap=2 * (along.scale == "even"),
            hovertemplate=f"{plain(found.metric)} %{{z}}<extra></extra>",
            **({"texttemplate": "%{z:.3g}"} if lists else {}),
        )
    else:
        plot.add_contour(
            **content,
            line={"width": 0.6, "color": colour("surface")},
            connectgaps=False,
            hovertemplate=f"{plain(found.metric)} about %{{z}}<extra></extra>",
        )
    if not lists:
        edge = {"width": 1, "color": colour("surface")}
        few = {"size": 6, "opacity": 0.75, "color": colour("ink"), "line": edge}
        plot.add_scatter(
            **hover(found.rows, found.metric, names),
            mode="markers",
            x=across.spread(0.06),
            y=along.spread(0.06, 1),
            marker={"size": 3, "opacity": 0.5, "color": colour("ink")} if len(found.rows) > MANY else few,
        )
    fixed = {"fixedrange": True, "showgrid": False, "zeroline": False}
    plot.update_xaxes(**across.layout(), **fixed, title=plain(across.label))
    return plot.update_yaxes(**along.layout(), **fixed, title=plain(along.label))
