"""Where the values of a YAML text stand, to the character: what it takes to change one and nothing else.

ruamel.yaml's parser tells positions. Its round-trip writer is not used: it writes the whole file anew, and changes
spacing, quotes and line ends on the way.
"""

from __future__ import annotations

import warnings
from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tuner.errors import InputError
from tuner.sizing.config_edits.places import Place, join

MERGE = "<<"
MOST_PLACES = 100_000  # aliases of aliases can stand for more values than fit into memory
KINDS = {"mapping": "a mapping", "list": "a list", "block": "text of several lines"}


@dataclass(frozen=True)
class _Node:
    kind: str  # "value", "block", "mapping", "list" or "alias"
    start: int
    end: int
    entries: tuple[tuple[str, _Node], ...] = ()  # of a mapping or a list; an alias' target

    def resolve(self) -> _Node:
        return self.entries[0][1] if self.kind == "alias" else self


def load(text: str, source: str) -> Any:
    """The content as a safe loader sees it, with merge keys resolved; unknown tags do not count.

    Raises:
        InputError: it cannot be loaded.
    """
    from ruamel.yaml import YAML, MappingNode, ScalarNode
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        """Builds plain values only."""

    def untagged(constructor: Constructor, _: str, node: Any) -> Any:
        if isinstance(node, ScalarNode):
            return constructor.construct_scalar(node)
        if isinstance(node, MappingNode):
            return constructor.construct_mapping(node, deep=True)
        return constructor.construct_sequence(node, deep=True)

    Constructor.add_multi_constructor("", untagged)
    loader = YAML(typ="safe", pure=True)
    loader.Constructor = Constructor
    try:
        with warnings.catch_warnings():  # that an anchor is used again, which is no fault
            warnings.simplefilter("ignore")
            return loader.load(text)
    except Exception as error:  # a constructor of a value that is not what its tag says raises what it likes
        raise _not_yaml(source, error) from error


def places(text: str, source: str) -> list[Place]:
    """All values of a YAML text, also those that aliases and merge keys bring along.

    Args:
        text: one YAML document.
        source: the file's name, for messages.

    Raises:
        InputError: it is not YAML, has several documents, or a key twice in one mapping.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError, YAMLStreamError

    try:
        tokens = list(YAML(typ="safe", pure=True).scan(text))
        events = list(YAML(typ="safe", pure=True).parse(text))
    except (YAMLError, YAMLStreamError, ValueError) as error:
        raise _not_yaml(source, error) from error
    documents = sum(_kind(event) == "DocumentStartEvent" for event in events)
    if documents > 1:
        raise InputError(f"{source}: holds {documents} YAML documents: give a file of one")
    content = [event for event in events if not _kind(event).startswith(("Document", "Stream"))]
    if not content:
        return []
    found: list[Place] = []
    for place in _places(_Builder(content, tokens, source).node(), "", True, text):
        found.append(place)
        if len(found) > MOST_PLACES:
            raise InputError(f"{source}: holds more than {MOST_PLACES} values: give a smaller file")
    return found


def replace(text: str, place: Place, new: str) -> str:
    """The text with another value in one place.

    Args:
        text: the file's.
        place: one of ``places(text)``.
        new: the value's text.
    """
    gap = "" if place.text or text[place.start - 1].isspace() else " "  # a value that was left blank
    behind = text[place.start + len(place.text) :]
    return text[: place.start] + gap + new + behind


class _Builder:
    """Events to nodes."""

    def __init__(self, events: Iterable[Any], tokens: Iterable[Any], source: str) -> None:
        ends = {kind: dict[int, int]() for kind in ("ScalarToken", "ValueToken", "BlockEntryToken")}
        for token in tokens:
            ends.setdefault(_kind(token), {})[token.end_mark.index] = token.start_mark.index
        self._events = iter(events)
        self._starts = ends["ScalarToken"]  # by where scalars end
        self._before_blanks = sorted({**ends["ValueToken"], **ends["BlockEntryToken"]})
        self._source = source
        self._anchors: dict[str, _Node] = {}

    def node(self) -> _Node:
        return self._node(next(self._events))

    def _node(self, event: Any) -> _Node:
        start, end = event.start_mark.index, event.end_mark.index
        match _kind(event):
            case "AliasEvent":
                return _Node("alias", start, end, (("", self._target(event)),))
            case "ScalarEvent":
                kind = "block" if event.style in ("|", ">") else "value"
                node = _Node(kind, *self._span(start, end))
            case "MappingStartEvent":
                node = _Node("mapping", start, end, tuple(self._pairs()))
            case _:
                node = _Node("list", start, end, tuple(self._items()))
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """Where a scalar stands: an event begins with the anchor and the tag, a token with the value itself."""
        if end in self._starts:
            return self._starts[end], end
        if start < end:  # left blank, behind an anchor or a tag
            return end, end
        blank = self._before_blanks[bisect(self._before_blanks, start) - 1]  # behind the colon or the dash
        return blank, blank

    def _target(self, event: Any) -> _Node:
        # An anchor is known only when its value is complete, so nothing can contain itself.
        if event.anchor not in self._anchors:
            raise self._fault(event, f"*{event.anchor} has no &{event.anchor} that ends before it")
        return self._anchors[event.anchor]

    def _pairs(self) -> Iterator[tuple[str, _Node]]:
        keys = set()
        while _kind(event := next(self._events)) != "MappingEndEvent":
            self._node(event)
            key = str(getattr(event, "value", f"?{event.start_mark.index}"))
            if key in keys:
                raise self._fault(event, f"the key {key} is there twice in one mapping: keep one")
            keys.add(key)
            yield key, self.node()

    def _items(self) -> Iterator[tuple[str, _Node]]:
        number = 0
        while _kind(event := next(self._events)) != "SequenceEndEvent":
            yield str(number), self._node(event)
            number += 1

    def _fault(self, event: Any, text: str) -> InputError:
        return InputError(f"{self._source}: line {event.start_mark.line + 1}: {text}")


def _places(node: _Node, key: str, literal: bool, text: str) -> Iterator[Place]:
    """A node's place and those of what is inside it."""
    target = node.resolve()
    if key:
        kind = KINDS.get(target.kind, "a value")
        yield Place(key, kind, text[node.start : node.end], node.start, target.start, literal)
    for name, entry in _own(target):
        yield from _places(entry, join(key, name), literal and target is node, text)
    for name, entry in _merged(target):
        yield from _places(entry, join(key, name), False, text)


def _own(node: _Node) -> list[tuple[str, _Node]]:
    return [(key, entry) for key, entry in node.entries if (node.kind, key) != ("mapping", MERGE)]


def _merged(node: _Node) -> Iterator[tuple[str, _Node]]:
    """What a merge key brings into a mapping: of several mappings, the first that has a key gives it."""
    taken = {key for key, _ in _own(node)}
    for key, entry in node.entries:
        if (node.kind, key) != ("mapping", MERGE):
            continue
        source = entry.resolve()
        for each in [source] if source.kind == "mapping" else [item.resolve() for _, item in source.entries]:
            for name, value in [*_own(each), *_merged(each)]:
                if name not in taken:
                    taken.add(name)
                    yield name, value


def _kind(event: Any) -> str:
    return type(event).__name__


def _not_yaml(source: str, error: Exception) -> InputError:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1})" if mark else ""
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return InputError(f"{source}: is not YAML: {problem}{where}")
