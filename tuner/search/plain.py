"""Spaces of Ray Tune as the plain mappings that a file would hold, which ``study.json`` can keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import InputError

KNOWN = "tune.choice, uniform, loguniform, randint, lograndint or grid_search"


def plain_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """The same space with each domain of ``ray.tune`` as ``tuner.search.domains`` writes it; the rest as it is.

    Raises:
        InputError: it is no mapping, or has a domain of Tune's that has no such form.
    """
    if not isinstance(space, Mapping):
        raise InputError(f"space: must be a mapping from hyperparameter to a value or a range, not {space!r}")
    return {str(key): _plain(str(key), value) for key, value in space.items()}


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"grid_search"}:
        return {"choice": list(value["grid_search"])}
    if not type(value).__module__.startswith("ray.tune"):
        return value
    sampler = type(value.get_sampler()).__name__.strip("_")
    if type(value).__name__ == "Categorical" and sampler == "Uniform":
        return {"choice": list(value.categories)}
    kinds = {("Float", "Uniform"): "uniform", ("Float", "LogUniform"): "loguniform"}
    kinds |= {("Integer", "Uniform"): "int", ("Integer", "LogUniform"): "logint"}
    kind = kinds.get((type(value).__name__, sampler))
    if kind is None:
        raise InputError(f"space: {key}: {sampler} {type(value).__name__} of ray.tune: use {KNOWN}")
    return {kind: [value.lower, value.upper - 1 if kind in ("int", "logint") else value.upper]}
