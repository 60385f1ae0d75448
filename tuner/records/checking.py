"""Checks what is read from a study's files; a message names the file and the field."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import PlainValidator, TypeAdapter, ValidationError

from tuner.errors import InputError
from tuner.machine.regular_files import regular
from tuner.trial import LARGEST_NUMBER, ConfigValue

Checked = TypeVar("Checked")
EXPECTED = {  # our words for pydantic's types of errors
    "dataclass_type": "expected an object",
    "dict_type": "expected an object",
    "mapping_type": "expected an object",
    "list_type": "expected a list",
    "is_instance_of": "expected a list",
    "sequence_str": "expected a list",
    "string_type": "expected a text",
}
LARGEST_AMOUNT = 1e12  # the largest number of seconds or GB that is accepted
_ADAPTERS: dict[type, TypeAdapter[object]] = {}  # made on first use
_TRIAL_ID = re.compile(r"\w[\w.+-]*")  # a trial's id is part of file names


def as_text(value: object) -> str:
    """The value, which must be a text; else a ValueError is raised."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return value


def as_name(value: object) -> str:
    """The value, which must be a text that is not empty; else a ValueError is raised."""
    text = as_text(value)
    if not text or "\0" in text or text != _shown(text):
        raise ValueError("expected a name")
    return text


def _shown(value: object) -> str:
    """A text that any file and terminal accepts: bytes of a path that are not valid text become question marks."""
    return as_text(value).encode(errors="replace").decode()


def _trial_id(value: object) -> str:
    if not _TRIAL_ID.fullmatch(as_text(value)):
        raise ValueError("expected the id of a trial, such as 't001'")
    return str(value)


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        raise ValueError("expected a number")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError("expected a whole number from 0")
    return value


def _amount(value: object) -> float:
    number = float(_number(value))
    if not 0 <= number <= LARGEST_AMOUNT:
        raise ValueError(f"expected a number from 0 to {LARGEST_AMOUNT:g}")
    return number


def _metric(value: object) -> int | float | None:
    return None if value is None else _number(value)


def _config_value(value: object) -> ConfigValue:
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, bool):
        return value
    try:
        return _number(value)
    except ValueError:
        raise ValueError("expected a number or a text") from None


Text = Annotated[str, PlainValidator(as_text)]
Shown = Annotated[str, PlainValidator(_shown)]
Name = Annotated[str, PlainValidator(as_name)]
TrialId = Annotated[str, PlainValidator(_trial_id)]
Whole = Annotated[int, PlainValidator(_whole)]
Amount = Annotated[float, PlainValidator(_amount)]
Metric = Annotated[float | None, PlainValidator(_metric)]
CheckedValue = Annotated[ConfigValue, PlainValidator(_config_value)]


def dotted(path: Sequence[int | str]) -> str:
    """The name of a nested field in messages: ``plan.devices.0.name``."""
    return ".".join(str(part) for part in path if part != "[key]")


def checked(
    kind: type[Checked], values: object, where: str, name: Callable[[Sequence[int | str]], str] = dotted
) -> Checked:
    """A record made of values that were read; ``name`` turns the path to a field into its name in messages.

    Raises:
        InputError: a field is missing or wrong. The message begins with ``where`` and names the first such field.
    """
    try:
        return _validated(kind, values)
    except ValidationError as error:
        raise InputError(f"{where}: {_fault(error, name)}") from error


def checked_json(kind: type[Checked], content: bytes) -> Checked:
    """A record made of a JSON text.

    Raises:
        ValueError: the text is not JSON, or a field is missing or wrong. The message names the first such field.
    """
    try:
        return _validated(kind, json.loads(content))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except ValidationError as error:
        raise ValueError(_fault(error, dotted)) from error


def readable_lines(kind: type[Checked], path: Path, most_bytes: int) -> list[Checked]:
    """The records of a file of JSON lines in order, without damaged ones; empty if the file cannot be read."""
    lines = []
    with suppress(OSError):
        for text in regular(path, most_bytes).read_bytes().splitlines():
            with suppress(ValueError):
                lines.append(checked_json(kind, text))
    return lines


def _validated(kind: type[Checked], values: object) -> Checked:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    record = _ADAPTERS[kind].validate_python(values)
    assert isinstance(record, kind)
    return record


def _fault(error: ValidationError, name: Callable[[Sequence[int | str]], str]) -> str:
    """The first error: the field, its value, and what is expected."""
    first = error.errors(include_url=False)[0]
    field = name(first["loc"])
    if first["type"] == "missing":
        return f"has no {field}"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    expected = EXPECTED.get(first["type"], message)
    return f"{field} is {reprlib.repr(first['input'])}; {expected}" if field else expected
