"""The values that a hyperparameter may have in a search, and how records write them.

Records have numbers and texts. Any other choice (None, a list, a class) is a text there, its label; a domain keeps
the objects beside their labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeGuard, get_args

from tuner.errors import one_line
from tuner.trial import AUTO, LARGEST_NUMBER, ConfigValue, Objects

if TYPE_CHECKING:
    from optuna import Trial

Kind = Literal["choice", "uniform", "loguniform", "int", "logint"]
CROSSED = "grid_search"  # what a choice is called whose values are all tried with each combination of the others
KINDS: tuple[str, ...] = (*get_args(Kind), CROSSED)
WHOLE = ("int", "logint")
ENDLESS = 10**30  # a range with more values is counted as having so many


@dataclass(frozen=True)
class Domain:
    """The values of a hyperparameter."""

    kind: Kind  # a list, or a range of floats or integers that are drawn uniformly or log-uniformly
    values: tuple[ConfigValue, ...]  # the list, or both ends of the range
    step: float | None = None  # the distance of a range's values, counted from its low end
    conditions: Mapping[str, tuple[ConfigValue, ...]] = field(default_factory=dict)  # by key, values that it needs
    objects: Mapping[str, object] = field(default_factory=dict)  # by label, what the user gave
    crossed: bool = False  # all values of a choice are combined with those of other such choices, as Tune does it

    def __str__(self) -> str:
        """The domain as a file has it."""
        step = f" with step {self.step:g}" if self.step else ""
        return f"{self.kind} [{', '.join(map(str, self.values))}]{step}"

    @property
    def ends(self) -> tuple[float, float]:
        """The two ends of a range."""
        low, high = (value for value in self.values if not isinstance(value, str))
        return low, high

    @property
    def scale(self) -> Literal["linear", "log"] | None:
        """The scale of a range; None for a list."""
        return None if self.kind == "choice" else "log" if self.kind.startswith("log") else "linear"

    @property
    def count(self) -> float:
        """The number of its values; infinite for a range of numbers without a step."""
        if self.kind == "choice":
            return len(set(self.values))  # a repeated value is drawn more often
        low, high = self.ends
        step = self.step or (1 if self.kind in WHOLE else None)
        return math.inf if step is None else min((_exact(high) - _exact(low)) // _exact(step) + 1, ENDLESS)

    @property
    def listed(self) -> tuple[ConfigValue, ...]:
        """The values of a choice, or of a range with a step."""
        return self.values if self.kind == "choice" else tuple(self._at(place) for place in range(int(self.count)))

    @property
    def is_constant(self) -> bool:
        """Whether it is a single value."""
        return self.kind == "choice" and len(self.values) == 1

    def applies(self, values: Mapping[str, ConfigValue]) -> bool:
        """Whether its conditions hold where the keys before it have these values."""
        return all(values.get(key) in allowed for key, allowed in self.conditions.items())

    def suggested(self, trial: Trial, key: str) -> ConfigValue:
        """A value that Optuna suggests. It knows no steps of logarithms, so these are rounded here."""
        if self.is_constant:
            return self.values[0]
        if self.kind == "choice":
            chosen: ConfigValue = trial.suggest_categorical(key, self.values)
            return chosen
        low, high = self.ends
        log, step = self.scale == "log", None if self.scale == "log" else self.step
        if step is not None:
            high = float(self.nearest(high))  # the last step, which may end before the range does
        if self.kind in WHOLE:
            return self.nearest(trial.suggest_int(key, int(low), int(high), log=log, step=int(step or 1)))
        return self.nearest(trial.suggest_float(key, low, high, log=log, step=step))

    def nearest(self, value: ConfigValue) -> ConfigValue:
        """The value itself, or the nearest one of a range with a step."""
        if self.step is None or isinstance(value, str):
            return value
        place = round((value - self.ends[0]) / self.step)
        return self._at(min(max(place, 0), int(self.count) - 1))

    def taken(self, value: object) -> ConfigValue | None:
        """A value that the user gave as this domain has it; None if it is outside."""
        if self.kind == "choice":
            plain = to_plain(value)
            plain = int(plain == "True") if isinstance(value, bool) and plain not in self.values else plain
            return next((known for known in self.values if known == plain), None)
        low, high = self.ends
        if not is_number(value, self.kind in WHOLE) or not low <= value <= high:
            return None
        typed = int(value) if self.kind in WHOLE else float(value)
        found = self.nearest(typed)
        return found if isinstance(found, str) or math.isclose(found, typed, rel_tol=1e-9, abs_tol=1e-12) else None

    def _at(self, place: int) -> ConfigValue:
        """The value after this many steps, as people write it: 0.3 and not 0.30000000000000004."""
        value = _exact(self.ends[0]) + place * _exact(self.step or 1)
        return int(value) if self.kind in WHOLE else float(value)


Space = Mapping[str, Domain]  # by key; a key stands behind those that its conditions name


def suggested(trial: Trial, space: Space) -> dict[str, ConfigValue]:
    """A value of each key whose conditions hold, as Optuna suggests them to a trial."""
    values: dict[str, ConfigValue] = {}
    for key, domain in space.items():
        if domain.applies(values):
            values[key] = domain.suggested(trial, key)
    return values


def size(space: Space) -> float:
    """The number of configurations in a space; infinite if a domain is a range of numbers without a step."""
    return _count(list(space), space, {})


def _count(keys: Sequence[str], space: Space, values: Mapping[str, ConfigValue]) -> float:
    """The number of configurations of these keys. ``values`` are of those before them that conditions name."""
    if not keys:
        return 1
    key, *rest = keys
    domain = space[key]
    if not domain.applies(values):
        return _count(rest, space, values)
    named = {value for other in space.values() for value in other.conditions.get(key, ())}
    counts = [_count(rest, space, {**values, key: value}) for value in named]
    others = domain.count - len(named)
    return math.fsum([*counts, others * _count(rest, space, values) if others else 0])


def _exact(number: float) -> Fraction:
    return Fraction(str(number))


def is_number(value: object, whole: bool = False) -> TypeGuard[float]:
    """Whether it is a number that records can have, and a whole one if that is asked for."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        return False
    return not whole or value == int(value)


