"""Turns a mode's file, a user's file or a list in Python into named, validated configurations.

A file has ``configurations:`` (a list of mappings, each with an optional ``name``), ``grid:`` (a mapping from
hyperparameter to a list of values, all combinations of which are tried) or ``space:`` (see ``tuner.search.spaces``),
and optionally ``defaults:`` for all of them; beside a grid or a space, ``points:`` lists what a search tries first.
It is YAML, TOML or JSON; Python may give the same content as a mapping, or the list alone. In the list the keys
``name`` and ``workload`` name a configuration and what it trains; ``config/name`` is a hyperparameter of that name,
as in ``results.csv``. The keys of a grid and of a space are hyperparameters, whatever they are called.
"""

import hashlib
import itertools
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import InputError, ParameterError, did_you_mean, is_writable, option
from tuner.hyperparameters import AnyHyperparameter, Hyperparameter, TextHyperparameter
from tuner.search.domains import flat
from tuner.search.parsing import GivenFile, parse_file
from tuner.trial import AUTO, LARGEST_NUMBER, MOST_NAME, MOST_TRIALS, UNNAMED, Configuration, ConfigValue
from tuner.values import config_key, label, plain, to_text, value_key

Schema = Mapping[str, AnyHyperparameter] | None  # None accepts any value of any key
CONFIG = "config/"  # may stand before a hyperparameter's key in a list, as it does in the CSV
COLUMNS = ("name", "workload")  # the keys of a list that are no hyperparameters
Finish = Callable[[dict[str, ConfigValue]], dict[str, ConfigValue]]
Configs = str | Path | Sequence[Mapping[str, object]] | Mapping[str, object]  # a file, its content, or the list alone
ENTRIES = ("configurations", "grid", "space")
FILE_KEYS = (*ENTRIES, "defaults", "points")
# Installed packages have the files inside the package, checkouts beside it.
CONFIG_FOLDERS = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")


@dataclass(frozen=True)
class GivenSpace:
    """A space as it was given, not validated yet."""

    space: object
    source: str  # its name in messages
    defaults: Mapping[str, object] = field(default_factory=dict)  # what it leaves out
    points: object = None  # what is tried first


def modes(workload: str) -> dict[str, Path]:
    """The files of a workload's modes, by mode."""
    name = workload.replace("-", "_")
    return {file.stem: file for folder in CONFIG_FOLDERS for file in (folder / name).glob("*.yaml")}


def mode_file(workload: str, mode: str) -> Path:
    """A mode's file, ``configs/<workload>/<mode>.yaml`` with ``_`` for ``-``. Unknown modes raise ``InputError``."""
    files = modes(workload)
    if mode not in files:
        hint = did_you_mean(mode, files, f"choose one of {', '.join(sorted(files))}")
        raise InputError(f"unknown mode {mode!r} of workload {workload}: {hint}")
    return files[mode]


def source_name(config: Configs) -> str:
    """The name of a source of configurations in messages: the file, or the argument in Python."""
    return str(config) if isinstance(config, (str, Path)) else "config"


def read_configs(config: Configs) -> tuple[object, Mapping[str, object]]:
    """The list in a configuration file, not validated yet, and its defaults; other files raise ``InputError``."""
    content, defaults = _content(config)
    if "space" in content:
        raise InputError(
            f"{source_name(config)}: it has a 'space', which is searched: give {option('search', 'grid')}, random or "
            "optuna"
        )
    if "grid" not in content:
        return content["configurations"], defaults
    columns = _columns(content["grid"], source_name(config))
    check_grid(math.prod(len(values) for values in columns.values()), source_name(config))
    rows = (dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values()))
    return named(rows), defaults


def has_space(config: Configs) -> bool:
    """Whether a configuration file has a space, which is searched."""
    return "space" in _content(config)[0]


def content_of(given: object, what: str) -> object:
    """What an option holds: the content of a file, which errors call ``what``, or the object itself."""
    if isinstance(given, GivenFile):
        return given.content(what)
    return parse_file(Path(given), what) if isinstance(given, (str, Path)) else given


