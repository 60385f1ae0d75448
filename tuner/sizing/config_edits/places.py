"""A value in a file, and numbers as YAML and TOML write them: what both formats share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuner.trial import AUTO

# What stands where no number has been chosen yet, beside a number itself.
BLANK = ("", "~", "null", "true", "false", AUTO)


@dataclass(frozen=True)
class Place:
    """A value: how it is found, and where it stands.

    Attributes:
        key: its dotted path.
        kind: "value", or what it is instead, such as "a mapping".
        text: what the file says, quotes included; of an alias, the alias itself.
        start: where that text begins, or another number that no other text has.
        origin: the start of the text that the value comes from: another's where it is an alias.
        literal: whether the path is written out, not just brought along by an alias or a merge key.
    """

    key: str
    kind: str
    text: str
    start: int = 0
    origin: int = 0
    literal: bool = True


def number_text(value: int | float) -> str:
    """A number as both formats have it; YAML 1.1 takes an exponent without a point before it for text."""
    text = repr(value)
    return text.replace("e", ".0e") if "." not in text else text


def new_text(old: str, value: int | float) -> str:
    """What a value's text becomes: the old one if it says that number already; quotes stay around numbers."""
    inner, quote = (old[1:-1], old[0]) if old[:1] in ("'", '"') else (old, "")
    try:
        same = float(inner) == value
    except ValueError:
        return number_text(value)
    ambiguous = inner.lstrip("+-")[:1] == "0" and inner.lstrip("+-")[1:2].isdigit()  # 010 is 8 to some
    return old if same and not ambiguous else f"{quote}{number_text(value)}{quote}"


def replaceable(text: str) -> bool:
    """Whether a number may take a value's place: not that of text such as ``${oc.env:BATCH}``."""
    inner = (text[1:-1] if text[:1] in ("'", '"') else text).strip()
    if inner.lower() in BLANK:
        return True
    for parse in (float, lambda number: int(number, 0)):  # the second knows 0x18
        try:
            parse(inner)
            return True
        except ValueError:
            continue
    return False


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """What is inside loaded content, by dotted path."""
    if isinstance(value, (dict, list)):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(item, join(key, str(name)))
    else:
        yield key, value


def join(key: str, name: str) -> str:
    """A dotted path with one more step."""
    return f"{key}.{name}" if key else name
