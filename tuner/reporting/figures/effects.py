"""The metric against each hyperparameter that varies."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tuner.reporting.figures.axes import Axis, varying
from tuner.reporting.figures.chart import Chart, Names, hover, plain
from tuner.reporting.figures.compared import Compared, compared
from tuner.reporting.figures.coordinates import MOST, parallel_coordinates
from tuner.reporting.figures.joined import side_by_side, titled
from tuner.reporting.figures.style import colour, new_plot
from tuner.reporting.study_view import StudyView
from tuner.reporting.texts import count_text, number_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

QUARTERS = 4
MANY = 200  # more points are drawn smaller


def against_each(study: StudyView, workload: str) -> list[Chart]:
    """The metric against each hyperparameter that varies, in small figures with the axes of parallel coordinates.

    If points are means over seeds, single trials are drawn as well.
    """
    found, names = compared(study, workload), study.trial_names
    if len(found.rows) < 2:
        return []
    axes = map(found.axis, varying(found.rows)[:MOST])
    return [Chart(axis.label, _effect(axis, found), _draw(axis, found, names)) for axis in axes]


def effects_plot(study: StudyView, workload: str) -> Plot:
    """All figures of ``against_each`` side by side, for a notebook."""
    whole, charts = parallel_coordinates(study, workload), against_each(study, workload)
    if not charts:
        return titled(whole)  # raises an error with the reason
    found = compared(study, workload)
    points = "A point for each configuration, faint ones for its trials" if found.trials else "A point for each trial"
    caption = f"{points}; lines join the medians of values with several."
    return side_by_side(f"{found.metric} against each hyperparameter", caption, charts)


def _draw(axis: Axis, found: Compared, names: Names) -> Plot:
    count, level = len(found.rows), found.level
    plot = new_plot(240, margin={"l": 50, "r": 10, "t": 8, "b": 30}, dragmode=False)
    fixed, blue = {"fixedrange": True}, colour("completed")
    plot.update_xaxes(**axis.layout(), **fixed, showgrid=False)
    title = {"text": plain(found.metric), "standoff": 10, "font": {"size": 12}}
    plot.update_yaxes(**level.layout(), **fixed, title=title)
    if found.trials:
        plot.add_scatter(
            **hover(found.trials, found.metric, names, found.trial_metric),
            mode="markers",
            x=axis.places[count:],
            y=level.places[count:],
            marker={"size": 5, "opacity": 0.4, "color": blue},
        )
    big = {"size": 8, "opacity": 0.85} if count <= MANY else {"size": 5, "opacity": 0.55}
    plot.add_scatter(
        **hover(found.rows, found.metric, names),
        mode="markers",
        x=axis.first(count).spread(0.09 if count > 20 else 0.03),
        y=level.places[:count],
        marker={**big, "color": blue},
    )
    if medians := _medians(axis.first(count), level.first(count)):
        ink = colour("ink")
        plot.add_scatter(
            mode="lines+markers",
            x=[x for x, _ in medians],
            y=[y for _, y in medians],
            hoverinfo="skip",
            line={"color": ink, "width": 1.5},
            marker={"symbol": "line-ew-open", "size": 16, "line": {"width": 2.5, "color": ink}},
        )
    return plot


def _medians(axis: Axis, level: Axis) -> list[tuple[float, float]]:
    """The median position for each value of an even axis; empty for other axes."""
    if axis.scale != "even":
        return []
    groups: dict[float, list[float]] = {}
    for x, y in zip(axis.places, level.places, strict=True):
        if x is not None and y is not None:
            groups.setdefault(x, []).append(y)
    return [(x, round(statistics.median(groups[x]), 4)) for x in sorted(groups)]


def _effect(axis: Axis, found: Compared) -> str:
    if axis.scale != "even":
        return _numeric_effect(axis, found)
    groups: dict[str, list[float]] = {}
    having = (row for row in found.rows if row.value(axis.key) is not None)
    for row in having:
        groups.setdefault(number_text(row.value(axis.key)), []).append(row.number(found.metric))
    medians = {value: statistics.median(group) for value, group in groups.items()}
    losses = {value: found.objective.loss(each) for value, each in medians.items()}
    best, worst = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
    about = {
        value: f"{number_text(medians[value])}, {count_text(len(groups[value]), found.noun)}" for value in groups
    }
    median = f"{found.median[0].upper()}{found.median[1:]}"
    return f"{median} best at {best} ({about[best]}), worst at {worst} ({about[worst]})."


def _numeric_effect(axis: Axis, found: Compared) -> str:
    """The quarter of the hyperparameter's values with the best metric, and the rank correlation.

    Rows without the hyperparameter, as in a conditional space, do not count.
    """
    rows, metric = found.rows, found.metric
    known = sorted((row for row in rows if math.isfinite(row.number(axis.key))), key=lambda row: row.number(axis.key))
    if len(known) < 2 * QUARTERS:
        return f"{metric} of {count_text(len(known), found.noun)} against {axis.label}."
    cuts = [number * len(known) // QUARTERS for number in range(QUARTERS + 1)]
    quarters = [known[start:end] for start, end in pairwise(cuts)]
    medians = [statistics.median(row.number(metric) for row in quarter) for quarter in quarters]
    best = min(range(QUARTERS), key=lambda number: found.objective.loss(medians[number]))
    low, high = quarters[best][0].number(axis.key), quarters[best][-1].number(axis.key)
    rho = rank_correlation([row.number(axis.key) for row in known], [row.number(metric) for row in known])
    return (
        f"Of the quarters by {axis.label}, that from {number_text(low)} to {number_text(high)} has the best "
        f"{found.median} ({number_text(medians[best])}). Rank correlation {rho:+.2f}."
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, from -1 to 1. Equal values get their mean rank; 0 if a list is constant.

    Source: Spearman (1904), computed as Pearson's correlation of the ranks.
    """
    ranks = _ranks(first), _ranks(second)
    return 0.0 if any(len(set(each)) < 2 for each in ranks) else statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: number for number, value in reversed(list(enumerate(order)))}
    counts = Counter(order)
    return [first[value] + (counts[value] - 1) / 2 for value in values]
