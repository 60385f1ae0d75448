"""A workload in a process of its own, so that nothing else counts; also one of a script or a notebook."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def run_in_new_process(
    function: Callable[Concatenate[bytes, P], R], content: tuple[object, ...], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Calls a function of a module of ours in a new process, and returns its result.

    It is given the content, which is a workload and what goes with it, as bytes for ``unpacked``, and what follows.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _without_main():
            running = pool.submit(function, _packed(content), *args, **kwargs)
        try:
            return running.result()
        except KeyboardInterrupt:  # the process may be stuck, and leaving the block waits for it
            for process in pool._processes.values():
                process.terminate()
            raise


def unpacked(content: bytes) -> Any:
    """What was packed; of bytes that this program has made, and that came through a pipe."""
    return pickle.loads(content)  # noqa: S301


def _packed(content: tuple[object, ...]) -> bytes:
    """The content as bytes, with the code of a workload's class that cannot be imported there."""
    cls = type(content[0])
    if cls.__module__ != "__main__" and "<locals>" not in cls.__qualname__:
        return pickle.dumps(content, protocol=5)
    from ray import cloudpickle

    by_value: bytes = cloudpickle.dumps(content)
    return by_value


@contextmanager
def _without_main() -> Iterator[None]:
    """A process that is spawned in this block does not run the user's script once more, whatever that does."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
