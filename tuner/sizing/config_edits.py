"""Writes chosen values into YAML and TOML files: everything else in them stays, and a backup is made."""

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import tomlkit
from ruamel.yaml import YAML, CollectionNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.error import YAMLError, YAMLStreamError

from tuner.errors import ExecutionError, InputError, one_line, option
from tuner.machine import safe_files
from tuner.machine.safe_files import MOST_BYTES, regular
from tuner.sizing.choices import Chosen, Number
from tuner.sizing.footprint import stage_of
from tuner.trial import ACCUMULATION, AUTO

FORMATS = (".yaml", ".yml", ".toml")
BACKUP = ".backup"
QUOTES = ("'", '"')
# What a number may replace: a number, nothing, or "auto". It may not replace text such as ``${oc.env:BATCH}``.
REPLACEABLE = re.compile(rf"(['\"]?)([+-]?[\d_.]+(e[+-]?\d+)?|0x[\da-f]+|~|null|{AUTO}|)\1", re.IGNORECASE)
SAY_WHERE = f"add one, or say where it is with {option('key', 'NAME=DOTTED.PATH')}"
Wanted = dict[tuple[str, str], Number]  # by stage and name; batch and accumulation have the stage ""


@dataclass(frozen=True)
class FileEdit:
    """A planned change of a file, which ``apply_edits`` writes."""

    path: Path
    before: str
    after: str
    changes: tuple[tuple[str, str, str], ...]  # dotted path, old and new text of each changed value


@dataclass(frozen=True)
class NewValues:
    """The values to write: of a footprint's stages, which share their batch, or of one configuration."""

    chosen: Sequence[Chosen]
    common: Mapping[str, Number]  # batch and accumulation, which go into any file
    keys: Mapping[str, str]  # of every value, by name: its dotted path or bare name in files

    def of(self, stages: Sequence[Chosen]) -> Wanted:
        """Batch and accumulation, and the variables of these stages."""
        common: Wanted = {("", name): value for name, value in self.common.items()}
        return common | {(stage.name, name): value for stage in stages for name, value in stage.variables.items()}

    def of_file(self, file: Path) -> Wanted:
        """The values for a file: variables are those of the stage that its name tells."""
        stage = stage_of(file, [chosen.name for chosen in self.chosen])
        return self.of([chosen for chosen in self.chosen if chosen.name == stage])


def config_files(paths: Sequence[str]) -> dict[Path, bool]:
    """The given files, and the YAML and TOML files in given folders; by file, whether it was given itself.

    Backups and what is hidden are left out. A missing file, or a folder without files, raises ``InputError``.
    """
    listed: dict[Path, bool] = {}
    for path in map(Path, paths):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        shown = (file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts))
        files = [file for file in shown if file.suffix in FORMATS and file.is_file() and BACKUP not in file.name]
        if not files:
            reason = f"no file of {', '.join(FORMATS)}" if path.exists() else "there is no such file or folder"
            raise InputError(f"{option('config_path', str(path))}: {reason}")
        listed |= {file: listed.get(file, False) or file == path for file in files}
    return listed


