"""A study's options as ``study.json`` keeps them, and back."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.search.plain_values import plain_configs, plain_space
from tuner.spec.groups import SEARCHES, SelectionOptions
from tuner.spec.settings import Settings
from tuner.workloads.lookup import texts_of

CALL = "tuner.run()"  # for ``study.json``: what no command can say


def plainly(settings: Settings) -> Settings:
    """The same with a list of configurations and a space that a file can hold.

    Raises:
        InputError: one cannot be kept so.
    """
    plain: dict[str, object] = {}
    if settings.config is not None:
        plain["config"] = plain_configs(settings.config)
    if settings.space is not None:
        plain["space"] = plain_space(settings.space)
    return settings.changed(**plain) if plain else settings


def to_stored(settings: Settings) -> dict[str, object]:
    """Every option by its name; of a workload or a search that only this process has, its name."""
    return {**settings.values(), "workload": texts_of(settings.workload), "search": settings.search_name}


def how_it_runs(settings: Settings) -> dict[str, object]:
    """Those of the options that say how a study runs, and not what it trains."""
    selection = (*SelectionOptions.names(), "space")
    return {name: value for name, value in to_stored(settings).items() if name not in selection}


def from_stored(stored: Mapping[str, object]) -> Settings:
    """The options of a study; those that its version had not have their defaults, and those that are gone no effect.

    Raises:
        InputError: one has a value that is no longer possible.
    """
    return Settings.of(
        {
            name: value
            for name, value in stored.items()
            if name in Settings.model_fields and value != Settings.default(name)
        }
    )


def is_object(search: object) -> bool:
    """Whether a search, or what ``study.json`` calls it, is an object that only Python can give again."""
    return search not in (None, *SEARCHES)
