"""Data sets made from files, in the user's cache folder, from which all processes of a machine map them."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

UNREADABLE = (OSError, ValueError, EOFError)  # numpy raises EOFError for an empty file


def cached(kind: type[T], key: str, build: Callable[[], T]) -> T:
    """The data set of this key from the cache, where it is built and stored first if necessary.

    Arrays are ``np.memmap`` of read-only files, so that processes share their pages. If the cache cannot be written,
    the built arrays are returned. The other fields of ``kind`` are numbers, texts and tuples of texts.
    """
    entry = _cache_folder() / kind.__name__ / key
    if entry.is_dir():
        with suppress(*UNREADABLE):
            return _load(kind, entry)
        shutil.rmtree(entry, ignore_errors=True)
    data = build()
    # If another process has stored the entry meanwhile, it stays, since other processes may have mapped it.
    with suppress(OSError):
        _save(data, entry)
    with suppress(*UNREADABLE):
        return _load(kind, entry)
    return data


def file_key(source: Path, files: Sequence[Path], *settings: str | int) -> str:
    """The name of an entry. It changes with the files and the settings.

    ``files`` are in or below ``source``, or ``source`` is the only file. The first setting is the cache's version.
    """
    listed = [[str(path.relative_to(source)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    text = json.dumps([*settings, str(source.resolve()), listed])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("tuner"))


def _save(data: DataclassInstance, entry: Path) -> None:
    """Writes the arrays into a temporary folder and renames it, so that an entry is always complete."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=entry.parent, prefix="partial-"))
    try:
        for name, value in arrays.items():
            np.save(partial / f"{name}.npy", value, allow_pickle=False)
        about = {name: value for name, value in values.items() if name not in arrays}
        (partial / "about.json").write_text(json.dumps(about))
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _load(kind: type[T], entry: Path) -> T:
    about = json.loads((entry / "about.json").read_text())
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    for field in fields(kind):
        if field.name not in values:
            path = entry / f"{field.name}.npy"
            values[field.name] = np.load(path, mmap_mode="r", allow_pickle=False)
    return kind(**values)
