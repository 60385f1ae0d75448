"""Sends tasks with their data to the workers: on one machine through a file that all of them map, else through Ray.

Arrays that are mapped from files of their own are mapped again from these.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import mmap
import os
import pickle
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import FunctionType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from tuner.errors import DataError, InputError, one_line, option
from tuner.execution.nodes import ObjectRef
from tuner.workloads.pickling import MainModule, place_of
from tuner.workloads.task import Tasks

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64  # of arrays in a packed file
SMALL_BYTES = 2**20  # of a name of the main module to which trials do not refer: it is no data
IN_MEMORY = hasattr(os, "memfd_create")  # on Linux, where packed files take no place on a drive
GONE = f"has been removed or replaced since the study began: run it again, or resume it with {option('resume')}"


def put(content: object, files: list[BinaryIO], *, one_machine: bool) -> ObjectRef:
    """Gives content to Ray's workers, for ``opened``: on ``one_machine`` the path of a file, else the file's parts.

    That file is added to ``files``, and must stay open as long as workers may start. Of several machines some may not
    have the mapped files, so there Ray's store has one copy for each node.

    Raises:
        DataError: a mapped file has been removed.
    """
    import ray

    if one_machine and IN_MEMORY:
        files.append(pack(content))
        return ObjectRef(ray.put(Path(f"/proc/{os.getpid()}/fd/{files[-1].fileno()}")))
    return ObjectRef(ray.put([np.frombuffer(part, np.uint8) for part in _parts(content, mapped=False)]))


def opened(given: Path | Sequence[NDArray[np.uint8]]) -> BinaryIO:
    """The file for ``unpack`` of what ``put`` has given."""
    return given.open("rb") if isinstance(given, Path) else _file_of(given)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles mapped arrays by their files, tensors as their content, and code that cannot be imported by value.

    Functions of the main module have its names as their globals, there as here.
    """

    def __init__(
        self, *arguments: Any, mapped: bool = True, known: Collection[str] | None = None, **options: Any
    ) -> None:
        """``mapped``: others read content from a file.

        ``known`` are the names of the main module that they have by then. With it a value is one of these names that
        trials may never need. So it comes without the names that its functions use, and what must stay is refused.
        """
        super().__init__(*arguments, **options)
        self._mapped, self._known = mapped, known
        self.sent: dict[str, object] = {}  # the classes and functions of the main module, by name
        self.globals_ref[id(vars(sys.modules["__main__"]))] = _MainNames()
        if (main := sys.modules.get("__mp_main__")) and main.__name__ == "__mp_main__":  # a spawned process has it
            cloudpickle.register_pickle_by_value(main)

    def reducer_override(self, obj: Any) -> Any:
        if self._known is not None and _stays(obj):
            raise pickle.PicklingError("belongs to this process")
        if isinstance(obj, np.memmap):
            return _mapping(obj) if self._mapped else (np.asarray, (np.asarray(obj),))
        if self._mapped and is_plain_tensor(obj):
            flat = obj.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
            return _tensor, (pickle.PickleBuffer(flat), obj.dtype, tuple(obj.shape))
        if isinstance(obj, (WeakKeyDictionary, WeakValueDictionary)):  # as functools.singledispatch has
            return type(obj), (dict(obj),)
        if obj is dataclasses.MISSING:  # which is compared by identity
            return "MISSING"
        if type(obj) is functools.cached_property:  # which has a lock before Python 3.12
            return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
        name, names = getattr(obj, "__qualname__", ""), vars(sys.modules["__main__"])
        is_main = isinstance(name, str) and names.get(name) is obj
        if is_main and name in (self._known or ()):
            return _by_name, (name,)
        named = isinstance(obj, functools._lru_cache_wrapper) and place_of(obj) is None  # pickled as a name by itself
        reduced: Any = (
            (_cached, (obj.__wrapped__, obj.cache_parameters())) if named else super().reducer_override(obj)
        )
        if is_main and isinstance(reduced, tuple):
            self.sent[name] = obj
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            reduced[2][0]["__qualname__"] = name  # which would be the name alone
        if self._known is not None and inspect.isfunction(obj) and obj.__globals__ is names:
            reduced[2][1]["__globals__"] = {}
        return reduced


class _MainNames:
    """Stands for the names of this process's main module, which in another process are those of its own."""

    def __reduce__(self) -> tuple[object, ...]:
        return vars, (sys.modules["__main__"],)


def _stays(value: object) -> bool:
    """Whether a value of the main module is for this process alone.

    It cleans up something at its end, as files, connections and shared memory do, is on a GPU, or is data.
    """
    torch: Any = sys.modules.get("torch")
    tensor = torch is not None and isinstance(value, torch.Tensor)
    if (tensor or isinstance(value, np.ndarray)) and value.nbytes > SMALL_BYTES:  # type: ignore[attr-defined]
        return True
    if torch is not None and isinstance(value, (torch.Tensor, torch.Generator)) and value.device.type != "cpu":
        return True
    return not isinstance(value, type) and hasattr(type(value), "__del__")


