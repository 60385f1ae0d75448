"""What the page draws: data for a function in ``charts.js``, with the finding in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A plot of the page.

    Attributes:
        kind: the function in ``charts.js`` that draws it.
        title: its heading.
        caption: what it shows, in words, for those who do not see it too; or why it cannot be drawn.
        data: what the function is given; None where there is nothing to draw.
        height: in CSS pixels.
        minimum_width: in CSS pixels; on a narrower screen it scrolls in a box of its own.
    """

    kind: str
    title: str
    caption: str
    data: Mapping[str, Any] | None = None
    height: int = 320
    minimum_width: int = 0


def number_text(value: Any) -> str:
    """A number as captions and ticks show it: four significant digits; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) and abs(value) < 10**6:
        return str(value)
    return f"{value:.4g}"


def usual_end(values: Sequence[float]) -> float:
    """Where an axis of values of which small ones are good should end, so that a few huge ones do not flatten it.

    That is the largest value, or, where it is more than three times as far from the smallest as the 90th percentile
    is, half as far again as that percentile.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    reach = ordered[math.ceil(0.9 * len(ordered)) - 1] - low
    return low + 1.5 * reach if reach > 0 and high - low > 3 * reach else high


def count_text(count: int, what: str) -> str:
    """A number of things: ``1 trial``, ``3 trials``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