def given_space(space: object) -> GivenSpace:
    """The space of the option ``space``: a file, its content with ``space:``, or the mapping alone."""
    source = str(space) if isinstance(space, (str, Path)) else "space"
    content = content_of(space, "space")
    if isinstance(content, Mapping) and isinstance(content.get("space"), Mapping) and set(content) <= set(FILE_KEYS):
        content, defaults = _content(content, source)
        return GivenSpace(content["space"], source, defaults, content.get("points"))
    return GivenSpace(content, source)


def read_space(config: Configs) -> GivenSpace:
    """The space in a configuration file; other files raise ``InputError``. A ``grid:`` is a space of choices."""
    content, defaults = _content(config)
    source = source_name(config)
    if "configurations" in content:
        raise InputError(
            f"{source}: a list of configurations cannot be searched: give 'space' or leave out {option('search')}"
        )
    if "space" in content:
        return GivenSpace(content["space"], source, defaults, content.get("points"))
    grid = content["grid"]
    _columns(grid, source)
    assert isinstance(grid, Mapping)
    space = {key: {"choice": values} if isinstance(values, list) else values for key, values in grid.items()}
    return GivenSpace(space, source, defaults, content.get("points"))


def _content(config: Configs, source: str = "") -> tuple[Mapping[str, object], Mapping[str, object]]:
    """The content of a configuration file, and its defaults."""
    source = source or source_name(config)
    content = content_of(config, "configuration file")
    if content is config and isinstance(config, list):
        content = {"configurations": config}
    if not isinstance(content, Mapping):
        raise InputError(
            f"{source}: expected a mapping with 'configurations:', 'grid:' or 'space:', not {_shown(content)}"
        )
    unknown = [str(key) for key in content if key not in FILE_KEYS]
    if unknown or sum(key in content for key in ENTRIES) != 1:
        got = ", ".join(map(str, content)) or "nothing"
        raise InputError(
            f"{source}: expected one of 'configurations', 'grid' and 'space', and optionally 'defaults'; got {got}"
        )
    if "points" in content and "configurations" in content:
        raise InputError(f"{source}: 'points' belong to a space: put them first in the list of configurations")
    defaults = content.get("defaults") or {}
    if not isinstance(defaults, Mapping):
        raise InputError(f"{source}: 'defaults' must be a mapping, not {_shown(defaults)}")
    return content, defaults


def configurations(
    listed: object,
    schema: Schema,
    *,
    defaults: Mapping[str, object] | None = None,
    source: str = "configurations",
    finish: Finish = dict,
) -> list[Configuration]:
    """Turns a list of mappings into configurations in which every hyperparameter has a value.

    A configuration's ``name`` is by default made of its values. Missing values come from ``defaults``, then from the
    schema. ``source`` is the list's name in messages. For ``finish`` see ``Workload.finish``.

    Raises:
        InputError: the list is empty, or has unknown keys, wrong values or repeated names; the text has every fault.
    """
    if isinstance(listed, (str, Mapping)) or not isinstance(listed, Iterable):
        raise InputError(f"{source}: expected a list of configurations, not {_shown(listed)}")
    entries = list(listed)
    if not entries:
        raise InputError(f"{source}: the list of configurations is empty; give at least one")
    common, wrong = _values(defaults or {}, schema)
    wrong = [f"defaults: {fault}" for fault in wrong]
    pairs = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, (Mapping, Configuration)):
            wrong.append(f"configuration {number}: expected a mapping, not {_shown(entry)}")
            continue
        one = entry if isinstance(entry, Configuration) else to_entry(entry)
        if len(one.name) > MOST_NAME:
            wrong.append(f"{one.name:.30}…: a name of {len(one.name)} characters: give one of at most {MOST_NAME}")
            continue
        given, faulty = _values(one.values, schema, by_user=one is not entry)
        wrong += [f"{one.name}: {fault}" for fault in [*_unwritable({"name": one.name}), *faulty]]
        pairs.append((one.name, {**common, **given}))
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    for name in repeated:
        first, *others = (config_key(values) for other, values in pairs if other == name)
        equal = "configuration occurs more than once: leave one out, or give seeds"
        wrong.append(f"{name}: this {equal if first in others else 'name is used more than once'}")
    if wrong:
        raise InputError(f"{source}: " + "; ".join(dict.fromkeys(wrong)))
    return [_finished(name, complete(values, schema), finish, source) for name, values in pairs]