def _by_name(name: str) -> Any:
    return getattr(sys.modules["__main__"], name)


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
    return _file_of(_parts(content))


def _file_of(parts: Sequence[memoryview | NDArray[np.uint8]]) -> BinaryIO:
    file: BinaryIO = os.fdopen(os.memfd_create("tuner"), "wb") if IN_MEMORY else TemporaryFile()  # noqa: SIM115
    file.write(np.array([len(parts), *(part.nbytes for part in parts)], np.int64).tobytes())
    for part in parts:
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(part.data if isinstance(part, np.ndarray) else part)
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
    return loaded(parts)


def _parts(content: object, *, mapped: bool = True) -> list[memoryview]:
    """Content for ``loaded`` in another process: pickled, the other names of the main module, and buffers."""
    pickled, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(pickled, mapped=mapped, protocol=5, buffer_callback=buffers.append)
    pickler.dump((MainModule(), content, pickler.sent))  # pickled in this order
    others = pickle.dumps(_other_names(pickler.sent))
    return [pickled.getbuffer(), memoryview(others), *(buffer.raw() for buffer in buffers)]


def check_sendable(tasks: Tasks) -> None:
    """Raises ``InputError`` if other processes cannot have a workload or its data."""
    for name, task in tasks.items():
        fault = _fault(task)
        if isinstance(fault, InputError):
            raise fault
        if fault:
            where = _unsendable(task)
            names = ["data" if where[:1] == ["data"] else name, *(part for part in where[1:] if part != "function")]
            rule = f"cannot be sent to another process: {one_line(fault)}"
            remedy = f"make it where a trial uses it, or give {option('in_process', True)}"
            raise InputError(f"{'.'.join(names)} {rule}: {remedy}")


def _fault(value: object) -> Exception | None:
    """Why a value cannot be pickled; None if it can be."""
    try:
        _Pickler(_Nowhere(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception as error:  # whatever the user's own classes raise
        return error
    return None


def _unsendable(value: Any, most: int = 8) -> list[str]:
    """The names that lead to the part of a value that cannot be pickled."""
    parts: dict[Any, Any] = dict(value if isinstance(value, Mapping) else getattr(value, "__dict__", {}))
    if isinstance(value, functools.partial):
        parts |= dict(enumerate(value.args, 1)) | value.keywords | {"func": value.func}
    if inspect.ismethod(value):
        parts["self"] = value.__self__
    elif inspect.isfunction(value):
        with suppress(ValueError):  # a variable of the enclosing function has no value yet
            used = inspect.getclosurevars(value)
            parts |= dict(used.globals) | dict(used.nonlocals)
    for name, part in parts.items() if most else ():
        if part is not value and _fault(part):
            return [str(name), *_unsendable(part, most - 1)]
    return []


class _Nowhere(io.RawIOBase):
    def write(self, content: Any) -> int:
        return len(content)


def _other_names(sent: Mapping[str, object]) -> dict[str, bytes]:
    """The other names of the main module, each pickled, without those that cannot be, and without data."""
    others: dict[str, bytes] = {}
    items = list(vars(sys.modules["__main__"]).items())
    code = [item for item in items if isinstance(item[1], (type, FunctionType))]
    for name, value in [*code, *items]:  # the first one counts, and others then refer to code by its name
        if name not in sent and name not in others and not name.startswith("__"):
            with suppress(Exception):  # whatever the user's own classes raise
                _Pickler(file := _Small(), known=sent.keys() | others.keys(), protocol=5).dump(value)
                others[name] = file.getvalue()
    return others


class _Small(io.BytesIO):
    """Refuses more than ``SMALL_BYTES``."""

    def write(self, content: Any) -> int:
        if self.tell() + memoryview(content).nbytes > SMALL_BYTES:
            raise pickle.PicklingError("is too large")
        return super().write(content)


def loaded(parts: Sequence[Any]) -> Any:
    """Content in another process, whose main module then has the names of the user's.

    Of the names to which content does not refer, those that need a module which is not loaded here are left out.
    """
    _, content, sent = pickle.loads(parts[0], buffers=parts[2:])  # noqa: S301  # the file is our own
    names = vars(sys.modules["__main__"])
    names.update(sent)
    for name, value in pickle.loads(parts[1]).items():  # noqa: S301
        before = dict(names)
        with suppress(Exception):  # a module is not here, or the user's own classes raise
            names[name] = _OfLoaded(io.BytesIO(value)).load()
        names.update(before)
    return content


class _OfLoaded(pickle.Unpickler):
    """Imports no module but Python's own: others take memory, and may start threads."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in sys.stdlib_module_names:
            sys.modules[module]  # a KeyError where it is not loaded
        return sys.modules.__getitem__ if name == "subimport" else super().find_class(module, name)


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
