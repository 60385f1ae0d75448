"""Axes from 0 to 1 for the values of hyperparameters and metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from tuner.records.attempts import CONFIG, Attempt
from tuner.records.optuna_space import is_number
from tuner.records.study_record import Scale as SpaceScale
from tuner.reporting.figures.chart import plain, usual_range
from tuner.reporting.texts import number_text
from tuner.trial import Objective

EVEN = 8  # the maximum number of distinct numbers that are evenly spaced
LOGARITHMIC = 50  # the minimum ratio of largest and smallest value for a logarithmic axis
TICKS = 8  # the maximum number of ticks
GOLDEN = 0.618034  # its multiples are spread evenly over 0 to 1

Scale = Literal["even", "linear", "logarithmic"]


@dataclass(frozen=True)
class Axis:
    """An axis with the positions of all rows, from 0 to 1."""

    key: str  # the column
    scale: Scale
    ticks: list[tuple[float, str]]  # positions and labels
    places: list[float | None]  # each row's position; None if it has no value
    ends: tuple[float, float] = (0.0, 0.0)  # what is at 0 and 1, or its logarithm to base 10
    names: Mapping[float, str] = field(default_factory=dict)  # of an even axis: the value at each position

    @property
    def label(self) -> str:
        """The name of the column without its prefix."""
        return self.key.removeprefix(CONFIG)

    def first(self, count: int) -> Axis:
        """The same axis with the first rows only."""
        return replace(self, places=self.places[:count])

    def spread(self, width: float, turn: int = 0) -> list[float | None]:
        """The positions; on an even axis shifted by up to half of ``width``, so that lines do not hide each other.

        The shift depends on the row's number and on ``turn`` only.
        """
        if self.scale != "even":
            return self.places
        moves = ((((number + turn) * GOLDEN) % 1 - 0.5) * width for number in range(len(self.places)))
        return [None if at is None else round(at + move, 4) for at, move in zip(self.places, moves, strict=True)]

    def text_at(self, place: float) -> str:
        """The value at a position."""
        if self.scale == "even":
            return self.names[place]
        at = self.ends[0] + place * (self.ends[1] - self.ends[0])
        return number_text(10**at if self.scale == "logarithmic" else at)

    def layout(self) -> dict[str, object]:
        """The layout of the axis in plotly."""
        places, texts = zip(*self.ticks, strict=True)
        return {
            "tickvals": places,
            "ticktext": [plain(text) for text in texts],
            "range": [-0.06, 1.06],
            "tickangle": 0,
        }


def varying(rows: Sequence[Attempt]) -> list[str]:
    """The columns of the hyperparameters that have more than one value."""
    keys = dict.fromkeys(f"{CONFIG}{key}" for row in rows for key in row.config)
    return [key for key in keys if len({repr(row.value(key)) for row in rows}) > 1]


def value_axis(key: str, rows: Sequence[Attempt], space: SpaceScale | None = None) -> Axis:
    """A hyperparameter's axis, on the scale of the search space.

    Without a known scale it is evenly spaced for few values, and linear or logarithmic for many numbers. Along a
    linear range, so are few whole numbers that are at equal distances anyway: they have medians then.
    """
    values = [row.value(key) for row in rows]
    known = [value for value in values if value is not None]
    numbers = [value for value in known if is_number(value)]
    different = len(set(map(repr, known)))
    even = space is None or (space == "linear" and _equally_far(known))
    if different <= (EVEN if even else 1) or len(numbers) < len(known):
        return _even(key, values)
    low, high = min(numbers), max(numbers)
    if low > 0 and (space == "log" or (space is None and high / low >= LOGARITHMIC)):
        logs = [math.log10(value) if is_number(value) else None for value in values]
        return _scaled(key, "logarithmic", logs, math.log10(low), math.log10(high))
    return _scaled(key, "linear", [value if is_number(value) else None for value in values], low, high)


def metric_axis(objective: Objective, rows: Sequence[Attempt]) -> Axis:
    """A metric's linear axis; outliers are at its end."""
    values = [row.number(objective.metric) for row in rows]
    low, high = usual_range(values, objective)
    return _scaled(objective.metric, "linear", [max(low, min(value, high)) for value in values], low, high)


def _even(key: str, values: Sequence[object]) -> Axis:
    ordered = sorted({repr(value): value for value in values if value is not None}.values(), key=_order)
    last = len(ordered) - 1
    places = {repr(value): round(number / last, 4) if last else 0.5 for number, value in enumerate(ordered)}
    step = math.ceil(len(ordered) / TICKS)
    ticks = [(places[repr(value)], number_text(value)) for value in ordered[::step]]
    names = {places[repr(value)]: number_text(value) for value in ordered}
    return Axis(key, "even", ticks, [places.get(repr(value)) for value in values], names=names)


def _scaled(key: str, scale: Scale, values: Iterable[float | None], low: float, high: float) -> Axis:
    span = (high - low) or 1.0
    places = [None if value is None else round((value - low) / span, 4) for value in values]
    raw = log_ticks(low, high) if scale == "logarithmic" else nice_ticks(low, high)
    # Ticks are round numbers, and close ones differ in later digits only.
    texts = [number_text(10**at) if scale == "logarithmic" else f"{at:.6g}" for at in raw]
    ticks = [(round((at - low) / span, 4), text) for at, text in zip(raw, texts, strict=True)]
    return Axis(key, scale, ticks, places, (low, high))


def nice_ticks(low: float, high: float) -> list[float]:
    """About five round numbers from ``low`` to ``high``; the step is 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks between two logarithms to base 10: those of powers of ten, of 1, 2 and 5 times these, or the ends."""
    whole = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(whole) > 1:
        return [float(power) for power in whole[:: math.ceil(len(whole) / TICKS)]]
    powers = range(math.floor(low), math.floor(high) + 1)
    finer = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    inside = [at for at in finer if low - 1e-9 <= at <= high + 1e-9]
    return inside if len(inside) > 1 else [low, high]


def _equally_far(values: Sequence[object]) -> bool:
    """Whether values are whole numbers at equal distances."""
    whole = sorted({value for value in values if isinstance(value, int)})
    return all(isinstance(value, int) for value in values) and len({b - a for a, b in pairwise(whole)}) <= 1


def _order(value: object) -> tuple[bool, float, str]:
    return not is_number(value), value if is_number(value) else 0.0, str(value)
