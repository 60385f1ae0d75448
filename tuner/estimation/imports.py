"""What the modules of a user's own workload take of each worker's memory: on the CPU a part of its context."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from types import ModuleType

from tuner.errors import ExecutionError
from tuner.estimation.packed import packed, unpacked, without_main
from tuner.workloads.base import Workload

KNOWN = {*sys.stdlib_module_names, "numpy", "torch", "tuner"}  # what every worker has


@cache
def import_bytes(cls: type[Workload]) -> int:
    """What a process takes for this class beside torch: what its module imports, measured in a process of its own.

    That takes seconds, so a module that names nothing but numpy, torch and Python's own is not measured.

    Raises:
        ExecutionError: it cannot be imported there.
    """
    module = sys.modules.get(cls.__module__)
    names = {_module(value) for value in vars(module).values()} - {cls.__module__} if module else set()
    if {name.partition(".")[0] for name in names} <= KNOWN:
        return 0
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            with without_main():
                running = pool.submit(_growth, packed((cls.__new__(cls),)))
            return running.result()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExecutionError(
            f"workload {cls.name}: a worker cannot have it: {type(error).__name__}: {reason}"
        ) from error


def _module(value: object) -> str:
    """The module that a global comes from; a plain value is taken for Python's own."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "builtins")


def _growth(content: bytes) -> int:
    """Bytes by which this process grows as it unpacks something, once it has what every worker has."""
    import psutil
    import torch  # noqa: F401

    before = psutil.Process().memory_info().rss
    unpacked(content)
    return max(0, int(psutil.Process().memory_info().rss - before))
