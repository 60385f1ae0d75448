"""Changes of numbers in YAML and TOML files.

edit_file ──► FileEdit (old text, new text, what changes) ──► apply_edits: backups, then whole new files
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tuner.errors import ExecutionError, InputError, option
from tuner.machine import atomic_files
from tuner.machine.atomic_files import PARTIAL
from tuner.machine.regular_files import MOST_BYTES, regular
from tuner.sizing.config_edits.documents import (
    A_VALUE,
    FORMATS,
    Place,
    TomlDocument,
    YamlDocument,
    new_text,
    replaceable,
)

BACKUP = ".backup"
BOM = "\ufeff"


@dataclass(frozen=True)
class ValueChange:
    """A changed value with its old and new text; an alias' text is like ``*batch``."""

    key: str
    before: str
    after: str


@dataclass(frozen=True)
class FileEdit:
    """A planned change of a file, which ``apply_edits`` writes; ``changes`` include aliases of changed values."""

    path: Path
    before: str
    after: str
    changes: tuple[ValueChange, ...]

    def diff(self) -> str:
        """The difference in unified form; empty if there is none."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def edit_file(path: Path, values: Mapping[str, int | float]) -> FileEdit:
    """Plans the change of a ``.yaml``, ``.yml`` or ``.toml`` file; nothing is written.

    The keys of ``values`` are dotted paths (``data_loader.batch_size``; ``stages.0.batch_size`` in a list), or bare
    names at any depth; paths come first. An alias gets its own value; aliases of a value follow it.

    Raises:
        InputError: the file cannot be read or parsed, a key is missing, ambiguous or no number, or a comment would be
            lost.
    """
    before = _read(path)
    text = _plain(before)
    document, changes = _parse(path, text), list[ValueChange]()
    for name, value in values.items():
        places = document.places()
        place = _locate(places, name, path)
        new = new_text(place.text, value)
        if new == place.text:
            continue
        place.put(new)
        follow = [] if place.alias else [each for each in places if each.origin == place.origin and each is not place]
        changes += [ValueChange(each.key, each.alias or each.text, new) for each in (place, *follow)]
    if not changes:
        return FileEdit(path, before, before, ())
    after = document.dump()
    _verify(path, text, after, document.places())
    if "\r\n" in before:
        after = after.replace("\n", "\r\n")
    return FileEdit(path, before, BOM * before.startswith(BOM) + after, tuple(changes))


def held(path: Path, keys: Iterable[str]) -> set[str]:
    """The keys (dotted paths or bare names) that a file has. An unreadable file raises ``InputError``."""
    found = _parse(path, _plain(_read(path))).places()
    return {key for key in keys if _matches(found, key)}


def apply_edits(edits: Sequence[FileEdit]) -> list[Path]:
    """Writes edits of different files atomically, and returns the backups: ``NAME.backup``, ``NAME.backup.1``, ….

    All new files are on disk under temporary names before the first is renamed. Permissions and links stay. Files
    without changes are not touched.

    Raises:
        InputError: a file has changed since it was planned, or occurs twice. Nothing is written.
        ExecutionError: a file cannot be written; the text names the changed files.
    """
    changing = {each.path.resolve(): each for each in edits if each.before != each.after}
    _check(edits, changing)
    staged: dict[Path, Path] = {}
    try:
        for target, each in changing.items():
            staged[target] = _stage(target, each.after)
        backups = [_back_up(target, each.before) for target, each in changing.items()]
        for target in changing:
            atomic_files.move(staged[target], target)
            del staged[target]
    except OSError as error:
        for partial in staged.values():
            partial.unlink(missing_ok=True)
        done = ", ".join(str(target) for target in changing if target not in staged)
        what = f"only {done} is changed" if len(staged) < len(changing) else "nothing is changed"
        raise ExecutionError(f"{error.filename}: cannot be written: {error.strerror}; {what}") from error
    return backups


def _check(edits: Sequence[FileEdit], changing: Mapping[Path, FileEdit]) -> None:
    for each in edits:
        if _read(each.path) != each.before:
            raise InputError(f"{each.path}: has changed since it was read: try again")
        if each.before == each.after:
            continue
        if changing[each.path.resolve()] is not each:
            raise InputError(f"{each.path}: is to be changed twice: give each file once")
        if not os.access(each.path, os.W_OK):
            raise InputError(f"{each.path}: is write-protected: make it writable")


def _stage(target: Path, text: str) -> Path:
    """Writes a file beside another, with its permissions, under a name that nobody has."""
    descriptor, name = tempfile.mkstemp(PARTIAL, f".{target.name}.", target.parent)
    path = Path(name)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, target.stat().st_mode & 0o7777)
            atomic_files.write_through(file, text.encode())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _back_up(target: Path, text: str) -> Path:
    """Copies a file to the first free name, by a hard link, as that never replaces a file."""
    partial = _stage(target, text)
    try:
        for number in count():
            backup = target.with_name(f"{target.name}{BACKUP}{f'.{number}' if number else ''}")
            try:
                os.link(partial, backup)
                break
            except FileExistsError:
                continue
    finally:
        partial.unlink()
    atomic_files.sync_folder(target.parent)
    return backup


def _read(path: Path) -> str:
    try:
        return regular(path, MOST_BYTES).read_bytes().decode()
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start + 1}): convert it") from error


def _plain(text: str) -> str:
    """The text without BOM and with Unix line ends, for parsers."""
    return text.removeprefix(BOM).replace("\r\n", "\n")


def _parse(path: Path, text: str) -> YamlDocument | TomlDocument:
    """The content of a file, after a check of all places."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: unknown kind of file {path.suffix!r}; use {', '.join(FORMATS)}")
    try:
        kind = TomlDocument if path.suffix == ".toml" else YamlDocument
        document = kind(text, str(path))
        document.places()
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply: give a simpler file") from error
    return document


