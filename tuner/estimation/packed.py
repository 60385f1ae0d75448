"""How a workload gets into a process of its own, also one of a script or a notebook."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def packed(content: tuple[Any, ...]) -> bytes:
    """A workload and what goes with it as bytes, with the code of a class that cannot be imported there."""
    cls = type(content[0])
    if cls.__module__ != "__main__" and "<locals>" not in cls.__qualname__:
        return pickle.dumps(content, protocol=5)
    from ray import cloudpickle

    by_value: bytes = cloudpickle.dumps(content)
    return by_value


def unpacked(content: bytes) -> Any:
    """What ``packed`` was given; of bytes that this program has made, and that came through a pipe."""
    return pickle.loads(content)  # noqa: S301


@contextmanager
def without_main() -> Iterator[None]:
    """A process that is spawned in this block does not run the user's script once more, whatever that does."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
