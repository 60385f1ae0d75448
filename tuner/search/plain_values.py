"""Turns a space or configurations from Python into the form of a file.

Domains of Ray Tune and distributions of Optuna become mappings. Values may be any objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import LambdaType
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.search.configurations import Configs
from tuner.search.domains import KINDS, is_group
from tuner.trial import ConfigValue
from tuner.values import label

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from ray.tune.search.sample import Domain

KNOWN = "tune.choice, uniform, loguniform, randint, lograndint, their quantized kinds or grid_search"
TUNE_KINDS = {  # by the classes of a domain and of its sampler
    ("Float", "_Uniform"): "uniform",
    ("Float", "_LogUniform"): "loguniform",
    ("Integer", "_Uniform"): "int",
    ("Integer", "_LogUniform"): "logint",
}


def plain_configs(config: Configs) -> Configs:
    """The configurations as mappings and lists of values; a file as its path. Other types raise ``InputError``."""
    if isinstance(config, (str, Path)):
        return config
    if isinstance(config, Mapping):
        return {key: _part(key, value) for key, value in config.items()}
    if not isinstance(config, Sequence) or not all(isinstance(entry, Mapping) for entry in config):
        raise InputError(
            "config: expected a file's path, a list of mappings, or a mapping as a file holds one, not "
            f"{config!r:.60}"
        )
    return config


def _part(key: object, value: object) -> object:
    """A part of a file of configurations. The alternatives of a grid may be any sequence."""
    if key == "space":
        return plain_space(value)
    if key == "grid" and isinstance(value, Mapping):
        return {name: _list(alternatives) or alternatives for name, alternatives in value.items()}
    return value


def plain_space(space: object) -> object:
    """The space with each domain in the form of ``tuner.search.spaces``; a file as its path.

    A domain that is not supported raises ``InputError``.
    """
    if isinstance(space, (str, Path)):
        return space
    if not isinstance(space, Mapping):
        raise InputError(f"space: must be a mapping from hyperparameter to a value or a range, not {space!r:.60}")
    return {key: _plain(str(key), value) for key, value in space.items()}


def _scalar(value: ConfigValue) -> ConfigValue:
    """A number or a text of numpy as Python's; anything else as it is, a tensor with a single number too."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def _list(value: object) -> list[object] | None:
    """What stands for a list as one; None for anything else."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if to_list else None


def _plain(key: str, value: object) -> object:
    """A domain, a group or a single value of a space."""
    if is_group(value):
        return {name: _inner(key, name, inner) for name, inner in value.items()}
    if type(value).__module__.startswith("ray.tune"):
        return _of_tune(key, value)
    if type(value).__module__.startswith("optuna.distributions"):
        return _of_optuna(key, value)
    if hasattr(value, "rvs") or (isinstance(value, LambdaType) and value.__name__ == "<lambda>"):
        raise InputError(f"space: {key}: {label(value)} is not a domain: use {', '.join(KINDS)} or {KNOWN}")
    return value


def _inner(key: str, name: str, value: object) -> object:
    """What a mapping of a space has under a name: values of a domain, a condition, or a hyperparameter of a group."""
    if name in KINDS:
        return _choices(key, value)
    return value if name == "if" else _plain(f"{key}.{name}", value)


def _choices(key: str, values: object) -> object:
    """The values of a choice, or the ends of a range."""
    listed = _list(values)
    if listed is None:
        return _scalar(values)  # told by ``parse_space``
    for value in listed:
        if type(value).__module__.startswith(("ray.tune.search.sample", "optuna.distributions")):
            raise InputError(f"space: {key}: a domain cannot be a choice: give it a key of its own, with 'if'")
    return [_scalar(value) for value in listed]


def _of_tune(key: str, value: Domain) -> dict[str, object]:
    sampler, step = value.get_sampler(), None
    if hasattr(sampler, "q"):
        step, sampler = _scalar(sampler.q), sampler.sampler
    domain, name = type(value).__name__, type(sampler).__name__
    if (domain, name) == ("Categorical", "_Uniform"):
        return {"choice": _choices(key, value.categories)}
    kind = TUNE_KINDS.get((domain, name))
    if kind is None:
        what = "sample_from" if domain == "Function" else f"{name.strip('_')} {domain}"
        raise InputError(f"space: {key}: {what} of ray.tune: use {KNOWN}")
    low, high = _scalar(value.lower), _scalar(value.upper)
    if kind in ("int", "logint") and step in (None, 1):  # only then Tune's range excludes its end
        return _range(kind, low, high - 1, None)
    if step is None:
        return _range(kind, low, high, None)
    exact = Decimal(str(step))  # Tune's values are multiples of the step
    return _range(kind, type(low)(math.ceil(Decimal(str(low)) / exact) * exact), high, step)


def _of_optuna(key: str, value: BaseDistribution) -> dict[str, object]:
    if hasattr(value, "choices"):
        return {"choice": _choices(key, value.choices)}
    whole = any(base.__name__ == "IntDistribution" for base in type(value).__mro__)
    linear, log = ("int", "logint") if whole else ("uniform", "loguniform")
    kind = log if value.log else linear
    step = None if kind != "uniform" and value.step == 1 else value.step
    return _range(kind, value.low, value.high, step)


def _range(kind: str, low: float, high: float, step: float | None) -> dict[str, object]:
    """A range, or a choice if it has a single value."""
    if low == high or (step is not None and Decimal(str(low)) + Decimal(str(step)) > Decimal(str(high))):
        return {"choice": [low]}
    return {kind: [low, high]} if step is None else {kind: [low, high], "step": step}
