"""Reads a transformer's sizes from a TOML file and from options, which take precedence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from tuner.errors import InputError, did_you_mean, one_line, option
from tuner.machine.regular_files import MOST_BYTES, regular
from tuner.sizing.transformers.formula import TransformerConfig

# The keys of a file, which are the options' names, with their types.
KEYS = {name: kind if kind in (int, bool) else str for name, kind in get_type_hints(TransformerConfig).items()}
REQUIRED = ("model_embd", "model_layer", "batch_size")
TABLES = ("model", "training")
WANTED = {int: "a whole number", bool: "true or false", str: "a text"}
HEAD_WIDTH = 64
POSITIONS = 512


def transformer_config(path: str | None, given: Mapping[str, object]) -> TransformerConfig:
    """The sizes from a TOML file, if any, and from options that are not None, which take precedence.

    By default heads are 64 wide, sequences fill the model's positions, and these are ``seq_len`` or 512. A wrong
    file, or missing or contradictory sizes, raise ``InputError``.
    """
    values: dict[str, Any] = _read_sizes(path) if path is not None else {}  # ``TransformerConfig`` checks them
    values |= {key: value for key, value in given.items() if value is not None}
    missing = [key for key in REQUIRED if key not in values]
    if missing:
        where = f"{path}: " if path is not None else ""
        verb = "is" if len(missing) == 1 else "are"
        options = " ".join(map(option, missing))
        raise InputError(f"{where}{', '.join(missing)} {verb} missing: give {options}, or a TOML file that has it")
    values.setdefault("model_positions", values.get("seq_len", POSITIONS))
    values.setdefault("seq_len", values["model_positions"])
    if "model_head" not in values:
        width = values["model_embd"] if isinstance(values["model_embd"], int) else 0
        if width > 0 and width % HEAD_WIDTH:
            raise InputError(
                f"model_embd {width} has no whole number of heads of {HEAD_WIDTH}: give {option('model_head')}"
            )
        values["model_head"] = max(1, width // HEAD_WIDTH)
    try:
        return TransformerConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error.text}" if path is not None else error.text) from error


def _read_sizes(path: str) -> dict[str, object]:
    """The sizes in a TOML file, at its top level or under [model] and [training]; other keys are ignored."""
    try:
        content = tomllib.loads(regular(Path(path), MOST_BYTES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # tomllib's and the decoder's errors are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else f"not TOML: {one_line(error)}"
        raise InputError(
            f"{path}: {reason}: give a TOML file with the model's sizes, or configurations by {option('config')}"
        ) from error
    tables = [content, *(content[name] for name in TABLES if isinstance(content.get(name), dict))]
    found: dict[str, object] = {}
    for written, value in [item for table in tables for item in table.items()]:
        key = written.replace("-", "_")
        if key not in KEYS:
            # If a misspelled key were ignored, the default would be used silently.
            if hint := did_you_mean(key, KEYS, cutoff=0.9):
                raise InputError(f"{path}: unknown key {written!r}: {hint}")
            continue
        if key in found or type(value) is not KEYS[key]:
            rule = "occurs twice: leave one of them out" if key in found else f"give {WANTED[KEYS[key]]}"
            raise InputError(f"{path}: {written} {value!r}: {rule}")
        found[key] = value
    if not found:
        raise InputError(f"{path}: no size is in it: write {', '.join(REQUIRED)} at the top level or under [model]")
    return found
