"""Grids and random draws of a space."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from tuner.errors import InputError, ParameterError, option
from tuner.search.configurations import check_grid
from tuner.search.domains import Space
from tuner.trial import ConfigValue

Values = dict[str, ConfigValue]
MAX_REJECTED_DRAWS = 1000  # in a row


def size(space: Space) -> float:
    """The number of configurations in a space; infinite if a domain is a range of numbers without a step."""
    return _count(list(space), space, {})


def _count(keys: Sequence[str], space: Space, values: Values) -> float:
    """The number of configurations of these keys. ``values`` are of those before them that conditions name."""
    if not keys:
        return 1
    key, *rest = keys
    domain = space[key]
    if not domain.applies(values):
        return _count(rest, space, values)
    named = {value for each in space.values() for value in each.conditions.get(key, ())}
    counts = [_count(rest, space, {**values, key: value}) for value in named]
    others = domain.count - len(named)
    return math.fsum([*counts, others * _count(rest, space, values) if others else 0])


def grid(space: Space, source: str, points: Sequence[Mapping[str, ConfigValue]] = (), seed: int = 0) -> list[Values]:
    """All combinations of a space's values; the last hyperparameter varies fastest.

    Those that complete ``points`` come first. A range without a step raises ``InputError``.
    """
    if ranges := [key for key, domain in space.items() if domain.kind != "choice" and domain.step is None]:
        raise InputError(
            f"{source}: {', '.join(ranges)}: a range has no grid: give {{choice: [...]}} or a step, or use "
            f"{option('search', 'random')} or optuna"
        )
    check_grid(size(space), source)
    rows: list[Values] = [{}]
    for key, domain in space.items():
        rows = [
            {**row, **value}
            for row in rows
            for value in ([{key: each} for each in domain.listed] if domain.applies(row) else [{}])
        ]
    random = Random(seed)
    first: list[Values] = []
    for point in points:
        if (row := _completed(point, space, random)) not in first:
            first.append(row)
    return [*first, *(row for row in rows if row not in first)]


def draw(
    space: Space,
    number: int,
    seed: int,
    source: str,
    usable: Callable[[Mapping[str, ConfigValue]], str] = lambda _: "",
    points: Sequence[Mapping[str, ConfigValue]] = (),
) -> list[Values]:
    """Draws this number of different random configurations, which only depend on the seed and the points.

    The first ones complete ``points``. ``usable`` returns why a combination of values is rejected, or an empty text.
    Rejected values are drawn again. A space with fewer configurations raises ``InputError``.
    """
    if number > size(space):
        raise ParameterError("num_samples", number, f"{source} has {size(space):g}", f"give at most {size(space):g}")
    if number < len(points):
        rule = f"{source} has {len(points)} points to try first"
        raise ParameterError("num_samples", number, rule, f"give at least {len(points)}")
    random = Random(seed)
    drawn: list[Values] = []
    rejected, reason = 0, ""
    while len(drawn) < number:
        point = points[len(drawn)] if len(drawn) < len(points) else {}
        values = _completed(point, space, random)
        reason = "all were drawn already" if values in drawn else usable(values)
        rejected = rejected + 1 if reason else 0
        if rejected == MAX_REJECTED_DRAWS:
            rule = f"{source} gave {len(drawn)} usable ones, and then none in {MAX_REJECTED_DRAWS} draws"
            raise ParameterError("num_samples", number, f"{rule}; reason of the last: {reason}")
        if not reason:
            drawn.append(values)
    return drawn


def _completed(point: Mapping[str, ConfigValue], space: Space, random: Random) -> Values:
    """A configuration of these values, the others being drawn."""
    values: Values = {}
    for key, domain in space.items():
        if domain.applies(values):
            values[key] = point[key] if key in point else domain.sample(random)
    return values
