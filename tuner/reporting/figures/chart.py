"""A figure with its caption, and helpers for its texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from tuner.trial import Objective

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Names = Mapping[str, str]


@dataclass(frozen=True)
class Chart:
    """A figure with a title and a caption."""

    title: str
    caption: str  # what it shows, or why it cannot be drawn; screen readers read it
    plot: Plot | None = None  # a point's ``customdata`` begins with its trial's id
    minimum_width: int = 0  # in CSS pixels; a narrower page scrolls the figure sideways


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
