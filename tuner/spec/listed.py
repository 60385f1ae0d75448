"""From what the user asked for to workloads, data and configurations: the same for every command."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, ParameterError, both_given, option
from tuner.search.configurations import (
    Configs,
    Schema,
    configurations,
    mode_file,
    name_of,
    read_configs,
    select,
    source_name,
)
from tuner.search.plain_values import plain_configs
from tuner.spec.data_groups import DEFAULT_DATA
from tuner.spec.groups import DEFAULT_MODE, SelectionOptions
from tuner.trial import UNNAMED, Configuration, ConfigValue
from tuner.values import parse
from tuner.workloads.base import BUILT_IN, DEFAULT_WORKLOAD, Trainable, is_built_in
from tuner.workloads.contract import load_data
from tuner.workloads.lookup import NO_CLASSES, SPEC, Classes, Finder, as_list
from tuner.workloads.program import Program
from tuner.workloads.protocols import finish_of
from tuner.workloads.task import Selection

if TYPE_CHECKING:
    from tuner.workloads.lookup import WorkloadsLike


def choose(options: SelectionOptions, data_seed: int) -> tuple[list[Selection], str]:
    """What is to be tried of each workload, and what the list of configurations is called.

    An entry of a file without the key ``workload`` is for every workload asked for. Without a file, a workload that
    is not built in has no modes, and one configuration of its defaults.

    Raises:
        InputError: one of these cannot be used; data are not looked at.
    """
    options.check_selection()
    find, mode = Finder(), options.mode
    names = list(dict.fromkeys(find(workload).name for workload in as_list(options.workload)))
    config = None if options.config is None else plain_configs(options.config)
    if config is None:
        listed = _of_mode(mode, names or [DEFAULT_WORKLOAD], find)
    elif mode != DEFAULT_MODE:
        raise both_given("config", "mode")
    else:
        entries, defaults = read_configs(config)
        listed = _by_workload(entries, names, defaults, find, source=source_name(config))
    label = label_of(config) or (mode if any(is_built_in(find(name)) for name in listed) else "default")
    return selections_of(listed, options, data_seed, find), label


def selections_of(
    listed: Mapping[str, Sequence[Configuration]], options: SelectionOptions, data_seed: int, find: Finder
) -> list[Selection]:
    """The selection of each workload of which these are the configurations."""
    sources = _sources(options.data, listed, find)
    selected = _overridden(select(listed, only=options.only, limit=options.limit), options.overrides, find)
    return _choices(selected, sources, data_seed, options.loading(), find)


def label_of(config: Configs | None) -> str:
    """What a study's folder calls its configurations; empty without any."""
    return "" if config is None else Path(source_name(config)).stem


def chosen_before(
    listed: Sequence[Configuration],
    names: Sequence[str],
    data: str | Mapping[str, str],
    seed: int,
    loading: Mapping[str, Any] = NO_CLASSES,
    classes: Classes = NO_CLASSES,
    given: WorkloadsLike = (),
) -> list[Selection]:
    """What a study has tried of each workload, as its ``study.json`` lists it.

    Raises:
        InputError: this version knows a workload or a hyperparameter no more.
    """
    find = Finder(classes)
    for workload in as_list(given):
        find(workload)
    by_workload = _by_workload(list(listed), names, {}, find, source="study.json")
    if isinstance(data, Mapping):  # of it, what no trial needs was left out when the study was begun, too
        data = {
            name: source for name, source in data.items() if {name} & {*by_workload, *map(classes.get, by_workload)}
        }
    return _choices(by_workload, _sources(data, by_workload, find), seed, loading, find)


def source_of(data: str | Mapping[str, str], name: str, classes: Classes = NO_CLASSES) -> str:
    """Where a study's options have a workload's data, which a user may have named by its class."""
    if not isinstance(data, Mapping):
        return data
    return data.get(name, data.get(classes.get(name) or "", DEFAULT_DATA))


