"""YAML and TOML texts with numbers that can be changed, by ruamel.yaml and tomlkit.

Values, order, comments, quotes, anchors, merge keys and flow style stay. In TOML, everything else stays, too. In
YAML, spacing and indentation may become regular.
"""

from __future__ import annotations

import io
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import tomlkit
from ruamel.yaml import YAML, CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.anchor import Anchor
from ruamel.yaml.error import YAMLError, YAMLStreamError
from tomlkit.exceptions import TOMLKitError

from tuner.errors import InputError, one_line
from tuner.trial import AUTO

FORMATS = (".yaml", ".yml", ".toml")
QUOTES = ("'", '"')
A_VALUE, A_LIST, MULTILINE = "a value", "a list", "text of several lines"
BLANK = ("", "~", "null", "true", "false", AUTO)  # a number may replace these
MOST_PLACES = 100_000  # aliases of aliases can stand for more values than fit into memory
MERGE = "<<"
# The marker at a document's beginning, with the comments before it, which ruamel.yaml does not write again.
HEAD = re.compile(r"(?:[ \t]*(?:#.*)?\n)*---[ \t]*(?:#.*)?(?:\n|$)")
FOLD = "\a"  # ruamel.yaml's mark for a line end in folded text; it can only write one between two words
NO_FOLD = re.compile(rf"(?<!\S){FOLD}|{FOLD}(?! \S)")
WIDE = 2**20  # a line width at which no line is folded


@dataclass(frozen=True)
class Place:
    """A value in a document."""

    key: str  # its dotted path
    kind: str  # "a value", or another kind such as "a mapping"
    text: str  # the value's text with quotes; for an alias, the text of its anchor
    content: object  # compared to check that a value did not change
    origin: int  # the same for a value and all its aliases
    put: Callable[[str], None]  # sets the text. Aliases of a value follow it; an alias becomes a value of its own.
    alias: str = ""  # an alias' own text, such as "*batch"
    literal: bool = True  # the path itself is in the file, not only by an alias or a merge key


def new_text(old: str, value: int | float) -> str:
    """The text of a new value. The old text stays if it is the same number, and quotes stay."""
    inner, quote = (old[1:-1], old[0]) if old[:1] in QUOTES else (old, "")
    text = repr(value)
    if "." not in text:  # YAML 1.1 reads an exponent without a decimal point as text
        text = text.replace("e", ".0e")
    try:
        same = float(inner) == value
    except ValueError:
        return text
    ambiguous = inner.lstrip("+-")[:1] == "0" and inner.lstrip("+-")[1:2].isdigit()  # some parsers read 010 as 8
    return old if same and not ambiguous else f"{quote}{text}{quote}"


def replaceable(text: str) -> bool:
    """Whether a number may replace a value. It may not replace text such as ``${oc.env:BATCH}``."""
    inner = (text[1:-1] if text[:1] in QUOTES else text).strip()
    if inner.lower() in BLANK:
        return True
    for parse in (float, lambda number: int(number, 0)):  # the second parses 0x18
        try:
            parse(inner)
            return True
        except ValueError:
            continue
    return False


