"""YAML and TOML texts whose numbers can be changed: ruamel.yaml and tomlkit write them anew.

Values, order, comments, quotes, anchors, merge keys and flow style stay, in TOML all else, too. In YAML spacing and
indentation may become regular.
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
# What stands where no number has been chosen yet, beside a number itself.
BLANK = ("", "~", "null", "true", "false", AUTO)
MOST_PLACES = 100_000  # aliases of aliases can stand for more values than fit into memory
MERGE = "<<"
# The marker that begins a document, with all comments before it: ruamel.yaml does not write these again.
HEAD = re.compile(r"(?:[ \t]*(?:#.*)?\n)*---[ \t]*(?:#.*)?(?:\n|$)")
FOLD = "\a"  # where ruamel.yaml has found a line's end in folded text; it can write it again between two words alone
NO_FOLD = re.compile(rf"(?<!\S){FOLD}|{FOLD}(?! \S)")
WIDE = 2**20  # so that no line is folded


@dataclass(frozen=True)
class Place:
    """A value in a document."""

    key: str  # its dotted path
    kind: str  # "a value", or what it is instead, such as "a mapping"
    text: str  # the value's text, quotes included; of an alias, that of what it stands for
    content: object  # all that stays as it is where this value is not changed
    origin: int  # the same for a value and all aliases of it
    # gives it another text. Aliases of a value follow it; an alias gets a value of its own.
    put: Callable[[str], None]
    alias: str = ""  # how an alias is written, such as "*batch"; else empty
    literal: bool = True  # whether the path is written out, not just brought along by an alias or a merge key


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


class YamlDocument:
    """A YAML document as ruamel.yaml's nodes, in which every value is still the text that the file has."""

    def __init__(self, text: str, source: str) -> None:
        found = HEAD.match(text)
        self._source, self._head = source, found[0] if found else ""
        self._yaml = YAML()
        self._yaml.width = WIDE
        self._yaml.brace_single_entry_mapping_in_flow_sequence = True
        try:
            with warnings.catch_warnings():  # that an anchor is used again, which is no fault
                warnings.simplefilter("ignore")
                self._root: Node | None = self._yaml.compose(text[len(self._head) :])
        except (YAMLError, YAMLStreamError, ValueError) as error:
            raise self._not_yaml(error) from error

    def places(self) -> list[Place]:
        """All values, also those that aliases and merge keys bring along."""
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
            if isinstance(node.anchor, str):  # a name, which is only written of an ``Anchor``
                name, node.anchor = node.anchor, Anchor()
                node.anchor.value, node.anchor.always_dump = name, True
            if isinstance(node, ScalarNode) and node.style == ">":
                node.value = NO_FOLD.sub("", node.value)
        out = io.StringIO()
        self._yaml.serialize(self._root, out)
        return self._head + out.getvalue()

    def _inside(self, node: Node, key: str, literal: bool, met: set[int], above: tuple[int, ...]) -> Iterator[Place]:
        """The places inside a node, each before what is inside of it."""
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
        """What is inside a mapping or a list: name, node and number, which is None of what a merge key brings."""
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
                    if own.setdefault(name, value) is value:  # the first that has a key gives it
                        yield name, value, None

    def _put(self, holder: Node, number: int | None, alias: str, text: str) -> None:
        """Changes a node, or gives its holder another one where it is an alias."""
        entry = holder.value[number]
        node = entry[1] if isinstance(entry, tuple) else entry
        is_said = node.style is None and node.tag != self._tag(node.value)  # the file says what it is: !!str 8
        if alias:
            node = ScalarNode(None, "")
            holder.value[number] = (entry[0], node) if isinstance(entry, tuple) else node
        if alias or not (is_said or text[:1] in QUOTES):
            node.style, node.tag = None, self._tag(text)
        node.value = text.strip("'\"")

    def _tag(self, text: str) -> str:
        """What a plain text is taken for."""
        return str(self._yaml.resolver.resolve(ScalarNode, text, (True, False)))

    def _indent(self) -> None:
        """Has mappings and lists indented as the first of each are."""
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
    """A node and all that are inside of it, each once, in their order."""
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
