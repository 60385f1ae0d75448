"""Search spaces, with grids and random draws. Each hyperparameter has a value, a list of values, or a range.

    space:
      hidden_dim: {choice: [32, 64, 128]}
      lr: {loguniform: [1e-4, 1e-1]}
      dropout: {uniform: [0, 0.5]}
      num_layers: {int: [1, 4]}
      batch_size: {logint: [1000, 100000]}
      epochs: 20

A range includes both ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeGuard, get_args

from tuner.errors import InputError, ParameterError, option
from tuner.search.configurations import Schema, faults
from tuner.trial import AUTO, ConfigValue

Kind = Literal["choice", "uniform", "loguniform", "int", "logint"]
KINDS: tuple[str, ...] = get_args(Kind)
MAX_REJECTED_DRAWS = 1000  # in a row


@dataclass(frozen=True)
class Domain:
    """The values of a hyperparameter."""

    kind: Kind  # a list, or a range of floats or integers that are drawn uniformly or log-uniformly
    values: tuple[ConfigValue, ...]  # the list, or both ends of the range

    @property
    def ends(self) -> tuple[float, float]:
        """The two ends of a range."""
        low, high = (value for value in self.values if not isinstance(value, str))
        return low, high

    def sample(self, random: Random) -> ConfigValue:
        """A value drawn at random."""
        if self.kind == "choice":
            return random.choice(self.values)
        low, high = self.ends
        if self.kind == "uniform":
            return random.uniform(low, high)
        if self.kind == "int":
            return random.randint(int(low), int(high))
        end = high + 1 if self.kind == "logint" else high
        drawn = math.exp(random.uniform(math.log(low), math.log(end)))
        return min(high, max(low, int(drawn) if self.kind == "logint" else drawn))


Space = Mapping[str, Domain]


def parse_space(given: object, schema: Schema, source: str) -> dict[str, Domain]:
    """Turns a mapping such as the one at the top of this module into domains. ``source`` is its name in errors.

    Wrong keys, kinds, ends and values raise one ``InputError`` with every fault.
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{source}: 'space' must be a mapping from hyperparameter to a value or a range")
    found: list[str] = []
    space = {}
    for key, value in given.items():
        kind, values = _kind_of(value)
        wrong = _wrong(key, kind, values, schema)
        found += wrong
        if not wrong and isinstance(values, (list, tuple)):
            typed = (_typed(each, kind, type(schema[key].default)) for each in values)
            space[str(key)] = Domain(kind, tuple(typed))  # type: ignore[arg-type]
    if found:
        raise InputError(f"{source}: " + "; ".join(dict.fromkeys(found)))
    return space


def size(space: Space) -> float:
    """The number of configurations in a space; infinite if a domain is a range of numbers."""
    sizes: list[float] = []
    for domain in space.values():
        if domain.kind == "choice":
            sizes.append(len(set(domain.values)))  # a repeated value is drawn more often
        else:
            low, high = domain.ends
            sizes.append(high - low + 1 if domain.kind in ("int", "logint") else math.inf)
    return math.prod(sizes)


def grid(space: Space, source: str) -> list[dict[str, ConfigValue]]:
    """All combinations of a space's values; the last hyperparameter varies fastest. A range raises ``InputError``."""
    if ranges := [key for key, domain in space.items() if domain.kind != "choice"]:
        raise InputError(
            f"{source}: {', '.join(ranges)}: a range has no grid: give {{choice: [...]}}, or use "
            f"{option('search', 'random')} or optuna"
        )
    return [
        dict(zip(space, row, strict=True)) for row in itertools.product(*(each.values for each in space.values()))
    ]


def draw(
    space: Space,
    number: int,
    seed: int,
    source: str,
    usable: Callable[[Mapping[str, ConfigValue]], str] = lambda _: "",
) -> list[dict[str, ConfigValue]]:
    """Draws this number of different random configurations, which only depend on the seed.

    ``usable`` returns why a combination of values is rejected, or an empty text. Rejected values are drawn again. A
    space with fewer configurations raises ``InputError``.
    """
    if number > size(space):
        raise ParameterError("num_samples", number, f"{source} has {size(space):g}", f"give at most {size(space):g}")
    random = Random(seed)
    drawn: list[dict[str, ConfigValue]] = []
    rejected, reason = 0, ""
    while len(drawn) < number:
        values = {key: domain.sample(random) for key, domain in space.items()}
        reason = "all were drawn already" if values in drawn else usable(values)
        rejected = rejected + 1 if reason else 0
        if rejected == MAX_REJECTED_DRAWS:
            rule = f"{source} gave {len(drawn)} usable ones, and then none in {MAX_REJECTED_DRAWS} draws"
            raise ParameterError("num_samples", number, f"{rule}; reason of the last: {reason}")
        if not reason:
            drawn.append(values)
    return drawn


def _kind_of(value: object) -> tuple[str, object]:
    """A domain's kind and values; a single value is a list of one."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, values),) = value.items()
        return str(kind), values
    return ("", value) if isinstance(value, (Mapping, list, tuple)) else ("choice", [value])


def _wrong(key: str, kind: str, values: object, schema: Schema) -> list[str]:
    """The faults of a hyperparameter's domain, each in a few words."""
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


def _wrong_range(kind: str, ends: Sequence[object], default: ConfigValue) -> str:
    """The fault of a range's ends, or an empty text. The hyperparameter's bounds are checked elsewhere."""
    whole = kind in ("int", "logint")
    if isinstance(default, str):
        return "is a range, but the hyperparameter is text: give {choice: [...]}"
    numbers = [end for end in ends if _is_number(end, whole)]
    if not len(ends) == len(numbers) == 2:
        return f"must be two {'whole numbers' if whole else 'numbers'}, its ends"
    if isinstance(default, int) and not whole:
        return f"must be of whole numbers: give {{{'logint' if kind == 'loguniform' else 'int'}: [...]}}"
    low, high = numbers
    if not low < high:
        one = f"; for one value give {low}" if low == high else ""
        return f"must rise: its low end comes first{one}"
    return "must begin above 0, as it has a logarithm" if kind.startswith("log") and low <= 0 else ""


def _is_number(value: object, whole: bool) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return not whole or value == int(value)


def _typed(value: object, kind: str, own: type[int] | type[float] | type[str]) -> ConfigValue:
    """A value as in configurations; the ends of a range of whole numbers stay whole."""
    assert isinstance(value, (int, float, str))
    if value == AUTO:
        return value
    return int(value) if kind in ("int", "logint") else own(value)
