"""A search space: for every hyperparameter a value, a list of them, or a range.

    space:
      hidden_dim: {choice: [32, 64, 128]}
      lr: {loguniform: [1e-4, 1e-1]}
      dropout: {uniform: [0, 0.5]}
      num_layers: {int: [1, 4]}
      batch_size: {logint: [1000, 100000]}
      epochs: 20

Both ends of a range belong to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, get_args

from tuner.errors import InputError
from tuner.search.configurations import Schema, faults
from tuner.trial import AUTO

Kind = Literal["choice", "uniform", "loguniform", "int", "logint"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Domain:
    """What a hyperparameter may be.

    Attributes:
        kind: how values are drawn: of a list, or of a range of numbers or of whole numbers, evenly or evenly in their
            logarithms.
        values: the list, or the two ends of the range.
    """

    kind: Kind
    values: tuple[Any, ...]

    def sample(self, random: Random) -> Any:
        """A value drawn at random."""
        if self.kind == "choice":
            return random.choice(self.values)
        low, high = self.values
        if self.kind == "uniform":
            return random.uniform(low, high)
        if self.kind == "int":
            return random.randint(low, high)
        end = high + 1 if self.kind == "logint" else high
        drawn = math.exp(random.uniform(math.log(low), math.log(end)))
        return min(high, max(low, int(drawn) if self.kind == "logint" else drawn))


Space = Mapping[str, Domain]


def parse_space(given: object, schema: Schema, source: str) -> dict[str, Domain]:
    """Turns a mapping, as the module's text shows one, into domains that a workload's hyperparameters allow.

    Args:
        given: the mapping.
        schema: the workload's hyperparameters by name.
        source: what error messages call it.

    Raises:
        InputError: it is no mapping, is empty, or has unknown keys, unknown kinds of domain, or ends and values that
            are wrong or that the workload does not allow; every fault is in the one message.
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{source}: 'space' must be a mapping from hyperparameter to a value or a range")
    found: list[str] = []
    space = {}
    for key, value in given.items():
        kind, values = _kind_of(value)
        wrong = _wrong(key, kind, values, schema)
        found += wrong
        if not wrong:
            typed = (_typed(each, kind, type(schema[key].default)) for each in values)
            space[str(key)] = Domain(kind, tuple(typed))  # type: ignore[arg-type]
    if found:
        raise InputError(f"{source}: " + "; ".join(dict.fromkeys(found)))
    return space


def size(space: Space) -> float:
    """How many configurations a space has; infinite where one of its domains is a range of numbers."""
    sizes: list[float] = []
    for domain in space.values():
        if domain.kind == "choice":
            sizes.append(len(set(domain.values)))  # one that is there twice is drawn twice as often
        else:
            low, high = domain.values
            sizes.append(high - low + 1 if domain.kind in ("int", "logint") else math.inf)
    return math.prod(sizes)


def grid(space: Space, source: str) -> list[dict[str, Any]]:
    """Every combination of a space's values, the last hyperparameter changing fastest.

    Raises:
        InputError: one of its domains is a range.
    """
    if ranges := [key for key, domain in space.items() if domain.kind != "choice"]:
        raise InputError(
            f"{source}: {', '.join(ranges)}: a range has no grid: give {{choice: [...]}}, or use --search random or "
            "optuna"
        )
    return [
        dict(zip(space, row, strict=True)) for row in itertools.product(*(each.values for each in space.values()))
    ]


def _kind_of(value: object) -> tuple[str, Any]:
    """The kind of a domain and what it has; a value by itself is a list of one."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, values),) = value.items()
        return str(kind), values
    return ("", value) if isinstance(value, (Mapping, list, tuple)) else ("choice", [value])


def _wrong(key: object, kind: str, values: Any, schema: Schema) -> list[str]:
    """What is wrong with a hyperparameter's domain, each in a few words."""
    if key not in schema:
        return faults({key: None}, schema)
    if kind not in KINDS:
        shown = f"{kind!r} is no kind of domain" if kind else f"{values!r} is no domain"
        return [f"{key}: {shown}: give a value or one of {', '.join(f'{{{each}: [...]}}' for each in KINDS)}"]
    if not isinstance(values, (list, tuple)) or not values:
        return [f"{key}: {kind} {values!r}: expected a list that is not empty"]
    if kind != "choice" and (problem := _wrong_range(kind, values, schema[str(key)].default)):
        return [f"{key}: {kind} {list(values)!r} {problem}"]
    return [fault for value in values for fault in faults({key: value}, schema)]


def _wrong_range(kind: str, ends: Any, default: object) -> str:
    """What is wrong with the ends of a range, whatever its hyperparameter allows; empty if nothing is."""
    whole = kind in ("int", "logint")
    if isinstance(default, str):
        return "is a range, but the hyperparameter is text: give {choice: [...]}"
    if len(ends) != 2 or not all(_is_number(end, whole) for end in ends):
        return f"must be two {'whole numbers' if whole else 'numbers'}, its ends"
    if isinstance(default, int) and not whole:
        return f"must be of whole numbers: give {{{'logint' if kind == 'loguniform' else 'int'}: [...]}}"
    low, high = ends
    if not low < high:
        one = f"; for one value give {low}" if low == high else ""
        return f"must rise: its low end comes first{one}"
    return "must begin above 0, as it has a logarithm" if kind.startswith("log") and low <= 0 else ""


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return not whole or value == int(value)


def _typed(value: Any, kind: str, own: type) -> Any:
    """A value as configurations have it; the ends of a range of whole numbers stay whole."""
    if value == AUTO:
        return value
    return int(value) if kind in ("int", "logint") else own(value)
