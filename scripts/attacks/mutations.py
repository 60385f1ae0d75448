"""Damages files: bytes without a thought of what they mean, values where they mean something, and the file's kind."""

from __future__ import annotations

import json
import os
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit
import yaml

Node = tuple[Any, Any]  # a container, and the key or the index of a value in it
DEEP = 100_000
# What stands in a value's place, as JSON has it; most of it is YAML as well.
HOSTILE = [
    *("null", "true", "-1", "0", "1.5", "-0.0", "1e400", "-1e400", "NaN", "-Infinity", "1e-320", "1e308"),
    *("9223372036854775808", "1" * 401, "-" + "9" * 5000, "[]", "{}", "[1, 2]", '{"a": 1}', "[null]", '[["a"]]'),
    *('""', '"x"', '"../../victim"', '"/etc/passwd"', '"t001/../../../victim"', '"' + "n" * 100_000 + '"', '"NaN"'),
    *(r'"\u0000"', r'"\u001b]0;title\u0007"', r'"\ud800"', "\"=cmd|' /C calc'!A0\"", '"1e-3"', '" "', r'"\n\n"'),
    *('"graphsage"', '"cpu"', '"completed"', '"true"', '"os:system"', '"auto"', '"=1+1"', '"%s%n{0}"', '"ä\u202e"'),
    *("[" * 500 + "]" * 500, "[" * DEEP + "]" * DEEP, '{"a":' * 3000 + "1" + "}" * 3000),
]
IN_YAML = [
    *("&a [*a]", "*missing", "!!python/object/apply:os.system [touch victim]", "!!binary x", ".inf", ".nan", "? x"),
    *("2026-13-45", "{<<: [*a]}", "0x" + "f" * 500, "1:2:3", "~", "|\n  x", "!!set {a, b}", "!x y", "=", "012"),
]
IN_TOML = ["inf", "nan", "2026-01-01T00:00:00", "'''x'''", "{a = 1}", "0b1", "1979-05-27", "{}", "[{}]"]
IN_TEXT = [
    *("", "-1", "1e400", "nan", "inf", "9" * 401, "x" * 100_000, "\0", "\ufeff", "=1+1", '"', '""', "1.5.5", "٣"),
    *("0x10", "../../victim", "\x1b]0;t\x07", "-", "99999999999999999999", "2147483648", "1_0", " ", "True"),
    *("1e3", "-0", "1,5"),
]


def damaged(path: Path, draw: random.Random) -> str:
    """Damages a file one to three times, and returns how."""
    if draw.random() < 0.05:
        return in_place_of(path, draw.choice(KINDS))
    content, said = path.read_bytes(), []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        of_values = draw.random() < 0.6
        content, what = (values if of_values else some_bytes)(content, path.suffix, draw)
        said.append(what)
    path.write_bytes(content)
    return ", ".join(said)


def some_bytes(content: bytes, suffix: str, draw: random.Random) -> tuple[bytes, str]:
    """The content with one change of bytes, and its name."""
    change = draw.choice(BYTES)
    return change(content, draw), change.__name__


def values(content: bytes, suffix: str, draw: random.Random) -> tuple[bytes, str]:
    """The content with one change of a value; where it cannot be understood any more, of bytes."""
    try:
        text = content.decode()
        if suffix == ".jsonl":
            rows = text.splitlines(keepends=True)
            place = draw.randrange(len(rows))
            rows[place] = tree(json.loads(rows[place]), HOSTILE, json.dumps, draw) + "\n"
            return "".join(rows).encode(errors="surrogatepass"), f"a value of line {place + 1}"
        if suffix == ".json":
            return tree(json.loads(text), HOSTILE, json.dumps, draw).encode(errors="surrogatepass"), "a value"
        if suffix in (".yaml", ".yml"):
            changed = tree(yaml.safe_load(text), HOSTILE + IN_YAML * 2, yaml.safe_dump, draw)
            return changed.encode(errors="surrogatepass"), "a value"
        if suffix == ".toml":
            changed = tree(tomllib.loads(text), HOSTILE[2:] + IN_TOML * 2, tomlkit.dumps, draw)
            return changed.encode(errors="surrogatepass"), "a value"
        return cells(text, draw).encode(errors="surrogatepass"), "a cell"
    except (ValueError, RecursionError, TypeError, IndexError, yaml.YAMLError, AttributeError, OverflowError):
        return some_bytes(content, suffix, draw)


