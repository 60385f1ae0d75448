"""Reads configuration files (YAML, TOML or JSON) into plain values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError, one_line
from tuner.machine.safe_files import regular
from tuner.trial import LARGEST_NUMBER

if TYPE_CHECKING:
    from yaml import Node

MOST_BYTES = 16 * 2**20
MOST_VALUES = 1_000_000  # aliases of aliases can stand for more values than fit into memory
MERGE, TEXT, FLOAT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


class GivenFile(str):
    """The path of a file that a user gives. It is read once, however often its content is asked for."""

    def content(self, what: str) -> object:
        """As ``parse_file``."""
        if "_content" not in vars(self):
            self._content = parse_file(Path(self), what)
        return self._content


def parse_file(path: Path, what: str = "configuration file") -> object:
    """The content of a YAML, TOML or JSON file in plain values; ``what`` is what an error calls it."""
    try:
        text = regular(path, MOST_BYTES).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the {what} {path}: {_reason(error)}") from error
    try:
        if path.suffix in (".yaml", ".yml"):
            return _yaml(text)
        if path.suffix == ".toml":
            import tomllib

            return _bounded(tomllib.loads(text))
        if path.suffix == ".json":
            return _bounded(json.loads(text, object_pairs_hook=_mapping))
    except RecursionError as error:
        raise InputError(f"{path} cannot be parsed: it is nested too deep") from error
    except Exception as error:
        raise InputError(f"{path} cannot be parsed: {_reason(error)}") from error
    raise InputError(f"{path}: unknown kind of file {path.suffix!r}; use .yaml, .toml or .json")


def _yaml(text: str) -> object:
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _values(root, {}) > MOST_VALUES:
            raise ValueError(f"with its aliases it has more than {MOST_VALUES:,} values; write out those that count")
        _read_numbers(root)
        return _bounded(loader.construct_document(root))
    finally:
        loader.dispose()


def _read_numbers(node: Node, name: object = "") -> None:
    """Marks plain texts such as ``1e-3`` as numbers, which YAML 1.1 reads as texts; names stay as they are."""
    if isinstance(node.value, list):
        for part in node.value:
            for inner in part[1:] if isinstance(part, tuple) else [part]:
                _read_numbers(inner, part[0].value if isinstance(part, tuple) else "")
    elif (
        node.tag == TEXT and getattr(node, "style", None) is None and name != "name" and NUMBER.fullmatch(node.value)
    ):
        node.tag = FLOAT


def _values(node: Node, counts: dict[int, float]) -> float:
    """The number of values that a node stands for, with its aliases; infinite where it holds itself.

    ``counts`` has those of earlier nodes, by their ids. A key that is there twice raises a ValueError.
    """
    if id(node) not in counts:
        counts[id(node)] = math.inf
        inner = node.value if isinstance(node.value, list) else []
        if inner and isinstance(inner[0], tuple):
            _check_unique(
                [(key.tag, key.value) for key, _ in inner if key.tag != MERGE and isinstance(key.value, str)]
            )
            inner = [part for pair in inner for part in pair]
        counts[id(node)] = 1 + sum(_values(part, counts) for part in inner)
    return counts[id(node)]


def _mapping(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    _check_unique([("", key) for key, _ in pairs])
    return dict(pairs)


def _check_unique(keys: Sequence[tuple[str, str]]) -> None:
    seen = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"key {key[1]!r:.60} occurs twice; leave one of them out")
        seen.add(key)


def _bounded(content: object) -> object:
    """The content itself; a whole number that is larger than any other kind can be raises a ValueError."""
    for inside in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        _bounded(inside)
    if isinstance(content, int) and abs(content) > LARGEST_NUMBER:
        digits = int(content.bit_length() * math.log10(2)) + 1
        raise ValueError(f"a number of about {digits} digits is too large; give at most {LARGEST_NUMBER:g}")
    return content


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
