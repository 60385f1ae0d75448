"""Parallel coordinates: hyperparameters and the metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.records.attempts import Attempt
from tuner.reporting.figures.axes import Axis, varying
from tuner.reporting.figures.chart import Chart, Names, hover, plain
from tuner.reporting.figures.compared import Compared, compared
from tuner.reporting.figures.style import SHADES, colour, new_plot, shade
from tuner.reporting.study_view import StudyView
from tuner.reporting.texts import count_text, number_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MOST = 12  # the maximum number of hyperparameters
LETTER = 8  # the maximum width of a letter in an axis' head, in CSS pixels
COMMON = 0.6  # the minimum share of the best rows that have a value for it to be mentioned


def parallel_coordinates(study: StudyView, workload: str) -> Chart:
    """A line for each trial, or configuration with several seeds, through its hyperparameters to its metric."""
    found = compared(study, workload)
    count = len(found.rows)
    title = f"Hyperparameters and {found.metric} of the {found.noun}s"
    keys = varying(found.rows)[:MOST]
    if count < 2 or not keys:
        return Chart(title, _too_few(found, study.objectives[workload].metric))
    axes = [axis.first(count) for axis in (*map(found.axis, keys), found.level)]
    text = f"{count_text(count, found.noun)}, each a line from left to right. A stronger colour "
    text += f"means a better {found.metric}. {_common(found.rows, keys, found.noun)}"
    apart = max(90, *(LETTER * len(axis.label) for axis in axes))
    return Chart(title, text.strip(), _draw(axes, found, study.trial_names), minimum_width=apart * len(axes))


def _too_few(found: Compared, metric: str) -> str:
    if not found.rows:
        return f"No trial has ended with a {metric} yet, so there is nothing to compare."
    if len(found.rows) == 1:
        return f"Only one {found.noun} was successful, so there is nothing to compare."
    return f"All {found.noun}s have the same hyperparameters, so there is nothing to compare."


def _common(rows: Sequence[Attempt], keys: Sequence[str], noun: str) -> str:
    """The common values of most of the best tenth, or of the best three if that is more."""
    best = rows[: max(3, len(rows) // 10)]
    if len(rows) < 2 * len(best):
        return ""
    found = []
    for key in keys:
        known = [number_text(row.value(key)) for row in best if row.value(key) is not None]
        if not known:
            continue
        value, count = Counter(known).most_common(1)[0]
        share = sum(number_text(row.value(key)) == value for row in rows) / len(rows)
        if count >= COMMON * len(best) and count / len(best) > share:
            found.append(f"{'all' if count == len(best) else count} have {key.removeprefix('config/')} = {value}")
    return f"Of the best {count_text(len(best), noun)}, {' and '.join(found)}." if found else ""


def _draw(axes: Sequence[Axis], found: Compared, names: Names) -> Plot:
    """Draws one trace for each shade, as plotly is slow with a trace for each line."""
    count, numbers = len(found.rows), list(range(len(axes)))
    margin = {"l": max(52, _half_width(axes[0])), "r": max(18, _half_width(axes[-1])), "t": 34, "b": 12}
    plot = new_plot(380, margin=margin, dragmode=False)
    places = [axis.spread(0.035 if count > 20 else 0.0, number) for number, axis in zip(numbers, axes, strict=True)]
    order = sorted(range(count), key=lambda row: found.rows[row].loss(found.objective))
    bins = min(SHADES, count)
    for bin_ in reversed(range(bins)):  # the best are drawn last
        members = [row for rank, row in enumerate(order) if rank * bins // count == bin_]
        about = [each for row in members for each in (*[found.rows[row]] * len(axes), None)]
        plot.add_scatter(
            mode="lines",
            x=[*numbers, None] * len(members),
            y=[place for row in members for place in (*(each[row] for each in places), None)],
            line={"width": 2.4 if bin_ == 0 and count <= 100 else 1.2, "color": shade(bin_ / max(1, bins - 1))},
            opacity=(0.45 if bin_ else 0.85) if count > 200 else (0.75 if bin_ else 1),
            **hover(about, found.metric, names),
        )
    label = {"xanchor": "right", "xshift": -5, "bgcolor": colour("surface"), "borderpad": 1, "opacity": 0.88}
    font = {"size": 11, "color": colour("ink")}
    for number, axis in zip(numbers, axes, strict=True):
        line = {"color": colour("muted"), "width": 1}
        plot.add_shape(type="line", x0=number, x1=number, y0=-0.03, y1=1.03, layer="below", line=line)
        for place, text in axis.ticks:
            plot.add_annotation(x=number, y=place, text=plain(text), font=font, **label)
    heads = [f"<b>{plain(axis.label)}</b>" for axis in axes]
    fixed = {"fixedrange": True, "showgrid": False}
    plot.update_xaxes(side="top", tickvals=numbers, ticktext=heads, tickangle=0, range=[-0.08, len(axes) - 0.95])
    plot.update_xaxes(tickfont={"color": colour("ink"), "size": 12}, **fixed)
    return plot.update_yaxes(visible=False, range=[-0.06, 1.06], **fixed)


def _half_width(axis: Axis) -> int:
    """Half the width of the axis' head, which must not be cut off at the plot's edge."""
    return LETTER // 2 * len(axis.label)
