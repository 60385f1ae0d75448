"""How the user's own classes come to other processes: by a folder to import them from, or with their code."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class SearchPath:
    """A folder that modules are imported from; once it is unpickled, what is pickled behind it can be imported."""

    def __init__(self, folder: str) -> None:
        """Adds the folder to this process's own; an empty one stands for none."""
        if folder and folder not in sys.path:
            sys.path.append(folder)
        self._folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return SearchPath, (self._folder,)


def search_path(cls: type) -> str:
    """The folder that a class's module was imported from; empty if the class is in no file that can be imported."""
    file: str | None = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not file or cls.__module__ == "__main__":
        return ""
    is_package = os.path.basename(file).startswith("__init__.")
    folder = os.path.dirname(os.path.abspath(file))
    for _ in range(cls.__module__.count(".") + is_package):
        folder = os.path.dirname(folder)
    return folder


@contextmanager
def sent_by_value(objects: Iterable[object]) -> Iterator[None]:
    """In this block the modules of these objects' classes are pickled with their code, for other machines.

    Loaded modules beside theirs go along. An import inside a function that has not run yet is not followed.
    """
    from ray import cloudpickle

    modules = _modules_beside(objects)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_beside(objects: Iterable[object]) -> list[ModuleType]:
    """The loaded modules under the folders that the classes are imported from, without installed ones."""
    folders = {Path(folder).resolve() for each in objects if (folder := search_path(type(each)))}
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or getattr(module, "__name__", "") != name or name.partition(".")[0] in ("tuner", "__mp_main__"):
            continue
        parents = set(Path(file).resolve().parents)
        if parents & folders and not parents & installed:
            found.append(module)
    return found