def to_plain(value: object) -> ConfigValue:
    """A value as records have it: a number or a text; the label of anything else.

    The text ``AUTO`` has a label, too, as it is a batch size that tuner chooses only for a workload.
    """
    if (type(value) is str and value != AUTO) or (type(value) in (int, float) and is_number(value)):
        return value
    return label(value)


def label(value: object) -> str:
    """What records call a value: a class or a function by its name, anything else as Python writes it."""
    if isinstance(value, (list, tuple)):
        inner = ", ".join(label(inside) for inside in value)
        comma = "," if len(value) == 1 else ""
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{comma})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {label(inside)}" for key, inside in value.items()) + "}"
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else re.sub(" at 0x[0-9a-fA-F]+", "", one_line(repr(value)))


def flat(values: Mapping[str, object], group: str = "") -> dict[str, object]:
    """The values of groups by keys such as ``model.hidden``.

    A mapping with a dot in a key is a value: as a group it would come back with another shape.
    """
    found: dict[str, object] = {}
    for name, value in values.items():
        is_group = isinstance(value, Mapping) and value and all(_names_part(key) for key in value)
        found |= flat(value, f"{group}{name}.") if is_group else {f"{group}{name}": value}  # type: ignore[arg-type]
    return found


def _names_part(key: object) -> bool:
    """Whether a key of a mapping can be a part of a key such as ``model.hidden``."""
    return isinstance(key, str) and "." not in key


def objects_of(space: Space) -> Objects:
    """By key, what the labels of a space stand for: what ``tuner.trial.arguments`` needs."""
    return {key: domain.objects for key, domain in space.items() if domain.objects}