def parse_data(texts: Sequence[str]) -> str | dict[str, str]:
    """What is meant by the texts of the option ``data``: one source for all workloads, or one for each that is named.

    Only the name of a built-in workload or ``module:Class`` is taken for one: folders may have ``=`` in their names.
    """
    named = dict(text.split("=", 1) for text in texts if "=" in text and is_workload(text.partition("=")[0]))
    if len(named) < len(texts) and len(texts) > 1:
        given = " ".join(option("data", text) for text in texts)
        raise InputError(f"{given}: give one for all, or one WORKLOAD=NAME|DIR for each")
    return named or (texts[0] if texts else DEFAULT_DATA)


def is_workload(text: str) -> bool:
    """Whether a text names a workload: a built-in one, or ``module:Class``."""
    return text in BUILT_IN or SPEC.fullmatch(text) is not None


def _of_mode(mode: str, names: Sequence[str], find: Finder) -> dict[str, list[Configuration]]:
    by_workload = {}
    for name in names:
        workload = find(name)
        if not is_built_in(workload):
            if mode != DEFAULT_MODE:
                raise ParameterError(
                    "mode", mode, f"workload {name} has no modes: give it a list by {option('config')}"
                )
            by_workload[name] = configurations_of(workload, [{}])
            continue
        path = mode_file(name, mode)
        listed, defaults = read_configs(path)
        by_workload[name] = configurations_of(workload, listed, str(path), defaults)
    return by_workload


def configurations_of(
    workload: Trainable, listed: object, source: str = "configurations", defaults: Mapping[str, object] | None = None
) -> list[Configuration]:
    """A workload's complete configurations; see ``tuner.search.configurations.configurations``."""
    return configurations(listed, workload.schema, defaults=defaults, source=source, finish=finish_of(workload))


def to_configuration(workload: Trainable, values: Mapping[str, object], name: str) -> Configuration:
    """The complete configuration of some values.

    Raises:
        InputError: the workload does not allow them, they do not go together, or something must be trained first.
    """
    (configuration,) = configurations_of(workload, [Configuration(name, values)], "a suggestion")
    Selection(workload, lambda: None, [configuration])
    return configuration


def _by_workload(
    listed: object, names: Sequence[str], defaults: Mapping[str, object], find: Finder, *, source: str
) -> dict[str, list[Configuration]]:
    """The configurations of each of ``names``; without any, of each workload that the list or its defaults name."""
    programs = bool(names) and all(find(name).schema is None for name in names)
    entries = [_entry(entry, programs=programs) for entry in listed] if isinstance(listed, list) else []
    default = defaults.get("workload")
    if programs and entries and all(isinstance(entry, Configuration) for entry in listed):  # type: ignore[attr-defined]
        default = None  # of a grid, whose keys are all the program's
    else:
        defaults = {key: defaults[key] for key in defaults if key != "workload"}
    whose = [_key(entry, default, find, source) for entry in entries]
    if not names:
        whose = [owner or DEFAULT_WORKLOAD for owner in whose]
        names = list(dict.fromkeys(filter(None, whose))) or [DEFAULT_WORKLOAD]
    named = {name: _workload(name, find, source) for name in [*names, *filter(None, whose)]}
    schemas = {name: workload.schema for name, workload in named.items()}
    by_workload = {}
    for name in names:
        mine = [entry for entry, owner in zip(entries, whose, strict=True) if owner in (None, name)]
        if entries and not mine:
            raise InputError(f"{source}: no configuration is of workload {name!r}")
        common = _of_schema(defaults, schemas[name], schemas.values())
        by_workload[name] = configurations_of(named[name], mine if entries else listed, source, common)
    return by_workload


def _entry(entry: object, *, programs: bool) -> object:
    """An entry of a list, without the key ``workload`` that a grid of workloads may have. Programs have any keys."""
    if not isinstance(entry, Configuration) or programs or "workload" not in entry.values:
        return entry
    values = {key: value for key, value in entry.values.items() if key != "workload"}
    return Configuration(name_of(values), values, str(entry.values["workload"]))


def _key(entry: object, default: object, find: Finder, source: str) -> str | None:
    """The name of the workload that an entry is of, if it says so."""
    name = entry.get("workload", default) if isinstance(entry, Mapping) else default
    name = entry.workload or default if isinstance(entry, Configuration) else name
    return None if name is None else _workload(str(name), find, source).name


