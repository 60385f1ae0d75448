"""Checks what is read from a study's files; a message names the file and the field."""

import gc
import json
import math
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag, TypeAdapter, ValidationError

from tuner.errors import InputError
from tuner.machine.safe_files import regular
from tuner.trial import GB, ConfigValue
from tuner.values import decode

Checked = TypeVar("Checked")
Value = TypeVar("Value")
LARGEST_AMOUNT = 1e12  # the largest number of seconds or GB that is accepted
INFINITE = ("inf", "-inf")  # metrics that JSON has no numbers for
_ADAPTERS: dict[type, TypeAdapter[object]] = {}  # made on first use


def _shown(value: object) -> object:
    """A text that can be written: bytes of a path that are not valid text become question marks."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise ValueError("expected a number")
    return value


def _metric(value: object) -> int | float | None:
    number = float(value) if value in INFINITE else value
    return number if number in (None, math.inf, -math.inf) else _number(number)


def _form(value: object) -> str:
    return "[list]" if isinstance(value, list) else "[one]"


Shown = Annotated[str, BeforeValidator(_shown)]
Name = Annotated[str, Field(pattern=r"^[^\x00]+$")]
Names = Annotated[  # one, or a list of them; the brackets of the tags keep them out of messages
    Annotated[Name, Tag("[one]")] | Annotated[list[Name], Field(min_length=1), Tag("[list]")], Discriminator(_form)
]
TrialId = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # it is part of file names
Whole = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Amount = Annotated[float, Field(strict=True, ge=0, le=LARGEST_AMOUNT)]
Size = Annotated[int, BeforeValidator(_number), Field(strict=True, ge=0, le=LARGEST_AMOUNT * GB)]  # in bytes
Moment = Annotated[float, Field(strict=True, ge=-6e10, le=2.5e11)]  # unix seconds, in the years that dates have
Metric = Annotated[float | None, PlainValidator(_metric)]  # whole numbers stay whole
CheckedValue = Annotated[ConfigValue, PlainValidator(decode)]


def recorded(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as they are recorded: the exact values, and None for one that is no number."""
    return {name: None if math.isnan(value) else value for name, value in metrics.items()}


def in_json(metrics: Mapping[str, Value]) -> dict[str, Value | str]:
    """Recorded metrics in JSON: an infinite one is a text, which ``Metric`` reads."""
    return {name: str(value) if value in (math.inf, -math.inf) else value for name, value in metrics.items()}


def to_bytes(gb: object) -> object:
    """A size in GB of a table or an earlier version, in bytes. Other values are refused by a later check."""
    if isinstance(gb, str) and (not gb or ", " in gb):  # of several ranks
        return [to_bytes(float(one)) if re.fullmatch(r"\d+\.\d+", one) else None for one in gb.split(", ") if one]
    if isinstance(gb, list):
        return [to_bytes(one) for one in gb]
    is_size = isinstance(gb, (int, float)) and not isinstance(gb, bool) and 0 <= gb <= LARGEST_AMOUNT
    return round(gb * GB) if is_size else gb  # type: ignore[operator]


def in_bytes(values: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
    """A record whose sizes in GB are in bytes; ``names`` has the new name of each such field."""
    if names.keys().isdisjoint(values):
        return values
    return {names.get(key, key): to_bytes(one) if key in names else one for key, one in values.items()}


def dotted(path: Sequence[int | str]) -> str:
    """The name of a nested field in messages: ``plan.devices.0.name``."""
    return ".".join(str(part) for part in path if not str(part).startswith("["))


def checked(
    kind: type[Checked], values: object, where: str, name: Callable[[Sequence[int | str]], str] = dotted
) -> Checked:
    """A record made of values that were read; ``name`` turns the path to a field into its name in messages.

    Raises:
        InputError: a field is missing or wrong. The message begins with ``where`` and names the first such field.
    """
    try:
        return _validated(kind, values)
    except RecursionError as error:
        raise InputError(f"{where}: is nested too deep") from error
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


@contextmanager
def collecting_later() -> Iterator[None]:
    """Pauses garbage collection: the block makes many objects that stay, and collection took half of its time."""
    rests = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if rests:
            gc.enable()


@collecting_later()
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
    message = message.partition(" or an instance of")[0]  # a class of ours
    return f"{field} is {reprlib.repr(first['input'])}; {message}" if field else message