def plan_edits(
    files: Mapping[Path, bool], values: NewValues, given: Sequence[str]
) -> tuple[list[FileEdit], list[str]]:
    """The changes of ``config_files``, and notes for the user; nothing is written.

    A file of a folder is changed, or left alone and named. A file with one value of batch and accumulation, where
    others have both, is left alone as well: with one of them alone it would train otherwise.

    Raises:
        InputError: a file that was given itself has no place for a value, a value that is ``given`` a place by the
            user or without which the batch does not fit is in no file, or a file cannot be edited.
    """
    none = f"holds none of {', '.join(values.keys.values())}: {SAY_WHERE}"
    edits: dict[Path, FileEdit] = {}
    held: dict[Path, tuple[str, set[str]]] = {}  # the text and the names of each file
    notes, written = list[str](), set[tuple[str, str]]()
    for file, is_given in files.items():
        try:
            text = _read(file)
            keys = {place.key for place in _places(file, text)}
        except InputError as error:
            if is_given:
                raise
            notes.append(f"left alone: {error.text}")
            continue
        held[file] = text, keys | {key.rpartition(".")[2] for key in keys}
    pair = {values.keys[name] for name, value in values.common.items() if name != ACCUMULATION or value > 1}
    together = any(pair <= keys for _, keys in held.values())  # else each of them has a file of its own
    for file, (text, keys) in held.items():
        mine = {one: value for one, value in values.of_file(file).items() if values.keys[one[1]] in keys}
        try:
            if (lacks := pair - keys) and together and pair & keys:
                raise InputError(
                    f"{file}: holds {', '.join(sorted(pair & keys))}, but not {', '.join(sorted(lacks))}: {SAY_WHERE}"
                )
            if mine:
                by_key = {values.keys[name]: value for (_, name), value in mine.items()}
                edits[file.resolve()] = edit_text(file, text, by_key)
                written |= mine.keys()
            elif files[file]:
                raise InputError(f"{file}: {none}")
        except InputError as error:
            if files[file]:
                raise
            notes.append(f"left alone: {error.text}")
    if not written:
        raise InputError("; ".join([f"{option('config_path', str(next(iter(files))))}: {none}", *notes]))
    return list(edits.values()), [*notes, *_not_written(values, written, given)]


def _not_written(values: NewValues, written: set[tuple[str, str]], given: Sequence[str]) -> list[str]:
    """A line for chosen values that are in no file; ``InputError`` if the batch is right only with one of them."""
    needed = {(chosen.name, name) for chosen in values.chosen for name in chosen.lowered}
    missing = []
    for (stage, name), value in values.of(values.chosen).items():
        text = f"{name} {value:g}" + (f" of {stage}" if stage else "")
        needs = (stage, name) in needed or (name == ACCUMULATION and value > 1)
        if (stage, name) in written or (name == ACCUMULATION and not needs and name not in given):
            continue
        if name in given or (needs and any(not stage for stage, _ in written)):
            raise InputError(f"{text}: the batch needs it, and no file holds {values.keys[name]}: {SAY_WHERE}")
        missing.append(text)
    return [f"not written, as no file holds it: {', '.join(missing)}"] if missing else []


def edit_text(path: Path, text: str, values: Mapping[str, Number]) -> FileEdit:
    """Plans the change of a file's text; ``values`` are numbers by dotted path, or by a bare name at any depth.

    Raises:
        InputError: a key is missing, occurs more than once, or is no number.
    """
    after, changes = text, []
    for name, value in values.items():
        places = _places(path, after)
        place = _the_place(path, places, name)
        if (new := _new_text(old := place.text or "", value)) == old:
            continue
        after = place.put(new)
        expected = [(other.key, new if other is place else other.text) for other in places]
        if [(other.key, other.text) for other in _places(path, after)] != expected:
            raise InputError(f"{path}: {place.key} cannot be changed without changing more: edit it by hand")
        changes.append((place.key, old, new))
    return FileEdit(path, text, after, tuple(changes))


def apply_edits(edits: Sequence[FileEdit]) -> list[Path]:
    """Replaces files as a whole, and returns the backups that are made first: ``NAME.backup``, ``NAME.backup.1``, ….

    Permissions and links stay. A file that cannot be written raises ``ExecutionError``.
    """
    changing = {edit.path.resolve(): edit for edit in edits if edit.changes}
    try:
        backups = [Path(shutil.copy2(path, _free_name(path))) for path in changing]
        for path, edit in changing.items():
            mode = path.stat().st_mode
            safe_files.replace_file(path, edit.after.encode())
            path.chmod(mode)
    except OSError as error:
        raise ExecutionError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return backups


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}{BACKUP}{f'.{number}' if number else ''}") for number in count())
    return next(name for name in names if not name.exists())


