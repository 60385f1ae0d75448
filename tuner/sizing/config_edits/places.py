"""Values of a YAML or TOML document, and numbers as both formats write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.trial import AUTO

FORMATS = (".yaml", ".yml", ".toml")
QUOTES = ("'", '"')
A_VALUE, A_LIST, MULTILINE = "a value", "a list", "text of several lines"
# What stands where no number has been chosen yet, beside a number itself.
BLANK = ("", "~", "null", "true", "false", AUTO)


@dataclass(frozen=True)
class Place:
    """A value in a document.

    Attributes:
        key: its dotted path.
        kind: "a value", or what it is instead, such as "a mapping".
        text: the value's text, quotes included; of an alias, that of what it stands for.
        content: all that stays as it is where this value is not changed.
        origin: the same for a value and all aliases of it.
        put: gives it another text. Aliases of a value follow it; an alias gets a value of its own.
        alias: how an alias is written, such as "*batch"; else empty.
        literal: whether the path is written out, not just brought along by an alias or a merge key.
    """

    key: str
    kind: str
    text: str
    content: object
    origin: int
    put: Callable[[str], None]
    alias: str = ""
    literal: bool = True


class Document(Protocol):
    """The content of a file."""

    def places(self) -> list[Place]:
        """All values, as they are now."""

    def dump(self) -> str:
        """The whole text, with what was changed."""


def new_text(old: str, value: int | float) -> str:
    """What a value's text becomes: the old one if it says that number already; quotes stay around numbers."""
    inner, quote = (old[1:-1], old[0]) if old[:1] in QUOTES else (old, "")
    text = repr(value)
    if "." not in text:  # YAML 1.1 takes an exponent without a point before it for text
        text = text.replace("e", ".0e")
    try:
        same = float(inner) == value
    except ValueError:
        return text
    ambiguous = inner.lstrip("+-")[:1] == "0" and inner.lstrip("+-")[1:2].isdigit()  # 010 is 8 to some
    return old if same and not ambiguous else f"{quote}{text}{quote}"


def replaceable(text: str) -> bool:
    """Whether a number may take a value's place: not that of text such as ``${oc.env:BATCH}``."""
    inner = (text[1:-1] if text[:1] in QUOTES else text).strip()
    if inner.lower() in BLANK:
        return True
    for parse in (float, lambda number: int(number, 0)):  # the second knows 0x18
        try:
            parse(inner)
            return True
        except ValueError:
            continue
    return False
