"""The user's code and data: where code is, its revision, digests of both, and how other processes get them."""

import builtins
import hashlib
import inspect
import io
import linecache
import multiprocessing
import os
import pickle
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tuner.errors import InputError, one_line

# How much larger Python objects are than their pickled bytes: a float takes 32 instead of 9 bytes.
UNPICKLED = 8
INSTALLED = {
    Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")
}  # modules that are nobody's own
GIT_SECONDS = 2.0  # git checks every file for changes, which takes long on a slow disk
# It writes nothing into the repository, and starts no program that the repository names as its monitor.
GIT, DESCRIBE = (
    "git --no-optional-locks -c core.fsmonitor=false -C",
    "describe --always --dirty=+ --exclude=* --abbrev=12",
)
LARGE = 256  # a text or bytes that are longer take their length alone


class SearchPath:
    """Folders that are added to ``sys.path`` when it is unpickled, so that what follows can be imported from them."""

    def __init__(self, *folders: str) -> None:
        """Adds the folders to ``sys.path``, apart from empty ones."""
        self._folders = tuple(os.path.abspath(folder) for folder in folders if folder)
        sys.path += [folder for folder in dict.fromkeys(self._folders) if folder not in sys.path]

    def __reduce__(self) -> tuple[object, ...]:
        return SearchPath, self._folders


def search_path(code: object) -> str:
    """The folder that the module of a class or function was imported from; empty if its file cannot be imported."""
    name: str = getattr(code, "__module__", None) or "__main__"
    file: str | None = getattr(sys.modules.get(name), "__file__", None)
    if not file or name == "__main__":
        return ""
    is_package = os.path.basename(file).startswith("__init__.")
    folder = os.path.dirname(os.path.abspath(file))
    for _ in range(name.count(".") + is_package):
        folder = os.path.dirname(folder)
    return folder


def place_of(code: object) -> str | None:
    """``module:name`` of a class or function; None if another process cannot import it by that."""
    module: str = getattr(code, "__module__", None) or "__main__"
    name: str = getattr(code, "__qualname__", "")
    importable: object = sys.modules.get(module) if module not in ("__main__", "__mp_main__") else None
    for part in name.split("."):
        importable = getattr(importable, part, None)
    return f"{module}:{name}" if importable is code else None


def git_revision(folder: Path) -> str:
    """The abbreviated commit that is checked out in the folder, with ``+`` if tracked files were changed.

    Empty if the folder is in no git repository, git is not installed, or it takes longer than two seconds.
    """
    command = [*GIT.split(), str(folder), *DESCRIBE.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def source_digest(sources: Iterable[object]) -> str:
    """A digest of the source of files, classes and functions; empty if that of one cannot be read."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sources:
        try:
            text = source.read_bytes() if isinstance(source, Path) else inspect.getsource(cast(type, source)).encode()
        except (OSError, TypeError):
            return ""
        digest.update(text)
    return digest.hexdigest()


class MainModule:
    """Stands for this process's main module. Another process that unpickles it has that module, still without names.

    The user's file is not run there, but processes that a trial spawns do that, as ``multiprocessing`` does.
    """

    def __reduce__(self) -> tuple[object, ...]:
        main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        names = {"__doc__": main.__doc__, "__package__": main.__package__}
        cells = {} if file else {name: entry for name, entry in linecache.cache.items() if entry[1:2] == (None,)}
        return _main_module, (file and os.path.abspath(file), spec and spec.name, names, sys.argv, method, cells)


def _main_module(
    file: str | None, spec: str | None, names: Mapping[str, object], argv: list[str], method: str | None, cells: Any
) -> None:
    """Makes the main module of another process this one's, unless it is that process."""
    if getattr(sys.modules["__main__"], "__file__", None) == file:
        return
    main, alias = ModuleType("__main__"), ModuleType("__mp_main__")
    vars(alias)["__getattr__"] = lambda name: getattr(sys.modules["__main__"], name)  # which a script replaces
    if file and os.path.isfile(file):  # as on this machine
        main.__file__ = file
    vars(main).update(names, __builtins__=builtins, __spec__=ModuleSpec(spec, None) if spec else None)
    sys.modules["__main__"], sys.modules["__mp_main__"] = main, alias
    linecache.cache.update(cells)
    sys.argv[:] = argv
    multiprocessing.set_start_method(method, force=True)


def own_bytes(data: object) -> int:
    """The RAM that data take in each process of a machine.

    Arrays and tensors are shared: their memory is mapped from a file or from Ray's store, once for all processes.
    Objects of Python are not. Data that cannot be pickled count as nothing; no worker could have them.
    """
    file = io.BytesIO()
    pickler = _WithoutArrays(file, protocol=5)
    with suppress(Exception):  # whatever the user's own classes raise
        pickler.dump(data)
    return UNPICKLED * file.tell() + sum(map(sys.getsizeof, pickler.large.values()))


class _WithoutArrays(pickle.Pickler):
    """Pickles data without the content of arrays and tensors, or of long texts and bytes, which ``large`` has."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.large: dict[int, object] = {}  # by identity; kept, so that no other takes their place

    def persistent_id(self, value: object) -> object:
        """Replaces a long text or bytes by a number."""
        if not isinstance(value, (str, bytes, bytearray)) or len(value) <= LARGE:
            return None
        self.large[id(value)] = value
        return 0

    def reducer_override(self, value: object) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        array = numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject
        tensor = torch is not None and isinstance(value, torch.Tensor)
        return (str, ("",)) if array or tensor else NotImplemented


def fingerprint(data: object) -> str:
    """A digest of a data set: equal data have equal digests.

    The data are pickled, as on their way to the workers, and nothing is unpickled. An array counts by its type, shape
    and values, whatever its memory layout.
    """
    try:
        try:
            pickled = _pickled(data, fast=True)
        except ValueError:  # an object holds itself
            pickled = _pickled(data, fast=False)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"the data cannot go to workers, as they cannot be pickled ({one_line(error)}): give numpy "
            "arrays in tuples, lists, dicts or dataclasses"
        ) from error
    return hashlib.blake2b(pickled.getbuffer(), digest_size=16).hexdigest()


def _pickled(data: object, *, fast: bool) -> io.BytesIO:
    """Pickles data; ``fast`` uses no memo, so that it does not matter whether equal texts are one object."""
    file = io.BytesIO()
    pickler = _WithDigests(file, protocol=5)
    pickler.fast = fast
    pickler.dump(data)
    return file


class _WithDigests(pickle.Pickler):
    """Pickles data with each array of numbers replaced by its digest, so that no second copy of the data is made."""

    def reducer_override(self, value: object) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _digest(f"{value.dtype} {tuple(value.shape)}", values)
        if numpy is None or not isinstance(value, numpy.ndarray) or value.dtype.hasobject:
            return NotImplemented
        flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
        return _digest(f"{value.dtype.str} {value.shape}", flat)


def _digest(kind: str, values: Any) -> tuple[type[str], tuple[str]]:
    return str, (f"{kind} {hashlib.blake2b(values.data, digest_size=16).hexdigest()}",)