def to_entry(entry: Mapping[str, object]) -> Configuration:
    """An entry of a user's list, whose name and workload are further keys."""
    values = {key: value for key, value in entry.items() if key not in COLUMNS}
    workload = entry.get("workload")
    return Configuration(
        str(entry.get("name") or name_of(dict(keyed(values)))), values, "" if workload is None else str(workload)
    )


def keyed(given: Mapping[str, object]) -> list[tuple[str, object]]:
    """A user's hyperparameters without the prefix that they may have."""
    return [(key.removeprefix(CONFIG) if isinstance(key, str) else key, value) for key, value in given.items()]


def _values(
    given: Mapping[str, object], schema: Schema, *, by_user: bool = True
) -> tuple[dict[str, ConfigValue], list[str]]:
    """Hyperparameters of a configuration, and their faults. Those given ``by_user`` have prefixes and groups."""
    listed = keyed(given) if by_user else list(given.items())
    if by_user and schema is None:
        listed = [pair for key, value in listed for pair in flat({key: value})]
    values = {key: plain(value) for key, value in listed}
    return values, [*ambiguous([key for key, _ in listed]), *faults(values, schema)]


def _finished(name: str, values: dict[str, ConfigValue], finish: Finish, source: str) -> Configuration:
    try:
        return Configuration(name, finish(values))
    except InputError as error:
        raise InputError(f"{source}: {name}: {error.text}") from error


def named(rows: Iterable[dict[str, object]], keys: Collection[str] | None = None) -> list[Configuration]:
    """Rows as configurations, named by their values of those of these keys that vary. Equal names are numbered."""
    made, seen, rows = list[Configuration](), Counter[str](), list(rows)
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if keys is None or key in keys]
    varied = [key for key in keys if len({value_key(row[key]) if key in row else "" for row in rows}) > 1]
    keys = set(varied or keys)
    for row in rows:
        name = name_of({key: row[key] for key in row if key in keys})
        seen[name] += 1
        made.append(Configuration(name if seen[name] == 1 else f"{name} #{seen[name]}", row))
    return made


def name_of(values: Mapping[str, object]) -> str:
    """The name that values make, such as ``hidden_dim=64,lr=0.001``."""
    texts = {key: to_text(value) if type(value) is str else label(value) for key, value in values.items()}
    made = ",".join(f"{key}={text}" for key, text in texts.items())
    if len(made) > MOST_NAME:  # different ones stay different
        made = f"{made[: MOST_NAME - 9]}…{hashlib.blake2b(made.encode(errors='replace'), digest_size=4).hexdigest()}"
    return made or UNNAMED


def complete(values: Mapping[str, object], schema: Schema) -> dict[str, ConfigValue]:
    """Adds the schema's defaults in its order, and converts each value but ``AUTO`` to its default's type."""
    if schema is None:
        return dict(values)
    filled = {key: _typed(values.get(key, spec.default), spec) for key, spec in schema.items()}
    return {key: value for key, value in filled.items() if not schema[key].optional or value != schema[key].default}


def select(
    listings: Mapping[str, Sequence[Configuration]], *, only: str | None = None, limit: int | None = None
) -> dict[str, list[Configuration]]:
    """Each workload's configuration named ``only``, or its first ``limit`` ones.

    An unknown name or a ``limit`` below 1 raises ``InputError``.
    """
    if limit is not None and limit < 1:
        raise ParameterError("limit", limit, "must be at least 1")
    selected = {
        workload: [made for made in listed if only in (None, made.name)][:limit]
        for workload, listed in listings.items()
    }
    if not any(selected.values()):
        names = dict.fromkeys(made.name for listed in listings.values() for made in listed)
        raise InputError(f"no configuration is called {only!r}: choose one of {', '.join(names)}")
    return {workload: listed for workload, listed in selected.items() if listed}


