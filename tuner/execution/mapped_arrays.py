"""Sends tasks with their data to the workers: on one machine through a file that all of them map, else through Ray.

Arrays that are mapped from files of their own are mapped again from these.
"""

from __future__ import annotations

import functools
import io
import mmap
import os
import pickle
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from tuner.errors import DataError, option
from tuner.execution.nodes import ObjectRef
from tuner.workloads.pickling import place_of, received, with_main_module

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64  # of arrays in a packed file
IN_MEMORY = hasattr(os, "memfd_create")  # on Linux, where packed files take no place on a drive
GONE = f"has been removed or replaced since the study began: run it again, or resume it with {option('resume')}"


def put(content: object, files: list[BinaryIO], *, one_machine: bool) -> ObjectRef:
    """Gives content to Ray's workers: for ``received``, or on ``one_machine`` the path of a file for ``unpack``.

    That file is added to ``files``, and must stay open as long as workers may start. Of several machines some may not
    have the mapped files, so there Ray's store has one copy for each node.

    Raises:
        DataError: a mapped file has been removed.
    """
    import ray
    from ray.util import deregister_serializer, register_serializer

    if one_machine and IN_MEMORY:
        files.append(pack(content))
        return ObjectRef(ray.put(Path(f"/proc/{os.getpid()}/fd/{files[-1].fileno()}")))
    register_serializer(np.memmap, serializer=np.asarray, deserializer=np.asarray)
    try:
        (pickler := _Pickler(io.BytesIO(), protocol=5, buffer_callback=[].append)).dump(content)
        return ObjectRef(ray.put(with_main_module(content, pickler.sent)))
    finally:
        deregister_serializer(np.memmap)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles mapped arrays by their files, tensors as their content, and code that cannot be imported by value."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sent: dict[str, object] = {}  # the classes and functions of the main module, by name
        if (main := sys.modules.get("__mp_main__")) and main.__name__ == "__mp_main__":  # a spawned process has it
            cloudpickle.register_pickle_by_value(main)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.memmap):
            return _mapping(obj)
        if is_plain_tensor(obj):
            flat = obj.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
            return _tensor, (pickle.PickleBuffer(flat), obj.dtype, tuple(obj.shape))
        named = isinstance(obj, functools._lru_cache_wrapper) and place_of(obj) is None  # pickled as a name by itself
        reduced: Any = (
            (_cached, (obj.__wrapped__, obj.cache_parameters())) if named else super().reducer_override(obj)
        )
        name = getattr(obj, "__qualname__", "")
        if isinstance(reduced, tuple) and vars(sys.modules["__main__"]).get(name) is obj:
            self.sent[name] = obj
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            reduced[2][0]["__qualname__"] = name  # which would be the name alone
        return reduced


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def is_plain_tensor(value: Any) -> bool:
    """Whether a value is a non-empty tensor in the CPU's memory, and nothing more."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return False
    plain = value.layout is torch.strided and not value.requires_grad and not value.is_quantized
    return bool(plain and value.device.type == "cpu" and value.numel() > 0)


def _tensor(content: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor over its part of a mapped file. It may be changed: changed pages are this process's own."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(content, dtype=dtype).reshape(shape)


def pack(content: object) -> BinaryIO:
    """An unnamed file with content for other processes of this machine, which map it by ``unpack``.

    Raises:
        DataError: a mapped file has been removed.
    """
    pickled, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(pickled, protocol=5, buffer_callback=buffers.append)
    pickler.dump(with_main_module(content, pickler.sent))  # pickled in this order
    file: BinaryIO = os.fdopen(os.memfd_create("tuner"), "wb") if IN_MEMORY else TemporaryFile()  # noqa: SIM115
    parts = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
    file.write(np.array([len(parts), *(part.nbytes for part in parts)], np.int64).tobytes())
    for part in parts:
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(part)
    file.flush()
    return file


def unpack(descriptor: int) -> Any:
    """The content that the study's process has packed. Its arrays are read-only views of the file."""
    mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)).toreadonly()
    (number,) = np.frombuffer(mapped, np.int64, 1)
    sizes = np.frombuffer(mapped, np.int64, int(number), offset=8).tolist()
    place, parts = 8 * (1 + len(sizes)), []
    for size in sizes:
        place += -place % ALIGNMENT
        parts.append(mapped[place : place + size])
        place += size
    return received(*pickle.loads(parts[0], buffers=parts[1:]))  # noqa: S301  # the file is our own


def _mapping(array: np.memmap[tuple[int, ...], np.dtype[np.generic]]) -> tuple[Any, tuple[object, ...]]:
    """What makes a mapped array again from its file; the plain array if it is a view, a copy or writable."""
    # The base of the array that numpy mapped is the mapping; the base of a view is that array.
    path: str | os.PathLike[str] | None = array.filename
    if path is None or array.mode != "r" or array.base is not array._mmap:  # type: ignore[attr-defined]
        return np.asarray, (np.asarray(array),)
    path = os.fspath(path)
    try:
        identity = _identity(os.stat(path))
    except OSError as error:
        raise DataError(f"{path} {GONE}") from error
    order = "C" if array.flags.c_contiguous else "F"
    return _mapped_again, (path, array.dtype, int(array.offset), array.shape, order, identity)


def _mapped_again(
    path: str,
    dtype: np.dtype[np.generic],
    offset: int,
    shape: tuple[int, ...],
    order: Literal["C", "F"],
    identity: tuple[int, ...],
) -> NDArray[np.generic]:
    """An array in a file at ``offset`` bytes; a ``DataError`` if the file has changed since it was sent."""
    try:
        with open(path, "rb") as file:
            if _identity(os.fstat(file.fileno())) != identity:
                raise DataError(f"{path} {GONE}")
            return np.memmap(file, dtype, "r", offset, shape, order)
    except OSError as error:
        raise DataError(f"{path} {GONE}") from error


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    """What differs once a file has been changed: device, inode, size and time of the last change."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
