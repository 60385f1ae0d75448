"""The values that a hyperparameter may have in a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeGuard, get_args

from tuner.trial import LARGEST_NUMBER, ConfigValue, Objects
from tuner.values import categories, is_number, label, plain, value_key

if TYPE_CHECKING:
    from optuna import Trial

Kind = Literal["choice", "uniform", "loguniform", "int", "logint"]
CROSSED = "grid_search"  # what a choice is called whose values are all tried with each combination of the others
KINDS: tuple[str, ...] = (*get_args(Kind), CROSSED)
WHOLE = ("int", "logint")
ENDLESS = 10**30  # the most values that are counted


@dataclass(frozen=True)
class Domain:
    """The values of a hyperparameter."""

    kind: Kind  # a list, or a range of floats or integers that are drawn uniformly or log-uniformly
    values: tuple[ConfigValue, ...]  # the list, or both ends of the range
    step: float | None = None  # the distance of a range's values, counted from its low end
    conditions: Mapping[str, tuple[ConfigValue, ...]] = field(default_factory=dict)  # by key, values that it needs
    objects: Mapping[str, object] = field(default_factory=dict)  # by a value's key, what the user gave
    crossed: bool = False  # whether all its values are combined with those of other such choices, as in Tune

    def __str__(self) -> str:
        """The domain in the form of a file."""
        step = f" with step {self.step:g}" if self.step else ""
        return f"{self.kind} [{', '.join(map(label, self.values))}]{step}"

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
            return len(set(map(value_key, self.values)))  # a repeated value is drawn more often
        low, high = self.ends
        step = self.step or (1 if self.kind in WHOLE else None)
        return math.inf if step is None else min((exact(high) - exact(low)) // exact(step) + 1, ENDLESS)

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
        keys = {name: value_key(values[name]) for name in self.conditions if name in values}
        return all(keys.get(name, "") in map(value_key, allowed) for name, allowed in self.conditions.items())

    @cached_property
    def _by_key(self) -> Mapping[str, ConfigValue]:
        """Optuna's category for each value of a choice, by the value's key."""
        return categories(self.values) if self.kind == "choice" else {}

    @property
    def categories(self) -> tuple[ConfigValue, ...]:
        """Optuna's category for each value of a choice."""
        return tuple(self._by_key[value_key(value)] for value in self.values)

    @property
    def _in_steps(self) -> bool:
        """Whether Optuna suggests a number of steps and no value, as it rounds sums of decimals."""
        return self.kind == "uniform" and self.step is not None

    def category(self, value: ConfigValue) -> ConfigValue:
        """Optuna's form of a value."""
        if self._in_steps:
            return self._place(value)
        value = self.objects.get(value_key(value), value)  # also of a label of an earlier version
        return self._by_key.get(value_key(value), value)

    def of_category(self, category: ConfigValue) -> ConfigValue:
        """The value of a choice with this category in Optuna."""
        same = value_key(category)
        return next((value for value in self.values if value_key(self.category(value)) == same), category)

    def suggested(self, trial: Trial, name: str, most: float = math.inf) -> ConfigValue:
        """A value that Optuna suggests. It knows no steps of logarithms, so these are rounded here.

        A range of more integers than ``most`` is one of numbers for it.
        """
        if self.is_constant:
            return self.values[0]
        if self.kind == "choice":
            return self.of_category(trial.suggest_categorical(name, self.categories))
        low, high = (0, self._place(self.ends[1])) if self._in_steps else self.ends
        log, whole = self.scale == "log", self._in_steps or self.kind in WHOLE
        if whole and self.count <= most:
            step = 1 if log or self._in_steps else int(self.step or 1)
            drawn = trial.suggest_int(name, int(low), int(high) - (int(high) - int(low)) % step, log=log, step=step)
        else:
            drawn = trial.suggest_float(name, low, high, log=log)
            drawn = min(max(round(drawn), int(low)), int(high)) if whole else drawn
        return self._at(drawn) if self._in_steps else self.nearest(drawn)

    def nearest(self, value: ConfigValue) -> ConfigValue:
        """The value itself, or the nearest one of a range with a step."""
        return value if self.step is None else self._at(self._place(value))

    def taken(self, value: object) -> tuple[ConfigValue, ...]:
        """A value that the user gave, as a value of this domain; empty if it is outside."""
        value = plain(value)
        if self.kind == "choice":
            same = [choice for choice in self.values if value_key(choice) == value_key(value)]
            return tuple((same or [choice for choice in self.values if choice == value])[:1])
        low, high = self.ends
        if not is_recordable(value, self.kind in WHOLE) or not low <= value <= high:
            return ()
        typed = int(value) if self.kind in WHOLE else float(value)
        nearest = self.nearest(typed)
        return (nearest,) if math.isclose(nearest, typed, rel_tol=1e-9, abs_tol=1e-12) else ()

    def _place(self, value: ConfigValue) -> int:
        """After how many steps the nearest value is."""
        place = round((exact(value) - exact(self.ends[0])) / exact(self.step or 1))
        return min(max(place, 0), int(self.count) - 1)

    def _at(self, place: int) -> ConfigValue:
        """The value after this many steps, as people write it: 0.3 and not 0.30000000000000004."""
        value = exact(self.ends[0]) + place * exact(self.step or 1)
        return int(value) if self.kind in WHOLE else float(value)


