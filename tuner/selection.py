"""From what the user asked for to a workload and its configurations: the same for every command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.space import configurations, load_configurations, mode_file, select
from tuner.trial import Configuration
from tuner.workloads import find_workload

if TYPE_CHECKING:
    from tuner.workloads.base import Workload

DEFAULT_MODE = "quick"


def choose(
    workload: str, mode: str, config: str | None, only: str | None, limit: int | None, overrides: Sequence[str] = ()
) -> tuple[Workload, list[Configuration], str]:
    """The workload, the configurations that were asked for, and what their list is called.

    Args:
        workload: its name.
        mode: a mode, where ``config`` is None.
        config: a file of the user's own.
        only: just the configuration of this name.
        limit: just the first so many.
        overrides: ``key=value`` texts that replace values of every configuration.

    Raises:
        InputError: one of these cannot be used.
    """
    found = find_workload(workload)
    if config is not None and not isinstance(config, (str, Path)):
        raise InputError(f"config: expected the path of a file, not a {type(config).__name__}")
    if config is not None and mode != DEFAULT_MODE:
        raise InputError("--config and --mode were both given: leave one of them out")
    path = Path(config) if config else mode_file(workload, mode)
    chosen = select(load_configurations(path, found.hyperparameters), only=only, limit=limit)
    if overrides:
        values = dict(_override(text) for text in overrides)
        configurations([values], found.hyperparameters, source="--set")  # a fault is told once, not for each
        listed = [{**each.values, **values, "name": each.name} for each in chosen]
        chosen = configurations(listed, found.hyperparameters, source="--set")
    return found, chosen, path.stem


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: expected KEY=VALUE")
    try:
        return key, int(value)
    except ValueError:
        try:
            return key, float(value)
        except ValueError:
            return key, value
