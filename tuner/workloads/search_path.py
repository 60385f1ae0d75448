"""Where a class comes from, in a form that goes along when an object of it is pickled."""

from __future__ import annotations

import os
import sys
from typing import Any


class SearchPath:
    """A folder that modules are imported from; where this is unpickled, what is pickled behind it can be imported."""

    def __init__(self, folder: str) -> None:
        """Adds the folder to this process's own; an empty one stands for none."""
        if folder and folder not in sys.path:
            sys.path.append(folder)
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return SearchPath, (self._folder,)


def search_path(cls: type) -> str:
    """The folder that a class's module was imported from; empty for one that is in no file that can be imported."""
    file: str | None = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not file or cls.__module__ == "__main__":
        return ""
    is_package = os.path.basename(file).startswith("__init__.")
    folder = os.path.dirname(os.path.abspath(file))
    for _ in range(cls.__module__.count(".") + is_package):
        folder = os.path.dirname(folder)
    return folder
