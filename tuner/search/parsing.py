"""Reads configuration files (YAML, TOML or JSON) into plain values."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.errors import InputError, one_line


def parse_file(path: Path) -> object:
    """The content of a YAML, TOML or JSON file in plain values."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the configuration file {path}: {_reason(error)}") from error
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            # YAML 1.1 reads 1e-3 as a string, but learning rates are often written in this form.
            return _numbers(yaml.safe_load(text))
        if path.suffix == ".toml":
            import tomllib

            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text)
    except Exception as error:
        raise InputError(f"{path} cannot be parsed: {_reason(error)}") from error
    raise InputError(f"{path}: unknown kind of file {path.suffix!r}; use .yaml, .toml or .json")


def _numbers(value: object) -> object:
    """Turns strings such as ``1e-3`` into floats, in lists and mappings, too; names stay as they are."""
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


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