def _workload(name: str, find: Finder, source: str) -> Trainable:
    try:
        return find(name)
    except InputError as error:
        raise InputError(f"{source}: {error.text}") from error


def _of_schema(values: Mapping[str, object], schema: Schema, schemas: Collection[Schema]) -> dict[str, object]:
    """Those of the values that a workload has, and those that none of the workloads has, which is a fault of each."""
    if schema is None:
        return dict(values)
    return {
        key: value
        for key, value in values.items()
        if key in schema or not any(key in (other or ()) for other in schemas)
    }


def _overridden(
    by_workload: Mapping[str, Sequence[Configuration]], overrides: Sequence[str], find: Finder
) -> dict[str, Sequence[Configuration]]:
    """The configurations with the values of ``overrides``, each workload with those that it has."""
    given = dict(parse_override(text) for text in overrides)
    schemas = {name: find(name).schema for name in by_workload}
    replaced = {}
    for name, listed in by_workload.items():
        values = _of_schema(given, schemas[name], schemas.values())
        once = [Configuration(UNNAMED, values)]  # a fault is told once, not for each
        configurations(once, schemas[name], source=option("overrides"))
        entries = [replace(one, values={**one.values, **values}) for one in listed]
        replaced[name] = configurations_of(find(name), entries, option("overrides")) if values else listed
    return replaced


def parse_override(text: str) -> tuple[str, ConfigValue]:
    """The hyperparameter and the value that a text of ``overrides`` names; see ``tuner.values.parse``."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ParameterError("overrides", text, "expected KEY=VALUE")
    return key, parse(value)


def _sources(data: Any, names: Collection[str], find: Finder) -> dict[str, Any]:
    """Where each workload's data are; of programs the data themselves."""
    if all(isinstance(find(name), Program) for name in names):
        return dict.fromkeys(names, data)
    given = data if isinstance(data, Mapping) else dict.fromkeys(names, data)
    if wrong := next((source for source in given.values() if not isinstance(source, str)), None):
        raise ParameterError(
            "data", f"a {type(wrong).__name__}", "only a function takes data", "give a name or a folder"
        )
    sources = {}
    for key, source in given.items():
        name = find(key).name if SPEC.fullmatch(key) else key
        if name not in names:
            raise ParameterError(
                "data", f"{key}={source}", f"no trial is of that workload; they are of {', '.join(names)}"
            )
        sources[name] = source
    return {name: sources.get(name) or find(name).default_data for name in names}


def _choices(
    by_workload: Mapping[str, Sequence[Configuration]],
    sources: Mapping[str, str],
    seed: int,
    loading: Mapping[str, Any],
    find: Finder,
) -> list[Selection]:
    named = [find(name) for name in by_workload]
    for name in loading:
        if not any(name in workload.data_options for workload in named):
            raise InputError(f"{option(name)}: has no effect on the data of {', '.join(by_workload)}")
    chosen = []
    for workload in named:
        load = partial(load_data, workload, sources[workload.name], seed)
        given = {name: value for name, value in loading.items() if name in workload.data_options}
        given |= data_values(workload, [configuration.values for configuration in by_workload[workload.name]])
        chosen.append(Selection(workload, partial(load, **given), by_workload[workload.name]))
    return chosen


def data_values(workload: Trainable, listed: Sequence[Mapping[str, ConfigValue]]) -> dict[str, ConfigValue]:
    """What configurations say of how data are loaded, where it is not the default.

    Raises ``InputError`` if they differ in it.
    """
    values_of_data = {}
    for key in workload.data_keys:
        default = (workload.schema or {})[key].default
        given = list(dict.fromkeys(values.get(key, default) for values in listed)) or [default]
        if len(given) > 1:
            raise InputError(
                f"{key} {given[0]} and {given[1]} in one study: data are loaded once for all configurations: give "
                f"{option('overrides', f'{key}={given[0]}')}, and run a study for each"
            )
        if given[0] != default:
            values_of_data[key] = given[0]
    return values_of_data