class YamlDocument:
    """A YAML document as ruamel.yaml's nodes, whose values are still the file's texts."""

    def __init__(self, text: str, source: str) -> None:
        found = HEAD.match(text)
        self._source, self._head = source, found[0] if found else ""
        self._yaml = YAML()
        self._yaml.width = WIDE
        self._yaml.brace_single_entry_mapping_in_flow_sequence = True
        try:
            with warnings.catch_warnings():  # reused anchors are allowed
                warnings.simplefilter("ignore")
                self._root: Node | None = self._yaml.compose(text[len(self._head) :])
        except (YAMLError, YAMLStreamError, ValueError) as error:
            raise self._not_yaml(error) from error

    def places(self) -> list[Place]:
        """All values, also those by aliases and merge keys."""
        found: list[Place] = []
        for place in self._inside(self._root, "", True, set(), ()) if self._root else ():
            found.append(place)
            if len(found) > MOST_PLACES:
                raise InputError(f"{self._source}: holds more than {MOST_PLACES} values: give a smaller file")
        return found

    def dump(self) -> str:
        """The text that ruamel.yaml writes."""
        self._indent()
        for node in _nodes(self._root):
            if isinstance(node.anchor, str):  # only an ``Anchor`` is written, not its name alone
                name, node.anchor = node.anchor, Anchor()
                node.anchor.value, node.anchor.always_dump = name, True
            if isinstance(node, ScalarNode) and node.style == ">":
                node.value = NO_FOLD.sub("", node.value)
        out = io.StringIO()
        self._yaml.serialize(self._root, out)
        return self._head + out.getvalue()

    def _inside(self, node: Node, key: str, literal: bool, met: set[int], above: tuple[int, ...]) -> Iterator[Place]:
        """The places inside a node, each before its own content."""
        if id(node) in above:
            raise self._fault(node, "an alias is inside of what it stands for")
        for name, entry, number in self._entries(node):
            path, here = f"{key}.{name}" if key else name, literal and number is not None
            alias = f"*{_anchor(entry)}" if here and id(entry) in met else ""
            met.add(id(entry))
            kind, text = "a mapping" if isinstance(entry, MappingNode) else A_LIST, ""
            if isinstance(entry, ScalarNode):
                kind = MULTILINE if entry.style in ("|", ">") else A_VALUE
                quote = entry.style if entry.style in QUOTES else ""
                text = f"{quote}{entry.value}{quote}"
            content = (kind, entry.tag, text.strip("'\"").replace(FOLD, ""), _anchor(entry), alias)
            yield Place(path, kind, text, content, id(entry), partial(self._put, node, number, alias), alias, here)
            yield from self._inside(entry, path, here and not alias, met, (*above, id(node)))

    def _entries(self, node: Node) -> Iterator[tuple[str, Node, int | None]]:
        """The entries of a mapping or a list: name, node and number, which is None for those by a merge key."""
        if isinstance(node, SequenceNode):
            yield from ((str(number), item, number) for number, item in enumerate(node.value))
        elif isinstance(node, MappingNode):
            own: dict[str, Node] = {}
            for number, (key, value) in enumerate(node.value):
                name = str(key.value) if isinstance(key, ScalarNode) else f"?{key.start_mark.index}"
                if name in own:
                    raise self._fault(key, f"the key {name} occurs twice in one mapping: keep one")
                own[name] = value
                if name != MERGE:
                    yield name, value, number
            merged = own.pop(MERGE, None)
            for source in [merged] if isinstance(merged, MappingNode) else merged.value if merged else ():
                for name, value, _ in self._entries(source):
                    if own.setdefault(name, value) is value:  # the first source of a key counts
                        yield name, value, None

    def _put(self, holder: Node, number: int | None, alias: str, text: str) -> None:
        """Changes a node. An alias is replaced by a new node."""
        entry = holder.value[number]
        node = entry[1] if isinstance(entry, tuple) else entry
        is_tagged = node.style is None and node.tag != self._tag(node.value)  # explicitly, as in !!str 8
        if alias:
            node = ScalarNode(None, "")
            holder.value[number] = (entry[0], node) if isinstance(entry, tuple) else node
        if alias or not (is_tagged or text[:1] in QUOTES):
            node.style, node.tag = None, self._tag(text)
        node.value = text.strip("'\"")

    def _tag(self, text: str) -> str:
        """The tag that YAML resolves for a plain text."""
        return str(self._yaml.resolver.resolve(ScalarNode, text, (True, False)))

    def _indent(self) -> None:
        """Sets the indentation of mappings and lists to that of the first ones."""
        steps: dict[str, int] = {}
        for node in _nodes(self._root):
            for key, value in node.value if isinstance(node, MappingNode) and not node.flow_style else ():
                if not isinstance(value, CollectionNode) or value.flow_style or value.anchor or not value.value:
                    continue
                column, is_list = key.start_mark.column, isinstance(value, SequenceNode)
                first = value.value[0] if is_list else value.value[0][0]
                steps.setdefault("sequence" if is_list else "mapping", first.start_mark.column - column)
                if is_list:
                    steps.setdefault("offset", value.start_mark.column - column)
        self._yaml.indent(steps.get("mapping", 2), steps.get("sequence", 2), steps.get("offset", 0))

    def _fault(self, node: Node, text: str) -> InputError:
        return InputError(f"{self._source}: line {self._line(node.start_mark.line)}: {text}")

    def _line(self, number: int) -> int:
        return number + 1 + self._head.count("\n")

    def _not_yaml(self, error: Exception) -> InputError:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        if problem == "but found another document":
            return InputError(f"{self._source}: holds several YAML documents: give a file of one")
        where = f" (line {self._line(mark.line)})" if mark else ""
        return InputError(f"{self._source}: is not YAML: {problem or one_line(error)}{where}")


def _nodes(root: Node | None) -> Iterator[Node]:
    """A node and all nodes inside it, without duplicates, in order."""
    waiting, met = [root] if root else [], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) not in met:
            met.add(id(node))
            yield node
            if isinstance(node, CollectionNode):
                waiting += [each for entry in node.value for each in _parts(entry)][::-1]


def _parts(entry: Node | tuple[Node, Node]) -> tuple[Node, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


def _anchor(node: Node) -> str | None:
    name: str | None = getattr(node.anchor, "value", node.anchor)
    return name


class TomlDocument:
    """A TOML document as tomlkit's values."""

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
                # Only booleans do not keep their text.
                text = str(value).lower() if isinstance(value, bool) else value.as_string()
                kind = MULTILINE if text[:3] in ('"""', "'''") else A_VALUE
            yield Place(path, kind, text, (kind, text), id(value), partial(self._put, holder, step))
            yield from self._inside(value, path)

    def _put(self, holder: object, step: str | int, text: str) -> None:
        holder[step] = tomlkit.value(text)  # type: ignore[index]
