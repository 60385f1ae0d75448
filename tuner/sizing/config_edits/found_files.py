"""Finds the files to change: named ones, and those in named folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tuner.errors import InputError, option
from tuner.sizing.config_edits.documents import FORMATS
from tuner.sizing.config_edits.file_edit import BACKUP


@dataclass(frozen=True)
class ConfigFile:
    """A file that may be changed."""

    path: Path
    named: bool = True  # the user named it, so a file that cannot be changed is an error
    folders: tuple[Path, ...] = ()  # the named folders that have it


def find_config_files(paths: Sequence[str]) -> list[ConfigFile]:
    """The named files, and those in named folders and their subfolders, without duplicates.

    Hidden folders, links to folders and backups are ignored. A link to a file counts if the file itself is not in the
    folder. A missing or unknown file, or a folder without files, raises ``InputError``.
    """
    found: dict[Path, ConfigFile] = {}
    for path in map(Path, paths):
        folders = (path,) if path.is_dir() else ()
        # Links come after the files that they may lead to.
        files = sorted(_walk(path), key=lambda file: (file.is_symlink(), file)) if folders else [path]
        if not files:
            raise _fault(path, f"the folder has no file in {', '.join(FORMATS)}")
        if not folders and not path.is_file():
            raise _fault(path, "there is no such file or folder")
        if not folders and path.suffix not in FORMATS:
            raise _fault(path, f"must be one of {', '.join(FORMATS)}")
        for file in files:
            known = found.get(file.resolve(), ConfigFile(file, named=False))
            found[file.resolve()] = ConfigFile(known.path, known.named or not folders, (*known.folders, *folders))
    return list(found.values())


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and BACKUP not in name]
        files = (Path(parent, name) for name in names if BACKUP not in name)
        yield from (file for file in files if file.suffix in FORMATS and file.is_file())


def _refuse(error: OSError) -> NoReturn:
    raise _fault(error.filename, f"cannot be read: {error.strerror}") from error


def _fault(path: Path | str, text: str) -> InputError:
    return InputError(f"{option('config_path', str(path))}: {text}")
