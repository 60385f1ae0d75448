"""Changes of numbers in YAML and TOML files that leave every other byte as it is.

edit ──► Edit (old text, new text, what changes) ──► apply: backups, then whole new files
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType

from tuner.errors import ExecutionError, InputError
from tuner.records import journal
from tuner.sizing.config_edits import toml_places, yaml_places
from tuner.sizing.config_edits.places import Place, flat, new_text, replaceable

FORMATS = {".yaml": yaml_places, ".yml": yaml_places, ".toml": toml_places}
BACKUP = ".backup"
BOM = "\ufeff"


@dataclass(frozen=True)
class Change:
    """A value that is another one afterwards.

    Attributes:
        key: its dotted path.
        before: its text in the file, such as ``45``, ``"45"`` or an alias, ``*batch``.
        after: its text then; of an alias that follows, what it stands for.
    """

    key: str
    before: str
    after: str


@dataclass(frozen=True)
class Edit:
    """What is to become of a file; nothing is written before ``apply``.

    Attributes:
        path: the file.
        before: its text as it was read.
        after: its text as it is to be.
        changes: the values that change: those asked for, and those that are aliases of them.
    """

    path: Path
    before: str
    after: str
    changes: tuple[Change, ...]

    def diff(self) -> str:
        """The difference in unified form; empty if there is none."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def edit(path: Path, values: Mapping[str, int | float]) -> Edit:
    """Works out how a file changes; nothing is written.

    A value that is an alias gets a value of its own; aliases of a value follow it.

    Args:
        path: a ``.yaml``, ``.yml`` or ``.toml`` file.
        values: new numbers by dotted path (``data_loader.batch_size``; ``stages.0.batch_size`` for what is in a
            list), or by a bare name that is found at any depth. A path is looked for first.

    Raises:
        InputError: the file cannot be read or parsed, a key is not in it, is there more than once, or holds
            something else than a single value, or text that stands for a value that is found elsewhere.
    """
    form, text = _format(path), _read(path)
    mark = BOM if text.startswith(BOM) else ""
    after, changes = text.removeprefix(BOM), list[Change]()
    for name, value in values.items():
        after, more = _change(form, after, name, value, path)
        changes += more
    return Edit(path, text, mark + after, tuple(changes))


def held(path: Path, keys: Iterable[str]) -> set[str]:
    """Those of the keys that a file holds, each given as a dotted path or a bare name.

    Raises:
        InputError: the file cannot be read or parsed.
    """
    found = _places(_format(path), _read(path).removeprefix(BOM), path)
    return {key for key in keys if _matches(found, key)}


def apply(edits: Sequence[Edit]) -> list[Path]:
    """Writes edits, each file as a whole, behind a copy of the old one: ``NAME.backup``, ``NAME.backup.1``, ….

    All new files are on disk under other names before the first gets its own. A file keeps its permissions; a link
    stays one. What would not change is not touched.

    Args:
        edits: of different files.

    Returns:
        The backups.

    Raises:
        InputError: a file is not what it was when the edit was worked out, or is there twice. Nothing is written.
        ExecutionError: a file cannot be written; the text says which have been.
    """
    changing = {each.path.resolve(): each for each in edits if each.before != each.after}
    _check(edits, changing)
    staged: dict[Path, Path] = {}
    try:
        for target, each in changing.items():
            staged[target] = _stage(target, each.after)
        backups = [_back_up(target, each.before) for target, each in changing.items()]
        for target in changing:
            journal.move(staged[target], target)
            del staged[target]
    except OSError as error:
        for partial in staged.values():
            partial.unlink(missing_ok=True)
        done = ", ".join(str(target) for target in changing if target not in staged)
        what = f"only {done} is changed" if len(staged) < len(changing) else "nothing is changed"
        raise ExecutionError(f"{error.filename}: cannot be written: {error.strerror}; {what}") from error
    return backups


def _check(edits: Sequence[Edit], changing: Mapping[Path, Edit]) -> None:
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
    descriptor, name = tempfile.mkstemp(journal.PARTIAL, f".{target.name}.", target.parent)
    path = Path(name)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, target.stat().st_mode & 0o7777)
            journal.write_through(file, text.encode())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _back_up(target: Path, text: str) -> Path:
    """Copies a file to the first name that is free; making a link, unlike renaming, never replaces a file."""
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
    journal.sync_folder(target.parent)
    return backup


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start + 1}): convert it") from error


def _format(path: Path) -> ModuleType:
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: unknown kind of file {path.suffix!r}; use {', '.join(FORMATS)}")
    return FORMATS[path.suffix]


def _places(form: ModuleType, text: str, path: Path) -> list[Place]:
    try:
        found: list[Place] = form.places(text, str(path))
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply: give a simpler file") from error
    return found


def _change(form: ModuleType, text: str, name: str, value: int | float, path: Path) -> tuple[str, list[Change]]:
    """The text with one value changed, and what changes with it."""
    found = _places(form, text, path)
    place = _locate(found, name, path)
    new = new_text(place.text, value)
    if new == place.text:
        return text, []
    after: str = form.replace(text, place, new)
    follow = [each for each in found if each is not place and place.start in (each.start, each.origin)]
    changes = [Change(each.key, each.text, new) for each in (place, *follow)]
    _verify(form, text, after, value, len(changes), path)
    return after, changes


def _verify(form: ModuleType, before: str, after: str, value: int | float, expected: int, path: Path) -> None:
    """Loads both texts, to be sure that no other value is another one now."""
    old, new = (list(flat(form.load(text, str(path)))) for text in (before, after))
    changed = [b for a, b in zip(old, new, strict=False) if repr(a) != repr(b)]
    same_keys = [key for key, _ in old] == [key for key, _ in new]
    if not same_keys or len(changed) > expected or any(float(each) != value for _, each in changed):
        raise InputError(f"{path}: cannot be changed without changing more: change it by hand")


def _locate(found: Sequence[Place], name: str, path: Path) -> Place:
    """What is to change."""
    matches = _matches(found, name)
    if not matches:
        raise InputError(f"{path}: holds no key {name}{_close(found, name)}")
    if len(matches) > 1:
        keys = ", ".join(each.key for each in matches)
        raise InputError(
            f"{path}: {name} is there {len(matches)} times ({keys}): give the dotted path of one with "
            f"--key NAME=DOTTED.PATH"
        )
    if matches[0].kind != "a value":
        raise InputError(f"{path}: {matches[0].key} is {matches[0].kind}: give a key with a single value")
    text = next((each.text for each in found if each.start == matches[0].origin), matches[0].text)
    if not replaceable(text):
        raise InputError(f"{path}: {matches[0].key} is {text}, not a number: change it by hand")
    return matches[0]


def _matches(found: Sequence[Place], name: str) -> list[Place]:
    """What a name stands for: a whole path, or else the end of one."""
    written = [each for each in found if each.literal]
    return [each for each in written if each.key == name] or [each for each in written if _last(each) == name]


def _last(place: Place) -> str:
    return place.key.rpartition(".")[2]


def _close(found: Sequence[Place], name: str) -> str:
    """What may have been meant."""
    for each in found:
        if not each.literal and name in (each.key, _last(each)):
            written = next(other.key for other in found if other.literal and other.origin == each.origin)
            return f" of its own: {each.key} is {written} by an alias; change that"
    names = {text: each.key for each in found for text in (_last(each), each.key)}
    close = difflib.get_close_matches(name, names) + difflib.get_close_matches(name.rpartition(".")[2], names)
    return f"; close to it: {', '.join(dict.fromkeys(names[text] for text in close))}" if close else ""