def tree(content: Any, hostile: list[str], dump: Callable[[Any], str], draw: random.Random) -> str:
    """Nested values as text, one of them changed."""
    nodes = list(_nodes(content))
    if not nodes:
        return draw.choice(hostile)
    holder, key = draw.choice(nodes)
    how = draw.randrange(8)
    mark, raw = "@@mark@@", draw.choice(hostile)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[f"{key}x" if draw.random() < 0.5 else draw.choice(("", "../../victim", "\x1b]", "k" * 9000))] = (
            holder.pop(key)
        )
    elif how == 2:
        other, its = draw.choice(nodes)
        holder[key], other[its] = other[its], holder[key]
    elif how == 3 and isinstance(holder[key], list):
        holder[key] = holder[key] * draw.choice((2, 3000))
    elif how == 4 and isinstance(holder[key], (int, float)):
        holder[key] = holder[key] * draw.choice((-1, 10**9, 10**30)) + draw.choice((0, 0.5))
    elif how == 5:
        holder[key] = [holder[key]] if draw.random() < 0.5 else {"a": holder[key]}
    elif how == 6 and not isinstance(holder[key], str):
        holder[key] = str(holder[key])
    else:
        holder[key] = mark
    text = dump(content)
    for quoted in (f'"{mark}"', f"'{mark}'", mark):
        text = text.replace(quoted, raw)
    return text


def _nodes(content: Any) -> list[Node]:
    """Where every value is, those of mappings and lists before what is in them."""
    found: list[Node] = []
    todo = [content]
    while todo:
        node = todo.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        found += [(node, key) for key in keys]
        todo += [node[key] for key in keys]
    return found


def cells(text: str, draw: random.Random) -> str:
    """Lines of columns with one change."""
    rows = text.splitlines()
    place = draw.randrange(min(len(rows), draw.choice((1, 5, len(rows)))))
    parts = re.split(r"([\t|,; ]+|::)", rows[place])
    column = draw.randrange(0, len(parts), 2)
    how = draw.randrange(7)
    if how == 0:
        del parts[column : column + 2]
    elif how == 1:
        parts[column:column] = [draw.choice(IN_TEXT), parts[1] if len(parts) > 1 else ","]
    elif how == 2:
        rows[place:place] = [rows[place]] * draw.choice((1, 1000))
    elif how == 3:
        del rows[place]
    elif how == 4:
        parts[column] = f"{float(parts[column]) * draw.choice((-1, 1e9, 1e30, 0.5)):.17g}"
    else:
        parts[column] = draw.choice(IN_TEXT)
    if how not in (2, 3):
        rows[place] = "".join(parts)
    return "\n".join(rows) + "\n"


def flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(draw.choice((1, 1, 5, 50))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def without_a_part(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    return content[:start] + content[start + draw.choice((1, 2, 20, 500)) :]


def doubled_part(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    part = content[start : start + draw.choice((1, 10, 200))]
    return content[:start] + part * draw.choice((2, 3, 5000)) + content[start:]


def inserted(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    return content[:start] + draw.choice(INSERTED) + content[start:]


def other_number(content: bytes, draw: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", content))
    if not found:
        return inserted(content, draw)
    one = draw.choice(found)
    return content[: one.start()] + draw.choice(NUMBERS) + content[one.end() :]


def recoded(content: bytes, draw: random.Random) -> bytes:
    text = content.decode(errors="replace")
    changed = (text.encode("utf-16"), b"\xef\xbb\xbf" + content, text.replace("\n", "\r\n").encode())
    return draw.choice((*changed, text.replace("\n", "\r").encode(), text.encode("utf-32"), text.upper().encode()))


def replaced(content: bytes, draw: random.Random) -> bytes:
    return draw.choice(
        (b"", b"\n" * 10_000, b"\0" * 4096, b"x" * 2_000_000, b"[" * 200_000, draw.randbytes(5000), b"{}\n")
    )


BYTES = (flipped, cut, without_a_part, doubled_part, inserted, other_number, recoded, replaced)
INSERTED = (
    *(b"\0", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\r", b"\x1b]0;t\x07", b"'", b'"', b"\n", b"\t", b": ", b"- "),
    *(b"&a ", b"*a", b"{" * 3000, b"[" * 3000, b"%", b"#", b"\\", b"e999", b"_", b"\xe2\x80\xae", b"\x85"),
    b"a" * 300_000,
)
NUMBERS = (
    *(b"1e400", b"-1", b"NaN", b"Infinity", b"9" * 401, b"9" * 5000, b"99999999999", b"0", b"1.5", b"1e-400", b""),
    b"2147483648",
)


def in_place_of(path: Path, kind: str) -> str:
    """Puts something else in a file's place, and says what."""
    if kind == "a sparse file of 8 GB":
        os.truncate(path, 8 << 30)
        return kind
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind in LINKS:
        victim = Path(os.path.relpath(path.parents[1] if path.parent.name == "study" else path.parent)) / "victim.pt"
        path.symlink_to(LINKS[kind].format(victim=victim, name=path.name))
    return kind


LINKS = {"a link to a victim": "{victim}", "a link to itself": "{name}", "a link to /dev/zero": "/dev/zero"}
KINDS = (*LINKS, "a pipe", "a folder", "missing", "a sparse file of 8 GB")
