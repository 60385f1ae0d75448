"""What a process and its libraries take beside the tensors, as far as it is known before anything has run."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from tuner.errors import ExecutionError, one_line
from tuner.trial import MB, Device

if TYPE_CHECKING:
    from tuner.workloads.base import Workload

# Until a calibration says better. CUDA: 200 to 723 MiB were seen, by driver, GPU and lazy loading. CPU: trials with
# a few MB of tensors peaked at 340 to 370 MB, 265 of which a Ray worker has before its first.
CONTEXT_BYTES = {"cuda": 500 * MB, "cpu": 350 * MB}
RAY_BYTES = 90 * MB  # of a worker's on the CPU are Ray's: a process that measures a step has them not
# torch.utils.checkpoint imports torch.compile's machinery at its first call, see ``tuner.training.recompute``.
CHECKPOINTING_BYTES = 76 * MB
# A worker's heap holds its smaller tensors (``tuner.machine.caps``), with gaps between them; larger ones leave none.
# By the smallest caps under which GraphSAGE 32x2 to 256x4, 512x2 with batches of 80,000 and an MLP still ran, the
# gaps are 14 to 43 % of these tensors. Until a calibration knows it better.
HEAP_SLACK = 0.5
# cuBLAS takes a workspace for each handle and stream at its first product. Bytes of one, by torch's defaults: 32 MiB
# on Hopper, 8.125 MiB before.
CUBLAS_WORKSPACE_BYTES = 8_519_680
CUBLAS_HOPPER_WORKSPACE_BYTES = 32 * MB
HOPPER = ("H100", "H200", "H800", "H20", "GH200")
IN_EVERY_WORKER = {*sys.stdlib_module_names, "numpy", "torch", "tuner"}


def cublas_workspace_bytes(device: Device) -> int:
    """Bytes of one of cuBLAS' workspaces on this device; 0 on the CPU."""
    if device.kind == "cpu":
        return 0
    hopper = any(name in device.name for name in HOPPER)
    return CUBLAS_HOPPER_WORKSPACE_BYTES if hopper else CUBLAS_WORKSPACE_BYTES


@cache
def import_bytes(cls: type[Workload]) -> int:
    """What a process takes for this class beside torch: what its module imports, measured in a process of its own.

    That takes seconds, so a module that names nothing but numpy, torch and Python's own is not measured.

    Raises:
        ExecutionError: it cannot be imported there.
    """
    from tuner.estimation.new_process import run_in_new_process

    module = sys.modules.get(cls.__module__)
    names = {_module(value) for value in vars(module).values()} - {cls.__module__} if module else set()
    if {name.partition(".")[0] for name in names} <= IN_EVERY_WORKER:
        return 0
    try:
        return run_in_new_process(_growth, (cls.__new__(cls),))
    except Exception as error:
        reason = one_line(error, 200)
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

    from tuner.estimation.new_process import unpacked

    before = psutil.Process().memory_info().rss
    unpacked(content)
    return max(0, int(psutil.Process().memory_info().rss - before))
