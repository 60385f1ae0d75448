"""Dataclasses of arrays: joined, cut into runs, and mapped from files in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

ABOUT = "about.json"  # of the values that are no arrays
UNREADABLE = (OSError, ValueError, EOFError)  # numpy raises EOFError for an empty file


def cached(kind: type[T], key: str, build: Callable[[], T]) -> T:
    """The data set of this key from the cache. If it is not there, it is built and stored first.

    Arrays are ``np.memmap`` of read-only files, so that processes share their pages. If the cache cannot be written,
    the built arrays are returned. The other fields of ``kind`` are numbers, texts, tuples of texts, and
    dataclasses of such fields.
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
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=entry.parent, prefix="partial-"))
    try:
        _write(data, partial)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(data: DataclassInstance, folder: Path) -> None:
    about = {}
    for field in fields(data):
        value = getattr(data, field.name)
        if isinstance(value, np.ndarray):
            np.save(folder / f"{field.name}.npy", value, allow_pickle=False)
        elif is_dataclass(value):
            (folder / field.name).mkdir()
            _write(cast("DataclassInstance", value), folder / field.name)
        else:
            about[field.name] = value
    (folder / ABOUT).write_text(json.dumps(about))


def _load(kind: type[T], entry: Path) -> T:
    about = json.loads((entry / ABOUT).read_text())
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    kinds = get_type_hints(kind)
    for field in fields(kind):
        if field.name in values:
            continue
        if is_dataclass(kinds[field.name]):
            values[field.name] = _load(kinds[field.name], entry / field.name)
        else:
            values[field.name] = np.load(entry / f"{field.name}.npy", mmap_mode="r", allow_pickle=False)
    return kind(**values)


def starts(sizes: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """(G + 1,): the starts of G runs of these sizes, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def spans(first: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of all rows of the chosen runs, in their order; ``first`` comes from ``starts``."""
    begins = np.asarray(first)[chosen]
    sizes = np.asarray(first)[np.asarray(chosen) + 1] - begins
    return np.arange(sizes.sum()) + np.repeat(begins - starts(sizes)[:-1], sizes)


def joined(parts: Sequence[T], **axes: int) -> T:
    """Concatenates dataclasses of arrays along their first axes, or those in ``axes``."""
    kind, names = type(parts[0]), [field.name for field in fields(parts[0])]
    return kind(
        **{name: np.concatenate([getattr(part, name) for part in parts], axes.get(name, 0)) for name in names}
    )
