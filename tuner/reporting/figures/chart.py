"""A figure with its finding in words, and how numbers are written in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from tuner.records.attempts import Attempt

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Names = Mapping[str, str]


@dataclass(frozen=True)
class Chart:
    """A figure with words."""

    title: str
    caption: str  # what it shows, also for those who do not see it; or why it cannot be drawn
    plot: Plot | None = None  # a point's ``customdata`` begin with the id of its trial
    minimum_width: int = 0  # in CSS pixels; on a narrower screen a page scrolls the figure sideways


def hover(rows: Sequence[Attempt | None], metric: str, names: Names, label: str = "") -> dict[str, object]:
    """The labels of points: the trial's name and its metric, which is called ``label``; None stands for a gap."""
    return {
        "text": [row and plain(names[row.trial_id]) for row in rows],
        "customdata": [row and [row.trial_id, row.number(metric)] for row in rows],
        "hovertemplate": f"%{{text}}<br>{plain(label or metric)} %{{customdata[1]}}<extra></extra>",
    }


def plain(text: str) -> str:
    """A text of the user without markup: plotly understands a little HTML."""
    return escape(text, quote=False)


def usual_end(values: Sequence[float]) -> float:
    """Where an axis of values of which small ones are good should end, so that a few huge ones do not flatten it.

    That is the largest value, or, where it is more than three times as far from the smallest as the 90th percentile
    is, half as far again as that percentile.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    reach = ordered[math.ceil(0.9 * len(ordered)) - 1] - low
    return low + 1.5 * reach if reach > 0 and high - low > 3 * reach else high
