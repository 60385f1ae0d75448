"""The values that hyperparameters have, the one form of each in every file and text, and conditions on values.

A configuration holds values as they are. Of what no file can hold, such as a class or an array, it holds the
``Label``, and programs get the object itself. Files have what JSON has, and marks for all else, such as
``{"python tuple": [1, 2]}``.

    condition = name operator value
    operator  = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"

A condition is what ``--where`` and ``--constraint`` take. Its value may have quotes. It is never evaluated as code.

- A number is compared with a value that is a number, perhaps with a unit, and a text with the value as it was typed.
  A number and a text are unequal, and neither is less than the other.
- Anything else, such as a bool, None or a list, equals the value that means it (``false``, ``none``, ``[64, 32]``).
- ``~`` holds if the text, or the number as it is printed, contains the value. Case is ignored.
- A missing value is unequal to every value, and no other operator holds for it. The value "" means missing:
  ``error!=""`` selects the rows that have an error.
- ``and`` joins conditions that must all hold. In a value that reads like one, it needs quotes.

The report's page has the same conditions (``conditions.js``), with the patterns and units of ``GRAMMAR``.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path, PurePath
from typing import TypeGuard

from tuner.errors import ParameterError, one_line
from tuner.trial import Auto, ConfigValue

MARK = "python "  # how the only key of a mark begins
OBJECT = f"{MARK}object"
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,299})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", re.ASCII)


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
    simple = plain(value)
    return (
        {OBJECT: str(value)} if kind is Label else encode(simple if type(simple) is not kind else Label(label(value)))
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
    """The value from which ``encode`` made this; raises ``ValueError`` for a mark that it does not make."""
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
    """Optuna's category for each of these values, by the value's key.

    Those are None, bools, numbers and texts as they are, and the labels of all else. If two of these are equal, as
    ``True`` and ``1`` are, all have their keys.
    """
    by_key: dict[str, ConfigValue] = {}
    for value in values:
        as_is = isinstance(value, (str, bool, int, float, type(None))) and value == value and type(value) is not Label
        by_key.setdefault(value_key(value), value if as_is else label(value))
    named = list(by_key.values())
    return by_key if all(named.count(one) == 1 for one in named) else {key: key for key in by_key}


_CONDITION = re.compile(
    r"\s*([^=!<>~]+?)\s*(==|!=|<=|>=|=|<|>|~)\s*(\"[^\"]*\"|'[^']*'|[^=!<>~\"'\s].*?)\s*", re.DOTALL
)
EXPECTED = 'expected a name, one of = != < <= > >= ~ and a value, such as "hidden_dim>=64" or "estimated_gb<=2"'
_COMPARE: Mapping[str, Callable[[ConfigValue, ConfigValue], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_QUANTITY = re.compile(r"([+-]?inf|.*[\d.])\s*([A-Za-z]*)", re.ASCII)  # a number and its unit
_TIMES: Mapping[str, float] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# Units by the endings of names that have them.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "_gb": {"GB": 1.0, "MB": 2**-10},
    "_s": _TIMES,
    "_seconds": _TIMES,
    "_ms": {"ms": 1.0, "s": 1e3},
    "": {"K": 1e3, "M": 1e6, "B": 1e9},
}


_AND = re.compile(r"(\s+and\s+)")
GRAMMAR: Mapping[str, object] = {
    "condition": _CONDITION.pattern,
    "and": _AND.pattern,
    "quantity": _QUANTITY.pattern,
    "whole": _WHOLE.pattern,
    "decimal": _DECIMAL.pattern,
    "constants": _CONSTANTS,
    "units": _UNITS,
    "expected": EXPECTED,
}


@dataclass(frozen=True)
class Condition:
    """A comparison of a named value with another one, such as ``val_loss < 0.5``."""

    name: str
    operator: str  # see the module's docstring; "=" stands for "==", too
    value: str  # as it was typed, without quotes
    number: float | None = None  # the same in the unit of the name, if it is a number
    fault: str = ""  # why it is no number
    text: str = ""  # the whole condition as it was typed

    def holds(self, actual: ConfigValue) -> bool:
        """Whether it holds for a value; an empty text means that there is none."""
        is_blank = isinstance(actual, str) and not actual
        if is_blank or not self.value:
            same = is_blank and not self.value
        elif self.operator == "~":
            return self.value.casefold() in label(actual).casefold()
        elif isinstance(actual, str) or (is_number(actual) and self.number is not None):
            return _COMPARE[self.operator](actual, self.value if isinstance(actual, str) else self.number)
        elif is_number(actual):
            same = False
        else:
            same = _number_key(parse(self.value)) == _number_key(actual)
            same = same or self.value.casefold() == label(actual).casefold()
        return {"=": same, "!=": not same}.get(self.operator, False)


def _number_key(value: ConfigValue) -> str:
    """The ``value_key`` in which numbers are equal if their values are: 1.0 and 1."""

    def number(text: str) -> float:
        return int(found) if (found := float(text)).is_integer() else found

    return json.dumps(json.loads(value_key(value), parse_float=number))


def split_conditions(text: str) -> list[str]:
    """The conditions that ``and`` joins in a text."""
    first, *others = _AND.split(text)
    parts = [first]
    for joint, part in zip(others[::2], others[1::2], strict=True):
        if _CONDITION.fullmatch(parts[-1]) and _CONDITION.fullmatch(part):
            parts.append(part)
        else:  # it is within a value
            parts[-1] += joint + part
    return parts


def parse_condition(parameter: str, text: str, column: Callable[[str], str] = str) -> Condition:
    """The condition in a text that was given for a parameter; ``column`` gives the full name of a name.

    Another text raises ``ParameterError``.
    """
    match = _CONDITION.fullmatch(text)
    if not match or is_number(parse(match[1])):
        raise ParameterError(parameter, text, EXPECTED)
    name, sign, value = column(match[1]), match[2], match[3].strip(match[3][0] if match[3][0] in "\"'" else " ")
    units = next(units for ending, units in _UNITS.items() if name.endswith(ending))
    digits, unit = match.groups() if (match := _QUANTITY.fullmatch(value)) else ("", "")
    number = float(digits) if digits.endswith("inf") else parse(digits)
    if not is_number(number):
        number, fault = None, f"{name} holds numbers, and {value!r} is not a number"
    elif unit and unit not in units:
        number, fault = None, f"{name} has the units {', '.join(units)}, not {unit}"
    else:
        number, fault = number * units[unit] if unit else number, ""
    return Condition(name, "=" if sign == "==" else sign, value, number, fault, text)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
