"""TOML texts whose numbers can be changed: tomlkit keeps everything else as it is."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import partial

import tomlkit
from tomlkit.exceptions import TOMLKitError

from tuner.errors import InputError
from tuner.sizing.config_edits.places import A_LIST, A_VALUE, MULTILINE, Place


class TomlDocument:
    """A TOML document as tomlkit has it."""

    def __init__(self, text: str, source: str) -> None:
        try:
            tomllib.loads(text)  # first: tomlkit is more lenient
            self._document = tomlkit.parse(text)
        except (ValueError, TOMLKitError) as error:
            raise InputError(f"{source}: is not TOML: {error}") from error

    def places(self) -> list[Place]:
        """All values; TOML has no aliases."""
        return list(self._inside(self._document, ""))

    def dump(self) -> str:
        """The text that tomlkit writes."""
        return tomlkit.dumps(self._document)

    def _inside(self, holder: object, key: str) -> Iterator[Place]:
        steps = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for step in steps:
            value = holder[step]  # type: ignore[index]
            path = f"{key}.{step}" if key else str(step)
            kind, text = "a table" if isinstance(value, dict) else A_LIST, ""
            if not isinstance(value, (dict, list)):
                # Of all values only booleans come without their text.
                text = str(value).lower() if isinstance(value, bool) else value.as_string()
                kind = MULTILINE if text[:3] in ('"""', "'''") else A_VALUE
            yield Place(path, kind, text, (kind, text), id(value), partial(self._put, holder, step))
            yield from self._inside(value, path)

    def _put(self, holder: object, step: str | int, text: str) -> None:
        holder[step] = tomlkit.value(text)  # type: ignore[index]
