"""How arrays that lie over mapped files get to the workers: by the file's name on one machine, else by content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import DataError

GONE = "has been removed or replaced since the study began: run it again, or go on with --resume"


@dataclass(frozen=True)
class MappedArray:
    """Where an array lies in a file, and which file of that name it is.

    Attributes:
        path: of the file, absolute.
        dtype: of the array.
        offset: where it begins, in bytes.
        shape: of the array.
        order: "C" or "F".
        identity: device, inode, size and time of the last change.
    """

    path: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    order: str
    identity: tuple[int, ...]


def put(data: object, *, one_machine: bool) -> Any:
    """Puts data into Ray's store, without the content of files that this process has mapped; returns its reference.

    A worker maps them again, so that all workers share the pages that the kernel keeps of a file, and Ray's small
    store needs no room for them. On a cluster of several machines, which need not have the files, they are put there
    as plain arrays, of which a node's workers share one copy.

    Args:
        data: whatever Ray takes.
        one_machine: all workers have this machine's files.

    Raises:
        DataError: a mapped file has been removed.
    """
    import ray
    from ray.util import deregister_serializer, register_serializer

    pack = describe if one_machine else np.asarray
    register_serializer(np.memmap, serializer=pack, deserializer=receive)
    try:
        return ray.put(data)
    finally:
        deregister_serializer(np.memmap)


def describe(array: np.memmap[Any, Any]) -> MappedArray | NDArray[Any]:
    """Where a mapped array lies; the plain array, if it is a part of one, computed from one, or can be written.

    Raises:
        DataError: there is no file of that name any more.
    """
    # Only the array that numpy made as it mapped the file has the mapping for its base; a view has that array.
    path: str | os.PathLike[str] | None = array.filename
    if path is None or array.mode != "r" or array.base is not array._mmap:  # type: ignore[attr-defined]
        return np.asarray(array)
    path = os.fspath(path)
    order = "C" if array.flags.c_contiguous else "F"
    try:
        identity = _identity(os.stat(path))
    except OSError as error:
        raise DataError(f"{path} {GONE}") from error
    return MappedArray(path, array.dtype, int(array.offset), array.shape, order, identity)


def receive(sent: MappedArray | NDArray[Any]) -> NDArray[Any]:
    """The array that was sent, in the process that has received it.

    Raises:
        DataError: its file is not the one that it was when it was sent.
    """
    if not isinstance(sent, MappedArray):
        return sent
    try:
        with open(sent.path, "rb") as file:
            if _identity(os.fstat(file.fileno())) != sent.identity:
                raise DataError(f"{sent.path} {GONE}")
            order: Any = sent.order
            return np.memmap(file, sent.dtype, "r", sent.offset, sent.shape, order)
    except OSError as error:
        raise DataError(f"{sent.path} {GONE}") from error


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
