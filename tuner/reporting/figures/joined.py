"""Figures for notebooks: with titles and captions, and several joined into one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.reporting.figures.chart import Chart, plain
from tuner.reporting.figures.library import subplots
from tuner.reporting.figures.style import new_plot

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CAPTION_WIDTH = 110
LINE = 17  # the height of a caption's line, in CSS pixels


def titled(chart: Chart) -> Plot:
    """The figure of a chart with its title and caption; an InputError is raised if it cannot be drawn."""
    return _with_title(_plots([chart])[0], chart.title, chart.caption)


def side_by_side(title: str, caption: str, charts: Sequence[Chart]) -> Plot:
    """Charts with one horizontal and one vertical axis as one figure, which has the first chart's vertical axis."""
    figure, names = new_plot(380, margin={"t": 30}), [plain(chart.title) for chart in charts]
    whole = subplots(figure, cols=len(charts), subplot_titles=names, shared_yaxes=True)
    for column, plot in enumerate(_plots(charts), 1):
        _add(whole, plot, "y", 1, column)
    whole.for_each_yaxis(lambda axis: axis.update(title_text=None), selector=lambda axis: axis.matches)
    return _with_title(whole, title, caption)


def one_above_another(title: str, caption: str, charts: Sequence[Chart]) -> Plot:
    """Charts with two vertical axes each as one figure with a common horizontal axis."""
    plots = _plots(charts)
    height = sum(plot.layout.height for plot in plots)
    above = {"legend": {"y": 1 + 26 / height}, "margin": {"t": 60}}
    whole = subplots(
        new_plot(height, showlegend=True, barmode="overlay", **above),
        rows=2 * len(plots),
        row_heights=[0.6, 0.4] * len(plots),
        vertical_spacing=0.16 / len(plots),
        shared_xaxes="all",
        subplot_titles=[text for chart in charts if chart.plot for text in (plain(chart.title), "")],
    )
    for number, plot in enumerate(plots):
        _add(whole, plot, "y", 2 * number + 1, 1)
        _add(whole, plot, "y2", 2 * number + 2, 1)
        whole.update_xaxes(title_text=None, row=2 * number + 1, col=1)
    return _with_title(whole, title, caption)


def _plots(charts: Sequence[Chart]) -> list[Plot]:
    """The plots of the charts that can be drawn; there must be one."""
    drawn = [chart.plot for chart in charts if chart.plot is not None]
    if not drawn:
        raise InputError(f"nothing to draw: {charts[0].caption}")
    return drawn


def _add(whole: Plot, plot: Plot, axis: str, row: int, column: int) -> None:
    """Adds the part of a plot on one of its vertical axes to a subplot of the whole."""
    named = {trace.name for trace in whole.data if trace.showlegend is not False}
    for trace in plot.data:
        if (trace.yaxis or "y") == axis:
            shown = {"showlegend": False} if trace.name in named else {}
            whole.add_trace(trace.update(shown), row=row, col=column)
    for kind, add in (("shapes", whole.add_shape), ("annotations", whole.add_annotation)):
        for each in plot.layout[kind]:
            if (each.yref or "y").split(" ")[0] == axis:
                add(each, row=row, col=column)
    for letter, number, update in (("x", "", whole.update_xaxes), ("y", axis[1:], whole.update_yaxes)):
        look = plot.layout[f"{letter}axis{number}"].to_plotly_json()
        update({key: value for key, value in look.items() if key not in ("domain", "anchor")}, row=row, col=column)


def _with_title(plot: Plot, title: str, caption: str) -> Plot:
    lines = [plain(line) for text in caption.splitlines() for line in textwrap.wrap(text, CAPTION_WIDTH)]
    above = 40 + LINE * len(lines)
    subtitle = {"text": "<br>".join(lines), "font": {"size": 12}}
    head = {"text": plain(title), "subtitle": subtitle, "x": 0, "xref": "paper", "y": 1, "yanchor": "top"}
    plot.update_layout(title={**head, "pad": {"t": 12}}, margin_t=above + (plot.layout.margin.t or 10))
    return plot.update_layout(height=plot.layout.height + above)
