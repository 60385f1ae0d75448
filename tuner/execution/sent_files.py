"""Files on their way to nodes that do not share the study's folders, and back, in pieces through Ray's store."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tuner.execution.nodes import ObjectRef
from tuner.machine.safe_files import PARTIAL, remove
from tuner.trial import MB
from tuner.workloads.base import Trainable
from tuner.workloads.command_line import CommandLine
from tuner.workloads.pickling import INSTALLED, search_path

PIECE_BYTES = 8 * MB
# The most that is sent of a folder with code; what is larger are data. Ray's ``working_dir`` has such limits, too.
CODE_FILE_BYTES, CODE_BYTES, CODE_FILES = MB, 100 * MB, 10_000
NO_CODE = ("__pycache__", "node_modules", "site-packages")
MARKS = ("pyvenv.cfg", "study.json")  # a folder with one of these is an environment, or a study


@dataclass(frozen=True)
class Piece:
    """A part of a file. It belongs to a *tree*: a file or folder, which replaces an earlier one once it is whole."""

    tree: str  # its path
    path: str = ""  # of the file within it; empty if the tree is a file
    content: bytes = b""
    is_program: bool = False  # whether the file may be executed
    begins: bool = False  # what has come of the tree before does not count
    ends: bool = False  # the tree is whole


def files_in(path: Path) -> list[str]:
    """The regular files in a folder by their paths there, without links; an empty path for one that is a file."""
    if path.is_file():
        return [""]
    found = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted(str(file.relative_to(path)) for file in found if file.is_file() and not file.is_symlink())


def pieces(folder: Path, tree: str, names: Collection[str] | None = None) -> Iterator[Piece]:
    """A file or a folder's files, by default all regular ones; nothing if there is none.

    Raises ``OSError`` if one is gone meanwhile.
    """
    if not (names := files_in(folder / tree) if names is None else names):
        return
    yield Piece(tree, begins=True)
    for name in names:
        path = folder / tree / name
        with path.open("rb") as file:
            is_program, content = os.access(path, os.X_OK), file.read(PIECE_BYTES)
            yield Piece(tree, name, content, is_program)
            while content := file.read(PIECE_BYTES):
                yield Piece(tree, name, content, is_program)
    yield Piece(tree, ends=True)


def messages(parts: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Lists of pieces for one message each."""
    message, size = list[Piece](), 0
    for piece in parts:
        if message and size + len(piece.content) > PIECE_BYTES:
            yield message
            message, size = [], 0
        message.append(piece)
        size += len(piece.content)
    if message:
        yield message


class Incoming:
    """Puts trees together below a folder. Their names are another machine's, so they are not trusted."""

    def __init__(self, folder: Path, staging: Path) -> None:
        """Unfinished trees are in the folder ``staging``."""
        self._folder, self._staging = folder, staging

    def take(self, piece: Piece, trees: Collection[str]) -> None:
        """Takes a piece of one of these ``trees``; raises ``OSError`` for another one, or if it cannot be written."""
        path = PurePosixPath(piece.path)
        if piece.tree not in trees or path.is_absolute() or ".." in path.parts or "\0" in piece.path:
            raise PermissionError(f"{piece.tree}/{piece.path} is none of its files")
        staged = self._staging / f"{piece.tree.replace('/', '-')}{PARTIAL}"
        target = self._folder / piece.tree
        if piece.begins:
            remove(staged)
        elif piece.ends:
            target.parent.mkdir(parents=True, exist_ok=True)
            if staged.is_dir() or target.is_dir():
                remove(target)
            staged.replace(target)
        else:
            file = staged / path if piece.path else staged
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as opened:
                opened.write(piece.content)
            if piece.is_program:
                file.chmod(0o700)