Space = Mapping[str, Domain]  # by key; a key stands behind those that its conditions name


def suggested(trial: Trial, space: Space, most: float = math.inf) -> dict[str, ConfigValue]:
    """A value of each key whose conditions hold, as Optuna suggests them to a trial; see ``Domain.suggested``."""
    values: dict[str, ConfigValue] = {}
    for key, domain in space.items():
        if domain.applies(values):
            values[key] = domain.suggested(trial, key, most)
    return values


def in_optuna(space: Space, values: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The values of a space's keys in Optuna's form, to be enqueued."""
    return {name: space[name].category(value) for name, value in values.items() if name in space}


def size(space: Space) -> float:
    """The number of configurations in a space; infinite if a domain is a range of numbers without a step."""
    return _count(list(space), space, {})


def _count(keys: Sequence[str], space: Space, values: Mapping[str, ConfigValue]) -> float:
    """The number of configurations of these keys. ``values`` are of those before them that conditions name."""
    if not keys:
        return 1
    name, *rest = keys
    domain = space[name]
    if not domain.applies(values):
        return _count(rest, space, values)
    named = {value_key(value): value for other in space.values() for value in other.conditions.get(name, ())}
    counts = [_count(rest, space, {**values, name: value}) for value in named.values()]
    others = domain.count - len(named)
    return math.fsum([*counts, others * _count(rest, space, values) if others else 0])


def exact(number: float) -> Fraction:
    """The number as people write it, which sums do not round."""
    return Fraction(str(number))


def is_recordable(value: object, whole: bool = False) -> TypeGuard[float]:
    """Whether it is a number that records can hold, and a whole one if ``whole``."""
    return is_number(value) and abs(value) <= LARGEST_NUMBER and (not whole or value == int(value))


def flat(values: Mapping[str, object], group: str = "") -> Iterator[tuple[str, object]]:
    """The values of groups with keys such as ``model.hidden``.

    A mapping with other keys than names is a value: as a group it would come back with another shape.
    """
    for name, value in values.items():
        if is_group(value):
            yield from flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}" if group else name, value


def is_group(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether it is a mapping whose keys can be parts of a key such as ``model.hidden``."""
    named = isinstance(value, Mapping) and all(isinstance(name, str) and "." not in name for name in value)
    return named and bool(value)


def objects_of(space: Space) -> Objects:
    """By key, what the labels of a space stand for."""
    return {key: domain.objects for key, domain in space.items() if domain.objects}
