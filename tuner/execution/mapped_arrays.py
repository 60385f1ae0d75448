"""Sends memory-mapped arrays to the workers: by file name on one machine, else by content."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Literal, cast

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from tuner.errors import DataError, option
from tuner.execution import shared_tensors
from tuner.execution.ray_api import ObjectRef

AnyArray = NDArray[np.generic]
Order = Literal["C", "F"]
ALIGNMENT = 64  # of arrays in a packed file
GONE = f"has been removed or replaced since the study began: run it again, or resume it with {option('resume')}"


@dataclass(frozen=True)
class MappedArray:
    """An array in a file at ``offset`` bytes; ``identity`` shows whether the file has changed."""

    path: str
    dtype: np.dtype[np.generic]
    offset: int
    shape: tuple[int, ...]
    order: Order
    identity: tuple[int, ...]  # device, inode, size and time of the last change


def put(data: object, files: shared_tensors.Files, *, one_machine: bool) -> ObjectRef:
    """Puts data into Ray's store, without the content of mapped files if all workers run on ``one_machine``.

    Workers map the files again and share the kernel's pages; Ray's small store holds nothing. Other machines may not
    have the files, so in a cluster of several they are stored as plain arrays, one copy for each node. The files of
    shared tensors are added to ``files``.

    Raises:
        DataError: a mapped file has been removed.
    """
    import ray
    from ray.util import deregister_serializer, register_serializer

    ways: dict[type, tuple[Any, Any]] = {np.memmap: (describe if one_machine else np.asarray, receive)}
    if one_machine and (torch := sys.modules.get("torch")):
        ways[torch.Tensor] = (partial(shared_tensors.pack, files=files), shared_tensors.unpack)
    for kind, (serializer, deserializer) in ways.items():
        register_serializer(kind, serializer=serializer, deserializer=deserializer)
    try:
        reference: ObjectRef = ray.put(data)
        return reference
    finally:
        for kind in ways:
            deregister_serializer(kind)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles mapped arrays by their files, and code that cannot be imported by value."""

    files: shared_tensors.Files

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, np.memmap):
            return receive, (describe(obj),)
        if shared_tensors.is_shareable(obj):
            return shared_tensors.receive, (shared_tensors.share(cast("Any", obj), self.files),)
        return super().reducer_override(obj)


def pack(content: object, files: shared_tensors.Files) -> BinaryIO:
    """An unnamed file with content for another process of this machine, which maps it by ``unpack``.

    The files of shared tensors are added to ``files``.

    Raises:
        DataError: a mapped file has been removed.
    """
    in_memory = hasattr(os, "memfd_create")  # on Linux
    file: BinaryIO = os.fdopen(os.memfd_create("tuner"), "wb") if in_memory else TemporaryFile()  # noqa: SIM115
    pickled, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(pickled, protocol=5, buffer_callback=buffers.append)
    pickler.files = files
    pickler.dump(content)
    parts = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
    file.write(np.array([len(parts), *(part.nbytes for part in parts)], np.int64).tobytes())
    for part in parts:
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(part)
    file.flush()
    return file


def unpack(descriptor: int) -> Any:
    """The content that the study's process has packed. Its arrays are read-only views of the file."""
    mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    (number,) = np.frombuffer(mapped, np.int64, 1)
    sizes = np.frombuffer(mapped, np.int64, int(number), offset=8).tolist()
    place, parts = 8 * (1 + len(sizes)), []
    for size in sizes:
        place += -place % ALIGNMENT
        parts.append(mapped[place : place + size])
        place += size
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  # the file is our own


def describe(array: np.memmap[tuple[int, ...], np.dtype[np.generic]]) -> MappedArray | AnyArray:
    """A mapped array's place in its file; the plain array if it is a view, a copy or writable.

    Raises:
        DataError: the file does not exist any more.
    """
    # The base of the array that numpy mapped is the mapping; the base of a view is that array.
    path: str | os.PathLike[str] | None = array.filename
    if path is None or array.mode != "r" or array.base is not array._mmap:  # type: ignore[attr-defined]
        return np.asarray(array)
    path = os.fspath(path)
    order: Order = "C" if array.flags.c_contiguous else "F"
    try:
        identity = _identity(os.stat(path))
    except OSError as error:
        raise DataError(f"{path} {GONE}") from error
    return MappedArray(path, array.dtype, int(array.offset), array.shape, order, identity)


def receive(sent: MappedArray | AnyArray) -> AnyArray:
    """The array in the receiving process.

    Raises:
        DataError: its file has changed since it was sent.
    """
    if not isinstance(sent, MappedArray):
        return sent
    try:
        with open(sent.path, "rb") as file:
            if _identity(os.fstat(file.fileno())) != sent.identity:
                raise DataError(f"{sent.path} {GONE}")
            return np.memmap(file, sent.dtype, "r", sent.offset, sent.shape, sent.order)
    except OSError as error:
        raise DataError(f"{sent.path} {GONE}") from error


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
