"""Which files ``--config-path`` means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tuner.errors import InputError
from tuner.sizing.config_edits.edit import BACKUP

SUFFIXES = (".yaml", ".yml", ".toml")


@dataclass(frozen=True)
class ConfigFile:
    """A file that may be changed.

    Attributes:
        path: where it is.
        named: whether the user named it itself; what cannot be changed in it is an error then.
        folders: the folders named that it is in.
    """

    path: Path
    named: bool = True
    folders: tuple[Path, ...] = ()


def config_files(paths: Sequence[str]) -> list[ConfigFile]:
    """The files named, and those in the folders named and in folders inside them, each once.

    Hidden folders, links to folders and backups are left out; a link to a file counts where the file itself is not in
    the folder.

    Raises:
        InputError: there is no such file, it is of no format that is understood, or a folder has none or cannot be
            read.
    """
    found: dict[Path, ConfigFile] = {}
    for path in map(Path, paths):
        listed = _listed(path) if path.is_dir() else [_checked(path)]
        if not listed:
            raise InputError(f"--config-path {path}: the folder has no file in {', '.join(SUFFIXES)}")
        folders = (path,) if path.is_dir() else ()
        for file in listed:
            known = found.get(file.resolve(), ConfigFile(file, named=False))
            named = known.named or not folders
            found[file.resolve()] = ConfigFile(known.path, named, (*known.folders, *folders))
    return list(found.values())


def _checked(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"--config-path {path}: there is no such file or folder")
    if path.suffix not in SUFFIXES:
        raise InputError(f"--config-path {path}: must be one of {', '.join(SUFFIXES)}")
    return path


def _listed(folder: Path) -> list[Path]:
    """The files in a folder, sorted; links behind what they may lead to."""
    return sorted(_walk(folder), key=lambda file: (file.is_symlink(), file))


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and BACKUP not in name]
        files = (Path(parent, name) for name in names if BACKUP not in name)
        yield from (file for file in files if file.suffix in SUFFIXES and file.is_file())


def _refuse(error: OSError) -> NoReturn:
    raise InputError(f"--config-path {error.filename}: cannot be read: {error.strerror}") from error
