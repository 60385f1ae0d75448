"""Runs a workload in a new process, also one that is defined in a script or a notebook."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

import cloudpickle

P = ParamSpec("P")
R = TypeVar("R")


def run_in_new_process(
    function: Callable[Concatenate[bytes, P], R], content: tuple[object, ...], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Calls a function of one of our modules in a new process, and returns its result.

    Its first argument is the packed ``content``, with the code of what cannot be imported; ``unpacked`` restores it.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _without_main():
            running = pool.submit(function, cloudpickle.dumps(content), *args, **kwargs)
        try:
            return running.result()
        except KeyboardInterrupt:  # the process may hang, and the end of the block waits for it
            for process in pool._processes.values():
                process.terminate()
            raise


def unpacked(content: bytes) -> Any:
    """The packed content. The bytes are this program's own and came through a pipe."""
    return pickle.loads(content)  # noqa: S301


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes spawned in this block do not run the user's script again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
