"""Turns a space or configurations from Python into the plain values of a file, which ``study.json`` can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.search.configurations import Configs

if TYPE_CHECKING:
    from ray.tune.search.sample import Domain

KNOWN = "tune.choice, uniform, loguniform, randint, lograndint or grid_search"


def plain_configs(config: Configs) -> Configs:
    """The configurations as mappings, lists, texts and numbers; a file as its path.

    Other types, also inside, raise ``InputError``.
    """
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


def _mapping(value: Mapping[str, object], source: str) -> dict[str, object]:
    return {str(key): _value(each, source) for key, each in value.items()}


def _value(value: object, source: str) -> object:
    """A value as in JSON; numpy's numbers become Python's."""
    if isinstance(value, Mapping):
        return _mapping(value, source)
    if isinstance(value, (list, tuple, range)):
        return [_value(each, source) for each in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if to_list := getattr(value, "tolist", None):
        return _value(to_list(), source)
    raise InputError(f"{source}: {value!r:.60}: give numbers and texts")


def plain_space(space: object) -> dict[str, object]:
    """The space with each domain of ``ray.tune`` in the form of ``tuner.search.spaces``.

    An unsupported domain raises ``InputError``.
    """
    if not isinstance(space, Mapping):
        raise InputError(f"space: must be a mapping from hyperparameter to a value or a range, not {space!r}")
    return {str(key): _plain(str(key), value) for key, value in space.items()}


def _plain(key: str, value: object) -> object:
    if isinstance(value, Mapping) and set(value) == {"grid_search"}:
        return {"choice": list(value["grid_search"])}
    if not type(value).__module__.startswith("ray.tune"):
        return _value(value, f"space: {key}")
    return _plain_domain(key, value)


def _plain_domain(key: str, value: Domain) -> dict[str, object]:
    sampler = type(value.get_sampler()).__name__.strip("_")
    if type(value).__name__ == "Categorical" and sampler == "Uniform":
        return {"choice": list(value.categories)}
    kinds = {("Float", "Uniform"): "uniform", ("Float", "LogUniform"): "loguniform"}
    kinds |= {("Integer", "Uniform"): "int", ("Integer", "LogUniform"): "logint"}
    kind = kinds.get((type(value).__name__, sampler))
    if kind is None:
        raise InputError(f"space: {key}: {sampler} {type(value).__name__} of ray.tune: use {KNOWN}")
    return {kind: [value.lower, value.upper - 1 if kind in ("int", "logint") else value.upper]}
