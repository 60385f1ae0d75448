"""What to try: a mode's file, a user's own file or a list in Python becomes named, validated configurations.

A file holds either ``configurations:`` (a list of mappings, each with an optional ``name``), ``grid:`` (a mapping
from hyperparameter to a list of values, every combination of which is tried) or ``space:`` (a mapping from
hyperparameter to what a search may try, see ``tuner.search.domains``), and optionally ``defaults:`` for all of them.
YAML, TOML and JSON are read; Python may give the same content as a mapping, or the list alone. The key ``workload``,
wherever a hyperparameter may stand, says whose configuration it is.
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.errors import InputError
from tuner.trial import AUTO, UNNAMED, AnyHyperparameter, Configuration, Hyperparameter, TextHyperparameter

Schema = Mapping[str, AnyHyperparameter]
Finish = Callable[[dict[str, Any]], dict[str, Any]]
Configs = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Any]  # a file, what it holds, or the list alone
FILE_KEYS = ("configurations", "grid", "space", "defaults")
# An installed package carries the files inside itself, a checkout beside itself.
CONFIG_FOLDERS = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")


def modes(workload: str) -> dict[str, Path]:
    """The files of a workload's modes, by mode."""
    name = workload.replace("-", "_")
    return {file.stem: file for folder in CONFIG_FOLDERS for file in (folder / name).glob("*.yaml")}


def mode_file(workload: str, mode: str) -> Path:
    """The file that holds a mode's configurations, ``configs/<workload>/<mode>.yaml``, with ``_`` for ``-``.

    Raises:
        InputError: the workload has no such mode; the text says which is close, or which it has.
    """
    files = modes(workload)
    if mode not in files:
        close = difflib.get_close_matches(mode, files, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(sorted(files))}"
        raise InputError(f"unknown mode {mode!r} of workload {workload}: {hint}")
    return files[mode]


def source_name(config: Configs) -> str:
    """What messages call configurations: their file, or the argument of Python."""
    return str(config) if isinstance(config, (str, Path)) else "config"


def read_configs(config: Configs) -> tuple[object, Mapping[str, Any]]:
    """What a configuration file lists, which is still to be looked at, and its defaults.

    Args:
        config: a ``.yaml``, ``.yml``, ``.toml`` or ``.json`` file, as the module's text describes, or its content.

    Raises:
        InputError: the file is missing, cannot be parsed, or is not one of configurations.
    """
    content, defaults = _content(config)
    if "space" in content:
        raise InputError(
            f"{source_name(config)}: it has a 'space', which is searched: tune run --search grid, random or optuna"
        )
    listed = _grid(content["grid"], source_name(config)) if "grid" in content else content["configurations"]
    return listed, defaults


def read_space(config: Configs) -> tuple[object, Mapping[str, Any]]:
    """What a configuration file has to search in: its space, which is still to be looked at, and its defaults.

    A ``grid:`` is a space, too: each of its lists is a choice.

    Raises:
        InputError: the file is missing, cannot be parsed, or has no space.
    """
    content, defaults = _content(config)
    if "configurations" in content:
        raise InputError(
            f"{source_name(config)}: a list of configurations cannot be searched: give 'space' or leave out --search"
        )
    if "space" in content:
        return content["space"], defaults
    _grid(content["grid"], source_name(config))
    return {
        key: {"choice": values} if isinstance(values, list) else values for key, values in content["grid"].items()
    }, defaults


def _content(config: Configs) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What a configuration file holds, and its defaults."""
    source = source_name(config)
    content = _parse(Path(config)) if isinstance(config, (str, Path)) else config
    if content is config and isinstance(config, list):
        content = {"configurations": config}
    if not isinstance(content, Mapping):
        raise InputError(
            f"{source}: expected a mapping with 'configurations:', 'grid:' or 'space:', not {_kind(content)}"
        )
    unknown = [str(key) for key in content if key not in FILE_KEYS]
    if unknown or sum(key in content for key in FILE_KEYS[:-1]) != 1:
        got = ", ".join(map(str, content)) or "nothing"
        raise InputError(
            f"{source}: expected one of 'configurations', 'grid' and 'space', and optionally 'defaults'; got {got}"
        )
    defaults = content.get("defaults") or {}
    if not isinstance(defaults, Mapping):
        raise InputError(f"{source}: 'defaults' must be a mapping, not {_kind(defaults)}")
    return content, defaults


def configurations(
    listed: object,
    schema: Schema,
    *,
    defaults: Mapping[str, Any] | None = None,
    source: str = "configurations",
    finish: Finish = dict,
) -> list[Configuration]:
    """Turns a list of mappings into configurations in which every hyperparameter has a value.

    Args:
        listed: mappings from hyperparameter to value; the key ``name`` labels a configuration (otherwise it
            is named after its values). What a mapping leaves out comes from ``defaults``, then the schema.
        schema: the workload's hyperparameters by name.
        defaults: values for all configurations.
        source: what error messages call the list.
        finish: makes what follows from complete values, see ``Workload.finish``.

    Raises:
        InputError: the list is empty, or has unknown keys, values of a wrong type or out of range, or two
            configurations of one name; every fault is in the one message.
    """
    if isinstance(listed, (str, Mapping)) or not isinstance(listed, Iterable):
        raise InputError(f"{source}: expected a list of configurations, not {_kind(listed)}")
    entries = list(listed)
    if not entries:
        raise InputError(f"{source}: the list of configurations is empty; give at least one")
    wrong: list[str] = [f"defaults: {fault}" for fault in faults(defaults or {}, schema)]
    found = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping):
            wrong.append(f"configuration {number}: expected a mapping, not {_kind(entry)}")
            continue
        given = {key: value for key, value in entry.items() if key != "name"}
        name = name_of(entry)
        wrong += [f"{name}: {fault}" for fault in faults(given, schema)]
        found.append((name, {**(defaults or {}), **given}))
    repeated = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
    wrong += [f"{name}: this name is used more than once" for name in repeated]
    if wrong:
        raise InputError(f"{source}: " + "; ".join(dict.fromkeys(wrong)))
    return [_finished(name, complete(values, schema), finish, source) for name, values in found]


def _finished(name: str, values: dict[str, Any], finish: Finish, source: str) -> Configuration:
    try:
        return Configuration(name, finish(values))
    except InputError as error:
        raise InputError(f"{source}: {name}: {error}") from error


def name_of(entry: Mapping[Any, Any]) -> str:
    """What an entry of a list is called: its ``name``, or its values, such as ``hidden_dim=64,lr=0.001``."""
    given = {key: value for key, value in entry.items() if key != "name"}
    return str(entry.get("name") or ",".join(f"{key}={value}" for key, value in given.items()) or UNNAMED)


def complete(values: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Fills in the schema's defaults, in its order, and makes whole numbers of float hyperparameters floats.

    ``AUTO`` stays what it is.
    """
    filled = {key: _typed(values.get(key, spec.default), spec) for key, spec in schema.items()}
    return {key: value for key, value in filled.items() if not schema[key].optional or value != schema[key].default}


