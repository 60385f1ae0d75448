"""A figure with its caption, and helpers for its texts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from tuner.errors import InputError, not_installed
from tuner.objective import Objective

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Item = TypeVar("Item")
Names = Mapping[str, str]
MOST_POINTS = 2000  # of a figure that has one for each trial or attempt; captions say if others are left out
CAPTION_WIDTH = 110  # in characters
LINE = 17  # the height of a caption's line, in CSS pixels


@dataclass(frozen=True)
class Chart:
    """A figure with a title and a caption."""

    title: str
    caption: str  # what it shows, or why it cannot be drawn; screen readers read it
    plot: Plot | None = None  # a point's ``customdata`` begins with its trial's id
    minimum_width: int = 0  # in CSS pixels; a narrower page scrolls the figure sideways

    def titled(self) -> Plot:
        """The figure with its title and caption, for notebooks; an InputError is raised if it cannot be drawn."""
        plot = self.plot
        if plot is None:
            raise InputError(f"nothing to draw: {self.caption}")
        lines = [plain(line) for text in self.caption.splitlines() for line in textwrap.wrap(text, CAPTION_WIDTH)]
        above = 40 + LINE * len(lines)
        subtitle = {"text": "<br>".join(lines), "font": {"size": 12}}
        head = {"text": plain(self.title), "subtitle": subtitle, "x": 0, "xref": "paper", "y": 1, "yanchor": "top"}
        plot.update_layout(title={**head, "pad": {"t": 12}}, margin_t=above + (plot.layout.margin.t or 10))
        return plot.update_layout(height=plot.layout.height + above)


def thinned(items: Sequence[Item], most: int = MOST_POINTS) -> list[Item]:
    """At most ``most`` items, evenly spaced, with the last one."""
    step = -(-len(items) // most) or 1
    return list(items[::-1][::step][::-1])


def of_trials(ids: Sequence[str], names: Names, hover: str) -> dict[str, object]:
    """What points need: their trials' names, ``hover`` below these, and the ids, by which a click finds a row."""
    return {
        "text": [names[trial_id] for trial_id in ids],
        "customdata": [[trial_id] for trial_id in ids],
        "hovertemplate": f"%{{text}}<br>{hover}<extra></extra>",
    }


def some_drawn(drawn: int, whole: int, which: str = "evenly spaced by rank") -> str:
    """A sentence on how many trials are drawn; empty if all are."""
    return f" {drawn:,} of {whole:,} trials are drawn, {which}." if drawn < whole else ""


def time_unit(seconds: float) -> tuple[str, int]:
    """The unit of an axis of so much time, and its seconds."""
    return ("s", 1) if seconds < 300 else ("min", 60) if seconds < 3 * 3600 else ("h", 3600)


def plain(text: str) -> str:
    """A user's text with HTML escaped, as plotly interprets some tags."""
    return escape(text, quote=False)


def usual_range(values: Sequence[float], objective: Objective) -> tuple[float, float]:
    """The lowest and the highest value of a metric's axis, so that a few very bad values do not flatten the rest.

    They are the best and the worst value. But if their distance is more than 3 times that from the best value to the
    90th percentile, the axis ends at 1.5 times the latter.
    """
    losses = sorted(map(objective.loss, values))
    best, worst = losses[0], losses[-1]
    reach = losses[math.ceil(0.9 * len(losses)) - 1] - best
    end = best + 1.5 * reach if reach > 0 and worst - best > 3 * reach else worst
    low, high = sorted((objective.loss(best), objective.loss(end)))
    return low, high


def padded_range(values: Sequence[float], objective: Objective) -> list[float]:
    """The range of a metric's axis: the usual one, with some room at both ends."""
    low, high = usual_range(values, objective)
    pad = (high - low or 1) * 0.05
    return [low - pad, high + pad]


def check_plotly() -> None:
    """Raises ``InputError`` if plotly is not installed."""
    if find_spec("plotly") is None:
        raise InputError(not_installed("plotly", extra="report"))


def javascript() -> str:
    """The library that shows plots in a browser, 5 MB."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


def javascript_name() -> str:
    """The name of a file with that library; it has the version."""
    from plotly.offline import get_plotlyjs_version

    return f"plotly-{get_plotlyjs_version()}.min.js"