def _verify(path: Path, before: str, after: str, expected: Sequence[Place]) -> None:
    """Reads the new text to check that no other value changes and that no comment is lost."""
    found = _parse(path, after).places()
    if [(each.key, each.content) for each in found] != [(each.key, each.content) for each in expected]:
        raise InputError(f"{path}: cannot be changed without changing more: change it by hand")
    if after.count("#") != before.count("#"):
        raise InputError(f"{path}: a comment inside of brackets would be lost: move it, or change the file by hand")


def _locate(found: Sequence[Place], name: str, path: Path) -> Place:
    """The place to change."""
    matches = _matches(found, name)
    if not matches:
        raise InputError(f"{path}: holds no key {name}{_close(found, name)}")
    place = matches[0]
    if len(matches) > 1:
        keys = ", ".join(each.key for each in matches)
        raise InputError(
            f"{path}: {name} occurs {len(matches)} times ({keys}): give the dotted path of one as "
            f"{option('key', 'NAME=DOTTED.PATH')}"
        )
    if place.kind != A_VALUE:
        raise InputError(f"{path}: {place.key} is {place.kind}: give a key with a single value")
    if not replaceable(place.text):
        raise InputError(f"{path}: {place.key} is {place.text}, not a number: change it by hand")
    return place


def _matches(found: Sequence[Place], name: str) -> list[Place]:
    """The places with this path, or else those whose path ends with this name."""
    written = [each for each in found if each.literal]
    return [each for each in written if each.key == name] or [each for each in written if _last(each) == name]


def _last(place: Place) -> str:
    return place.key.rpartition(".")[2]


def _close(found: Sequence[Place], name: str) -> str:
    """A hint about similar keys."""
    for each in found:
        if not each.literal and name in (each.key, _last(each)):
            written = next(other.key for other in found if other.literal and other.origin == each.origin)
            return f" of its own: {each.key} is {written} by an alias; change that"
    names = {text: each.key for each in found for text in (_last(each), each.key)}
    close = difflib.get_close_matches(name, names) + difflib.get_close_matches(name.rpartition(".")[2], names)
    return f"; close to it: {', '.join(dict.fromkeys(names[text] for text in close))}" if close else ""