def select(
    found: Mapping[str, Sequence[Configuration]], *, only: str | None = None, limit: int | None = None
) -> dict[str, list[Configuration]]:
    """The configuration called ``only``, or the first ``limit`` ones, of each workload; without those that have none.

    Raises:
        InputError: there is none of that name, or ``limit`` is less than 1.
    """
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: must be at least 1")
    selected = {
        workload: [each for each in listed if only in (None, each.name)][:limit] for workload, listed in found.items()
    }
    if not any(selected.values()):
        names = dict.fromkeys(each.name for listed in found.values() for each in listed)
        raise InputError(f"no configuration is called {only!r}: choose one of {', '.join(names)}")
    return {workload: listed for workload, listed in selected.items() if listed}


def _parse(path: Path) -> object:
    """The content of a YAML, TOML or JSON file; never builds anything but plain values."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the configuration file {path}: {_reason(error)}") from error
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            # YAML 1.1 takes 1e-3 for a string; numbers in that form are what people write for learning rates.
            return _numbers(yaml.safe_load(text))
        if path.suffix == ".toml":
            import tomllib

            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text)
    except Exception as error:
        raise InputError(f"{path} cannot be parsed: {_reason(error)}") from error
    raise InputError(f"{path}: unknown kind of file {path.suffix!r}; use .yaml, .toml or .json")


def _numbers(value: Any) -> Any:
    """Turns strings such as ``1e-3`` into floats, inside lists and mappings too; names stay as they are."""
    if isinstance(value, dict):
        return {key: item if key == "name" else _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789":
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _grid(grid: object, source: str) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last hyperparameter changing fastest."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError(f"{source}: 'grid' must be a mapping from hyperparameter to a list of values")
    columns = [values if isinstance(values, list) else [values] for values in grid.values()]
    empty = [str(key) for key, values in zip(grid, columns, strict=True) if not values]
    if empty:
        raise InputError(f"{source}: 'grid' has no value for {', '.join(empty)}")
    return [dict(zip(grid, row, strict=True)) for row in itertools.product(*columns)]


def faults(values: Mapping[Any, Any], schema: Schema) -> list[str]:
    """What is wrong with some values of a workload's hyperparameters, each in a few words."""
    faults = []
    for key, value in values.items():
        if key not in schema:
            close = difflib.get_close_matches(str(key), schema, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(schema)}"
            faults.append(f"unknown key {key!r} ({hint})")
        elif problem := _problem(value, schema[key]):
            faults.append(f"{key} = {value!r} {problem}")
    return faults


def _typed(value: Any, spec: AnyHyperparameter) -> Any:
    auto = isinstance(spec, Hyperparameter) and spec.auto and value == AUTO
    return value if auto else type(spec.default)(value)


def _problem(value: object, spec: AnyHyperparameter) -> str:
    """Why a value is not one of this hyperparameter's; empty if it is."""
    return _text_problem(value, spec) if isinstance(spec, TextHyperparameter) else _number_problem(value, spec)


def _text_problem(value: object, spec: TextHyperparameter) -> str:
    if not isinstance(value, str):
        return "is not text"
    if spec.choices and value not in spec.choices:
        return f"is not allowed (allowed: {', '.join(spec.choices)})"
    return ""


def _number_problem(value: object, spec: Hyperparameter) -> str:
    if spec.auto and value == AUTO:
        return ""
    whole = isinstance(spec.default, int)
    allowed = f"{'a whole number' if whole else 'a number'} from {spec.low:g} to {spec.high:g}"
    allowed += f", or {AUTO}" if spec.auto else ""
    if not isinstance(value, (int, float)) or (isinstance(value, bool) and not spec.is_switch):
        return f"is not a number (allowed: {allowed})"
    if not math.isfinite(value) or (whole and value != int(value)):
        return f"is not allowed (allowed: {allowed})"
    return "" if spec.low <= value <= spec.high else f"is out of range (allowed: {allowed})"


def _kind(value: object) -> str:
    words = {
        type(None): "nothing",
        dict: "a mapping",
        list: "a list",
        str: "text",
        int: "a number",
        float: "a number",
    }
    return words.get(type(value), f"a {type(value).__name__}")


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
