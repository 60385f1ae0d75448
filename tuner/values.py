"""The values that hyperparameters have, and the one form of each in every file and text.

A configuration holds values as they are. Of what no file can hold, such as a class or an array, it holds the
``Label``, and programs get the object itself. Files have what JSON has, and marks for all else, such as
``{"python tuple": [1, 2]}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from pathlib import Path, PurePath

from tuner.errors import one_line
from tuner.trial import Auto, ConfigValue

MARK = "python "  # how the only key of a mark begins
OBJECT = f"{MARK}object"
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,299})")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")


class Label(str):
    """What stands for an object that no file can hold."""

    __slots__ = ()
    __repr__ = str.__str__  # without quotation marks, as the object is called in code


def plain(value: ConfigValue) -> ConfigValue:
    """A value as configurations hold it: numpy's numbers are Python's, and objects are their labels."""
    kind = type(value)
    if kind in (str, int, float, bool, type(None), Label, Auto, date, datetime):
        return value
    if kind in (list, tuple):
        inner = [plain(part) for part in value]
        same = all(new is old for new, old in zip(inner, value, strict=True))
        return value if same else kind(inner)
    if kind is dict:
        return {plain(name): plain(part) for name, part in value.items()}
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return value if isinstance(value, PurePath) else Label(label(value))


def label(value: object) -> str:
    """A value as people read it: a text itself, a class or a function by its name, all else as Python writes it."""
    if isinstance(value, (str, PurePath, date)):
        return str(value)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_inner_label, value))
        comma = "," if len(value) == 1 else ""
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{comma})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inner_label(name)}: {_inner_label(part)}" for name, part in value.items()) + "}"
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else re.sub(" at 0x[0-9a-fA-F]+", "", one_line(repr(value)))


def in_table(value: ConfigValue) -> ConfigValue:
    """A number, a bool or a text as it is, and the label of anything else: what tables for people have."""
    return value if isinstance(value, (int, float, str)) else label(value)


def _inner_label(value: object) -> str:
    return repr(value) if isinstance(value, (str, PurePath, date)) else label(value)


def encode(value: ConfigValue) -> ConfigValue:
    """A value as JSON can hold it."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return {f"{MARK}float": str(value)}
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind is list:
        return [encode(part) for part in value]
    if kind is tuple:
        return {f"{MARK}tuple": [encode(part) for part in value]}
    if kind is dict:
        if all(type(name) is str and not name.startswith(MARK) for name in value):
            return {name: encode(part) for name, part in value.items()}
        return {f"{MARK}dict": [[encode(name), encode(part)] for name, part in value.items()]}
    if kind in (date, datetime):
        return {f"{MARK}{kind.__name__}": value.isoformat()}
    if isinstance(value, PurePath):
        return {f"{MARK}path": str(value)}
    if kind is Auto:
        return str(value)
    found = plain(value)
    return (
        {OBJECT: str(value)} if kind is Label else encode(found if type(found) is not kind else Label(label(value)))
    )


# What each mark holds, and how it becomes the value.
_DECODERS: Mapping[str, tuple[type, Callable[[ConfigValue], ConfigValue]]] = {
    OBJECT: (str, Label),
    f"{MARK}float": (str, float),
    f"{MARK}tuple": (list, lambda parts: tuple(map(decode, parts))),
    f"{MARK}dict": (list, lambda pairs: {decode(name): decode(part) for name, part in pairs}),
    f"{MARK}date": (str, date.fromisoformat),
    f"{MARK}datetime": (str, datetime.fromisoformat),
    f"{MARK}path": (str, Path),
}


def decode(content: ConfigValue) -> ConfigValue:
    """The value of which ``encode`` made this; raises ``ValueError`` for a mark that it does not make."""
    if isinstance(content, list):
        return [decode(part) for part in content]
    if not isinstance(content, dict):
        return content
    mark = next(iter(content), "")
    if len(content) != 1 or not mark.startswith(MARK):
        return {name: decode(part) for name, part in content.items()}
    kind, decoded = _DECODERS.get(mark, (type(None), Label))
    try:
        if isinstance(content[mark], kind):
            return decoded(content[mark])
    except (TypeError, ValueError):
        pass
    raise ValueError(f"expected a value, not {one_line(repr(content), 60)}")


def value_key(value: ConfigValue) -> str:
    """A text that two values share if they are equal and of the same type."""
    return json.dumps(encode(value), sort_keys=True)


def config_key(config: Mapping[str, ConfigValue], without: Iterable[str] = ()) -> str:
    """The same of a configuration, whatever the order of its hyperparameters."""
    return value_key({name: value for name, value in config.items() if name not in without})


def has_objects(content: ConfigValue) -> bool:
    """Whether something that ``encode`` made has the mark of an object, which only Python can give again."""
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return (isinstance(content, dict) and OBJECT in content) or any(map(has_objects, inner))


def parse(text: str) -> ConfigValue:
    """The value that a person means by a text: a constant, a number, JSON, or the text itself.

    ``"64"`` in quotation marks is a text, and so are ``007`` and ``nan``.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if text[:1] not in ('"', "[", "{"):
        return text
    try:
        return decode(json.loads(text))
    except (ValueError, RecursionError):
        return text


def to_text(value: ConfigValue) -> str:
    """The text by which a person means a value: ``parse`` gives it back."""
    if isinstance(value, str):
        return str(value) if isinstance(parse(value), str) and value[:1] != '"' else json.dumps(value)
    return json.dumps(encode(value))


def categories(values: Iterable[ConfigValue]) -> dict[str, ConfigValue]:
    """By the key of each of these values, what Optuna has in its place.

    Those are None, bools, numbers and texts as they are, and the labels of all else. If two of these are equal, as
    ``True`` and ``1`` are, all have their keys.
    """
    found: dict[str, ConfigValue] = {}
    for value in values:
        own = isinstance(value, (str, bool, int, float, type(None))) and value == value and type(value) is not Label
        found.setdefault(value_key(value), value if own else label(value))
    named = list(found.values())
    return found if all(named.count(own) == 1 for own in named) else {name: name for name in found}
