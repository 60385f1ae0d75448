"""The colours and the common layout of figures.

Figures have the colours of the light theme. A dark page replaces each by its counterpart in ``DARK``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
# Colours in the light and the dark theme; also used by the page's style sheet.
COLOURS = {
    "page": ("#f6f7f8", "#121518"),
    "surface": ("#ffffff", "#1a1e23"),
    "raised": ("#f0f2f4", "#242a30"),
    "ink": ("#1b2127", "#e6eaee"),
    "muted": ("#55606b", "#9eaab6"),
    "line": ("#dfe3e7", "#2f363e"),
    "accent": ("#0a6a94", "#5cc0e6"),
    "best": ("#08306b", "#b8f0ff"),
    "middle": ("#3f8fc4", "#3f8db8"),
    "worst": ("#bcd0e2", "#35536a"),
    "completed": ("#0b72b5", "#57b3ea"),
    "paused": ("#2f7d6d", "#74c9b8"),
    "pruned": ("#6a7480", "#98a4b0"),
    "out_of_memory": ("#b34f00", "#f59a4c"),
    "diverged": ("#8449b0", "#c79bf0"),
    "failed": ("#b3261e", "#ff8a80"),
    "stalled": ("#9c2c6b", "#f08fc0"),
    "interrupted": ("#6b6250", "#c4b68f"),
    "too_large": ("#8a5a00", "#e0b050"),
    "infeasible": ("#4f7a28", "#a3cf7c"),
    "running": ("#00707a", "#4fd0d8"),
}
# Several studies: the colours of statuses, which no plot of studies shows.
SERIES = ("completed", "out_of_memory", "diverged", "too_large", "stalled", "pruned")
DASHES = ("solid", "dash", "dot")
SHADES = 12  # from the best to the worst
PALE = "47"  # appended to a colour: an opacity of 28 %


def colour(name: str) -> str:
    """A colour of the light theme."""
    return COLOURS[name][0]


def shade(place: float) -> str:
    """A colour on the scale from 0, the best, to 1, the worst."""
    return _shade(round(place * (SHADES - 1)), 0)


def _shade(step: int, theme: int) -> str:
    stops = [bytes.fromhex(COLOURS[name][theme][1:]) for name in ("best", "middle", "worst")]
    half, share = divmod(2 * step / (SHADES - 1), 1)
    low, high = stops[int(half)], stops[min(2, int(half) + 1)]
    return "#" + bytes(round(a + (b - a) * share) for a, b in zip(low, high, strict=True)).hex()


_PAIRS = [*COLOURS.values(), *((_shade(step, 0), _shade(step, 1)) for step in range(SHADES))]
DARK = {light + alpha: dark + alpha for light, dark in _PAIRS for alpha in ("", PALE)}


SCALE = [[place, colour(name)] for place, name in ((0, "worst"), (0.5, "middle"), (1, "best"))]  # of Optuna's figures


def series(number: int, **line: object) -> dict[str, object]:
    """The look of the lines of one of several studies: colours and dashes that can be told apart."""
    name, dash = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
    return {"line": {"width": 2.2, "color": colour(name), "dash": dash, **line}, "marker": {"color": colour(name)}}


def ranked(rank: int | None, of: int) -> dict[str, object]:
    """The look of a trial's line: one of the best has a strong colour, and is in the legend; None is for others."""
    if rank is None:
        return {"line": {"color": colour("muted"), "width": 1.1}, "opacity": 0.42, "showlegend": False}
    return {"line": {"color": shade(rank / of), "width": 2.4}, "opacity": 1, "showlegend": True, "legendrank": rank}


def new_plot(height: int, **layout: object) -> Plot:
    """An empty plot of this height in CSS pixels; ``layout`` is added to the common layout."""
    from plotly.graph_objects import Figure

    return Figure(layout={"template": {"layout": _common_layout()}, "height": height, **layout})


def house_style(plot: Plot, height: int, **layout: object) -> Plot:
    """Gives a figure of Optuna's the common layout; ``layout`` is added. The title is the chart's."""
    margin = {"l": 56, "r": 14, "t": 36, "b": 42}
    plot.update_layout(title=None, plot_bgcolor=None, dragmode=False, margin=margin, showlegend=False)
    for letter, update, each in (
        ("x", plot.update_xaxes, plot.for_each_xaxis),
        ("y", plot.update_yaxes, plot.for_each_yaxis),
    ):
        update(fixedrange=True, exponentformat="none")
        # A tick for each power of ten, where there are several; elsewhere plotly's, which are within a decade.
        each(lambda axis, of=letter: axis.update(dtick=1 if _decades(plot, axis, of) >= 2 else None), {"type": "log"})
    return plot.update_layout({"template": {"layout": _common_layout()}, "height": height, **layout})


def _decades(plot: Plot, axis: Any, letter: str) -> float:
    """The powers of ten that a logarithmic axis covers."""
    name = axis.plotly_name.replace("axis", "")
    values = [
        value
        for trace in plot.data
        if (trace[f"{letter}axis"] or letter) == name and trace[letter] is not None
        for value in trace[letter]
        if isinstance(value, (int, float)) and value > 0
    ]
    return math.log10(max(values) / min(values)) if values else 0.0


def _common_layout() -> dict[str, object]:
    axis = {"gridcolor": colour("line"), "linecolor": colour("line"), "zeroline": False, "automargin": True}
    above = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"color": colour("ink")}}
    label = {"bgcolor": colour("surface"), "bordercolor": colour("muted"), "align": "left"}
    return {
        "paper_bgcolor": colour("surface"),
        "plot_bgcolor": colour("surface"),
        "font": {"family": FONT, "size": 12, "color": colour("muted")},
        "margin": {"l": 56, "r": 14, "t": 10, "b": 42},
        "hovermode": "closest",
        "hoverlabel": {**label, "font": {"family": FONT, "color": colour("ink")}},
        "showlegend": False,
        "legend": above,
        "annotationdefaults": {"showarrow": False},
        "xaxis": axis,
        "yaxis": axis,
    }
