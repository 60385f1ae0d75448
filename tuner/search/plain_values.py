"""Turns a space or configurations from Python into the values of a file, and those into what ``study.json`` can keep.

Domains of Ray Tune and distributions of Optuna become mappings, and numpy's numbers Python's. Choices may be any
objects; ``study.json`` has a mark in the place of what JSON cannot hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import LambdaType
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.search.configurations import Configs
from tuner.search.domains import KINDS, is_number, label

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from ray.tune.search.sample import Domain

KNOWN = "tune.choice, uniform, loguniform, randint, lograndint, their quantized kinds or grid_search"
OBJECT = "python object"  # the key of a mark


def plain_configs(config: Configs) -> Configs:
    """The configurations as mappings and lists of values; a file as its path. Other types raise ``InputError``."""
    if isinstance(config, (str, Path)):
        return str(config)
    if isinstance(config, Mapping):
        return {
            str(key): plain_space(each) if key == "space" else _value(each, "config") for key, each in config.items()
        }
    if not isinstance(config, Sequence) or not all(isinstance(each, Mapping) for each in config):
        raise InputError(
            "config: expected a file's path, a list of mappings, or a mapping as a file holds one, not "
            f"{config!r:.60}"
        )
    return [_mapping(each, "config") for each in config if isinstance(each, Mapping)]


def plain_points(points: object) -> object:
    """The points as mappings of values."""
    if isinstance(points, Mapping):
        return {str(key): plain_points(each) for key, each in points.items()}
    return [plain_points(each) for each in points] if isinstance(points, list) else _scalar(points)


def plain_space(space: object) -> object:
    """The space with each domain in the form of ``tuner.search.spaces``; a file as its path.

    A domain that is not supported raises ``InputError``.
    """
    if isinstance(space, (str, Path)):
        return str(space)
    if not isinstance(space, Mapping):
        raise InputError(f"space: must be a mapping from hyperparameter to a value or a range, not {space!r:.60}")
    return {str(key): _plain(str(key), value) for key, value in space.items()}


def stored(value: object) -> object:
    """A value as JSON can hold it: a mark, with its label, in the place of an object."""
    if value is None or isinstance(value, (bool, str)) or is_number(value):
        return value
    if isinstance(value, list):
        return [stored(each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: stored(each) for key, each in value.items()}
    return {OBJECT: label(value)}


def has_objects(kept: object) -> bool:
    """Whether something that ``study.json`` kept has marks, so that only Python can give it again."""
    inner = kept.values() if isinstance(kept, Mapping) else kept if isinstance(kept, list) else ()
    return (isinstance(kept, Mapping) and OBJECT in kept) or any(has_objects(each) for each in inner)


def _mapping(value: Mapping[str, object], source: str) -> dict[str, object]:
    return {str(key): _value(each, source) for key, each in value.items()}


def _value(value: object, source: str) -> object:
    """Configurations' values: tuples, ranges and arrays are lists there."""
    if isinstance(value, Mapping):
        return _mapping(value, source)
    value = _scalar(value)
    listed = _list(value)
    return value if listed is None else [_value(each, source) for each in listed]


def _scalar(value: object) -> Any:
    """A number or a text of numpy as Python's; anything else as it is."""
    to_python = getattr(value, "item", None)
    return to_python() if getattr(value, "shape", None) == () and to_python else value


def _list(value: object) -> list[object] | None:
    """What stands for a list as one; None for anything else."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if to_list else None


def _plain(key: str, value: object) -> object:
    """A domain, a group or a single value of a space."""
    if isinstance(value, Mapping) and set(value) == {"grid_search"}:
        return {"choice": _choices(key, value["grid_search"])}
    if isinstance(value, Mapping):
        kinds = {str(each): value[each] for each in value}
        return {
            name: _choices(key, inner) if name in KINDS else inner if name == "if" else _plain(f"{key}.{name}", inner)
            for name, inner in kinds.items()
        }
    if type(value).__module__.startswith("ray.tune"):
        return _of_tune(key, value)
    if type(value).__module__.startswith("optuna.distributions"):
        return _of_optuna(key, value)
    if hasattr(value, "rvs") or (isinstance(value, LambdaType) and value.__name__ == "<lambda>"):
        raise InputError(f"space: {key}: {label(value)} is no domain: use {', '.join(KINDS)} or {KNOWN}")
    value = _scalar(value)
    return value if (listed := _list(value)) is None else listed


def _choices(key: str, values: object) -> object:
    """The values of a choice, or the ends of a range."""
    listed = _list(values)
    if listed is None:
        return _scalar(values)  # told by ``parse_space``
    for each in listed:
        if type(each).__module__.startswith(("ray.tune.search.sample", "optuna.distributions")):
            raise InputError(f"space: {key}: a domain cannot be a choice: give it a key of its own, with 'if'")
    return [_scalar(each) for each in listed]


def _of_tune(key: str, value: Domain) -> dict[str, object]:
    sampler, step = value.get_sampler(), None
    if hasattr(sampler, "q"):
        step, sampler = _scalar(sampler.q), sampler.sampler
    name = type(sampler).__name__.strip("_")
    if type(value).__name__ == "Categorical" and name == "Uniform":
        return {"choice": _choices(key, value.categories)}
    kinds = {("Float", "Uniform"): "uniform", ("Float", "LogUniform"): "loguniform"}
    kinds |= {("Integer", "Uniform"): "int", ("Integer", "LogUniform"): "logint"}
    kind = kinds.get((type(value).__name__, name))
    if kind is None:
        what = "sample_from" if type(value).__name__ == "Function" else f"{name} {type(value).__name__}"
        raise InputError(f"space: {key}: {what} of ray.tune: use {KNOWN}")
    low, high = _scalar(value.lower), _scalar(value.upper)
    if kind in ("int", "logint") and step in (None, 1):  # only then Tune's range excludes its end
        return {kind: [low, high - 1]}
    # Tune's values are multiples of the step.
    return {kind: [low, high]} if step is None else _range(kind, _multiple_from(low, step), high, step)


def _of_optuna(key: str, value: BaseDistribution) -> dict[str, object]:
    if hasattr(value, "choices"):
        return {"choice": _choices(key, value.choices)}
    kinds = [each.__name__ for each in type(value).__mro__]
    kind = "int" if "IntDistribution" in kinds else "uniform"
    kind = {"int": "logint", "uniform": "loguniform"}[kind] if value.log else kind
    step = None if kind != "uniform" and value.step == 1 else value.step
    return _range(kind, value.low, value.high, step)


def _range(kind: str, low: float, high: float, step: float | None) -> dict[str, object]:
    """A range; of a single value a choice."""
    if low == high or (step is not None and Decimal(str(low)) + Decimal(str(step)) > Decimal(str(high))):
        return {"choice": [low]}
    return {kind: [low, high]} if step is None else {kind: [low, high], "step": step}


def _multiple_from(low: float, step: float) -> float:
    """The first multiple of the step that is not below."""
    exact = Decimal(str(step))
    return type(low)(math.ceil(Decimal(str(low)) / exact) * exact)