def _columns(grid: object, source: str) -> dict[str, list[object]]:
    """The values of each hyperparameter of a grid."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError(f"{source}: 'grid' must be a mapping from hyperparameter to a list of values")
    columns = {key: values if isinstance(values, list) else [values] for key, values in grid.items()}
    if empty := [str(key) for key, values in columns.items() if not values]:
        raise InputError(f"{source}: 'grid' has no value for {', '.join(empty)}")
    return columns


def check_grid(combinations: float, source: str) -> None:
    """Refuses a grid of more combinations than a study can have."""
    if combinations > MOST_TRIALS:
        raise InputError(
            f"{source}: a grid of {combinations:g} combinations; the most is {MOST_TRIALS:,}: remove values, or "
            f"use {option('search', 'random')}"
        )


def faults(values: Mapping[str, object], schema: Schema) -> list[str]:
    """The faults of hyperparameters' values, each in a few words."""
    faults = _unwritable(values)
    if schema is None:
        return faults
    for key, value in values.items():
        if key not in schema:
            hint = did_you_mean(str(key), schema, f"known are {', '.join(schema)}")
            faults.append(f"unknown key {key!r:.60} ({hint})")
        elif problem := _problem(value, schema[key]):
            faults.append(f"{key} = {_shown(value)} {problem}")
    return faults


def ambiguous(keys: Sequence[object]) -> list[str]:
    """The faults of keys that exclude each other in one configuration. A dot in a key names a group."""
    texts, problems = [key for key in keys if isinstance(key, str)], list[str]()
    problems += [f"{key!r:.60}: a hyperparameter's name is a text" for key in keys if not isinstance(key, str)]
    problems += [f"{key}: it occurs twice, as a dot names a group" for key in texts if texts.count(key) > 1]
    inner = {key: next((other for other in texts if other.startswith(f"{key}.")), None) for key in texts}
    return problems + [
        f"{key}: it is a value and, with {other}, a group: rename one of them"
        for key, other in inner.items()
        if other
    ]


def _unwritable(values: Mapping[str, object]) -> list[str]:
    """The faults of keys and texts that records cannot hold, and of keys that would not stay on a line."""
    unwritable = [
        f"{key!r:.60} = {_shown(value)} has a character 0 or bytes that are not UTF-8: rename it"
        for key, value in values.items()
        if not is_writable(f"{key} {value if isinstance(value, str) else label(value)}")
    ]
    lines = [f"{key!r:.60} has a control character: rename it" for key in values if not str(key).isprintable()]
    return unwritable or lines


def _typed(value: object, spec: AnyHyperparameter) -> ConfigValue:
    if isinstance(value, list):  # of whole numbers, as ``_problem`` has seen
        return ",".join(map(str, value))
    assert isinstance(value, (int, float, str))
    auto = isinstance(spec, Hyperparameter) and spec.auto and value == AUTO
    return AUTO if auto else type(spec.default)(value)


def _problem(value: object, spec: AnyHyperparameter) -> str:
    """Why a hyperparameter does not accept a value; empty if it does."""
    if isinstance(spec, TextHyperparameter):
        numbers = value if isinstance(value, list) else [value]
        whole = spec.numbers and numbers and all(type(number) is int for number in numbers)
        if not isinstance(value, str) and not whole:
            return "is neither text nor a whole number, nor a list of these" if spec.numbers else "is not text"
        allowed = not spec.choices or value in spec.choices
        return "" if allowed else f"is not allowed (allowed: {', '.join(spec.choices)})"
    return "" if spec.auto and value == AUTO else _number_problem(value, spec)


def _number_problem(value: object, spec: Hyperparameter) -> str:
    whole = isinstance(spec.default, int)
    allowed = f"{'a whole number' if whole else 'a number'}{_bounds(spec)}"
    allowed += f", or {AUTO}" if spec.auto else ""
    if not isinstance(value, (int, float)) or (isinstance(value, bool) and not spec.is_switch):
        return f"is not a number (allowed: {allowed})"
    if not abs(value) <= LARGEST_NUMBER or (whole and value != int(value)):
        return f"is not allowed (allowed: {allowed})"
    return "" if spec.low <= value <= spec.high else f"is out of range (allowed: {allowed})"


def _bounds(spec: Hyperparameter) -> str:
    if math.isfinite(spec.low) and math.isfinite(spec.high):
        return f" from {spec.low:g} to {spec.high:g}"
    ends = [f"at least {spec.low:g}"] * math.isfinite(spec.low) + [f"at most {spec.high:g}"] * math.isfinite(
        spec.high
    )
    return "".join(f" of {end}" for end in ends)


def _shown(value: object) -> str:
    """A value in a message; a long one lacks its middle."""
    return reprlib.repr(value) if isinstance(value, (str, int)) else f"{value!r:.60}"
