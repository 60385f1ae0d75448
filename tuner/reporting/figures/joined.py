"""Figures for notebooks, with their titles and captions."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.reporting.figures.chart import Chart, plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CAPTION_WIDTH = 110
LINE = 17  # the height of a caption's line, in CSS pixels


def titled(chart: Chart) -> Plot:
    """The figure of a chart with its title and caption; an InputError is raised if it cannot be drawn."""
    plot = chart.plot
    if plot is None:
        raise InputError(f"nothing to draw: {chart.caption}")
    lines = [plain(line) for text in chart.caption.splitlines() for line in textwrap.wrap(text, CAPTION_WIDTH)]
    above = 40 + LINE * len(lines)
    subtitle = {"text": "<br>".join(lines), "font": {"size": 12}}
    head = {"text": plain(chart.title), "subtitle": subtitle, "x": 0, "xref": "paper", "y": 1, "yanchor": "top"}
    plot.update_layout(title={**head, "pad": {"t": 12}}, margin_t=above + (plot.layout.margin.t or 10))
    return plot.update_layout(height=plot.layout.height + above)
