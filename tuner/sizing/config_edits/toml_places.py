"""Values of a TOML text, and how to change one: tomlkit keeps everything else as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tuner.errors import InputError
from tuner.sizing.config_edits.places import Place, join


def load(text: str, source: str) -> Any:
    """The content as Python's own parser sees it.

    Raises:
        InputError: it is not TOML.
    """
    import tomllib

    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except ValueError as error:
        raise InputError(f"{source}: is not TOML: {error}") from error


def places(text: str, source: str) -> list[Place]:
    """All values of a TOML text.

    Args:
        text: the file's.
        source: its name, for messages.

    Raises:
        InputError: it is not TOML.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    load(text, source)  # first: tomlkit is more lenient
    try:
        found = list(_places(tomlkit.parse(text), ""))
    except TOMLKitError as error:
        raise InputError(f"{source}: is not TOML: {error}") from error
    # tomlkit tells no positions, and TOML has no aliases: a number for each will do.
    return [dataclasses.replace(place, start=number, origin=number) for number, place in enumerate(found)]


def replace(text: str, place: Place, new: str) -> str:
    """The text with another value in one place.

    Args:
        text: the file's.
        place: one of ``places(text)``.
        new: the value's text.

    Raises:
        InputError: more than the value would change.
    """
    import tomlkit

    document = tomlkit.parse(text)
    *folders, last = _steps(document, place.key)
    container: Any = document
    for step in folders:
        container = container[step]
    container[last] = tomlkit.value(new)
    changed = tomlkit.dumps(document)
    if changed not in _replacements(text, place.text, new):
        raise InputError(f"{place.key} = {place.text} cannot be changed alone: change it by hand")
    return changed


def _places(value: Any, key: str) -> Iterator[Place]:
    if key:
        kind = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a value"
        text = _text(value) if kind == "a value" else ""
        yield Place(key, "text of several lines" if text[:3] in ('"""', "'''") else kind, text)
    for step, item in _inside(value):
        yield from _places(item, join(key, str(step)))


def _text(value: Any) -> str:
    """A value as the file has it; of all values only booleans come without that."""
    return str(value).lower() if isinstance(value, bool) else str(value.as_string())


def _inside(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from ((str(step), value[step]) for step in value)
    elif isinstance(value, list):
        yield from ((step, value[step]) for step in range(len(value)))


def _steps(value: Any, key: str) -> list[str | int]:
    """The keys and indices that a dotted path stands for; keys may have dots themselves."""
    for step, item in _inside(value):
        if key == str(step):
            return [step]
        if key.startswith(f"{step}.") and (rest := _steps(item, key[len(str(step)) + 1 :])):
            return [step, *rest]
    return []


def _replacements(text: str, old: str, new: str) -> Iterator[str]:
    """The text with one occurrence of the old value replaced, for each of them."""
    at = text.find(old)
    while at >= 0:
        yield text[:at] + new + text[at + len(old) :]
        at = text.find(old, at + 1)