@dataclass(frozen=True)
class _Place:
    """A value in a file."""

    key: str  # its dotted path
    text: str | None  # as it is written; None for an alias and for all that is no single line
    put: Callable[[str], str]  # the file's text with another value


def _read(path: Path) -> str:
    try:
        return regular(path, MOST_BYTES).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', 'it is not UTF-8 text')}") from error


def _places(path: Path, text: str) -> list[_Place]:
    """All values of a file, each before those inside it."""
    try:
        if path.suffix == ".toml":
            tomllib.loads(text)  # first: tomlkit is more lenient
            document = tomlkit.parse(text)
            return list(_toml_places(document, document, ""))
        return list(_yaml_places(text, YAML().compose(text), "", set()))
    except (YAMLError, YAMLStreamError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or one_line(error, 200)
        kind = "TOML" if path.suffix == ".toml" else "one YAML document"
        raise InputError(f"{path}: is not {kind}: {reason}") from error


def _yaml_places(text: str, holder: Node | None, above: str, met: set[int]) -> Iterator[_Place]:
    pairs = enumerate(holder.value) if isinstance(holder, SequenceNode) else holder.value if holder else ()
    for step, node in pairs if isinstance(holder, CollectionNode) else ():
        name, is_alias, end = str(getattr(step, "value", step)), id(node) in met, _end(text, step, node)
        key = f"{above}.{name}" if above else name
        met.add(id(node))
        quote = node.style if isinstance(node, ScalarNode) and node.style in QUOTES else ""
        old = f"{quote}{node.value}{quote}" if isinstance(node, ScalarNode) else "\n"
        is_single = not is_alias and "\n" not in old and text[:end].endswith(old)
        yield _Place(key, old if is_single else None, partial(_put, text, end - len(old), end))
        if not is_alias:
            yield from _yaml_places(text, node, key, met)


def _end(text: str, step: Node | int, node: Node) -> int:
    """Where a value ends. The parser has the end of an empty one at what comes after it, maybe lines below."""
    end: int = node.end_mark.index
    colon = text.find(":", step.end_mark.index) + 1 if isinstance(step, Node) and not node.value else 0
    return colon if colon and not text[colon:end].partition("\n")[0].strip() else end


def _put(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + (new if start < end else f" {new}") + text[end:]


def _toml_places(document: tomlkit.TOMLDocument, holder: Any, above: str) -> Iterator[_Place]:
    def put(step: str | int, new: str) -> str:
        holder[step] = tomlkit.value(new)
        return tomlkit.dumps(document)

    for step in holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ():
        value, key = holder[step], f"{above}.{step}" if above else str(step)
        text = value.as_string() if hasattr(value, "as_string") else str(value)
        is_single = not isinstance(value, (dict, list)) and "\n" not in text
        yield _Place(key, text if is_single else None, partial(put, step))
        yield from _toml_places(document, value, key)


def _the_place(path: Path, places: Sequence[_Place], name: str) -> _Place:
    """The place with this path, or else whose path ends with this name."""
    matches = [place for place in places if place.key == name]
    matches = matches or [place for place in places if place.key.rpartition(".")[2] == name]
    if len(matches) != 1:
        keys = ", ".join(place.key for place in matches)
        raise InputError(f"{path}: {name} occurs {len(matches)} times ({keys}): {SAY_WHERE}")
    (place,) = matches
    if place.text is None or not REPLACEABLE.fullmatch(place.text):
        shown = "an alias, a list, a mapping or a longer text" if place.text is None else place.text
        raise InputError(f"{path}: {place.key} is {shown}, not a number: change it by hand")
    return place


def _new_text(old: str, value: Number) -> str:
    """The text of a new value, in quotes where a number was."""
    quote = old[:1] if old[:1] in QUOTES and old[1:2].isdigit() else ""
    return f"{quote}{value}{quote}"