@dataclass(frozen=True)
class Code:
    """A folder with the user's code: a node that lacks it gets these files of it."""

    root: str
    searched: Sequence[str]  # where modules are found: paths in the folder
    files: Mapping[str, tuple[int, int]]  # sizes and times, by paths in the folder
    large: Sequence[str]  # files that are not sent
    too_many: bool  # only those of loaded modules are sent
    content: Sequence[ObjectRef] = ()

    @property
    def is_here(self) -> bool:
        """Whether this machine has the files, unchanged."""
        with suppress(OSError):
            return Path(self.root).is_dir() and all(
                _stamp(Path(self.root, name)) == stamp for name, stamp in self.files.items()
            )
        return False

    @property
    def lacking(self) -> str:
        """What a node that lacks the folder does not get, in words; empty if that is nothing."""
        if self.too_many:
            most = f"{CODE_FILES:,} files or {CODE_BYTES // MB} MB"
            remedy = "put the code in a folder of its own, or on each node"
            return f"{self.root} but loaded modules, as it has more than {most}: {remedy}"
        more = f" and {len(self.large) - 1} more" if len(self.large) > 1 else ""
        most = f"larger than {CODE_FILE_BYTES // MB} MB"
        return (
            f"{self.large[0]}{more} of {self.root}, {most}: a trial that reads it needs it there"
            if self.large
            else ""
        )


def code_of(workloads: Iterable[Trainable]) -> tuple[Code, ...]:
    """The folders with the code of workloads, first the current one if it has that, put into Ray's store."""
    import ray

    found, here = dict[Path, Code](), Path.cwd()
    for folder in dict.fromkeys([*map(_folder_of, workloads), *_own_entries()] if workloads else ()):
        if not folder.is_dir() or any(
            folder.is_relative_to(root) for root, code in found.items() if not code.too_many
        ):
            continue
        code = _listed(here) if folder.is_relative_to(here) else _listed(folder)
        code = _listed(folder) if code.too_many else code
        with suppress(OSError):  # a file is gone by now: a node then says what it cannot import
            parts = messages(pieces(Path(code.root), "", code.files))
            found[Path(code.root)] = replace(code, content=[ObjectRef(ray.put(message)) for message in parts])
    return tuple(found.values())


def _folder_of(workload: Trainable) -> Path:
    if isinstance(workload, CommandLine):
        return workload.path.resolve().parent if workload.path.is_file() else Path.cwd()
    main = getattr(sys.modules["__main__"], "__file__", None)
    return Path(search_path(workload.code) or (main and os.path.dirname(main)) or "").resolve()


def _own_entries() -> list[Path]:
    """Where this process finds modules, without what is installed and tuner itself."""
    entries = [Path(entry).resolve() for entry in sys.path]
    tuners = Path(__file__).resolve().parents[2]
    return [one for one in entries if one != tuners and not any(map(one.is_relative_to, INSTALLED))]


def _listed(root: Path) -> Code:
    files, large, seen, size = dict[str, tuple[int, int]](), list[str](), 0, 0
    searched = dict.fromkeys(
        str(entry.relative_to(root)) for entry in [root, *_own_entries()] if entry.is_relative_to(root)
    )
    for folder, folders, names in os.walk(root):
        code = (one for one in folders if not one.startswith(".") and one not in NO_CODE)
        folders[:] = [one for one in code if not any(Path(folder, one, mark).exists() for mark in MARKS)]
        seen += len(folders) + len(names)
        if seen > CODE_FILES or size > CODE_BYTES:
            loaded = {name: _stamp(root / name) for name in _loaded(root)}
            return Code(str(root), tuple(searched), loaded, (), too_many=True)
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            if path.is_file():
                name, stamp = str(path.relative_to(root)), _stamp(path)
                if stamp[0] > CODE_FILE_BYTES:
                    large.append(name)
                else:
                    files[name], size = stamp, size + stamp[0]
    return Code(str(root), tuple(searched), files, large, too_many=False)


def _loaded(root: Path) -> Iterator[str]:
    """The files of loaded modules in a folder, without those that are installed and tuner's."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] not in ("tuner", "__mp_main__"):
            path = Path(file).resolve()
            if path.is_relative_to(root) and path.is_file() and not any(map(path.is_relative_to, INSTALLED)):
                yield str(path.relative_to(root))


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
