"""The memory that a process takes beside its tensors, as far as it is known in advance."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING

from tuner.errors import ExecutionError, InputError, one_line
from tuner.machine.devices import driver_version, pin
from tuner.machine.holders import gpu_handle
from tuner.trial import GB, MB, Device, MemoryEstimate

if TYPE_CHECKING:
    from tuner.workloads.base import Trainable, Workload
    from tuner.workloads.program import Program

# Used without a calibration. CUDA contexts took 200 to 762 MiB, depending on driver, GPU and lazy loading: that of a
# GPU of this machine is measured (``context_of``). A CPU trial's process, which is a fork where that is possible, had
# 42 MB of its own after its first step, and a reserve for what it copies (``COPIED_BYTES``); Ray's part is the rest.
FORKED = sys.platform == "linux"
CONTEXT_BYTES = {"cuda": 500 * MB, "cpu": (150 if FORKED else 450) * MB}
CONTEXTS = 50 * MB, 3 * GB  # what one can take: anything else is not a context's alone
CONTEXT_SECONDS = 120  # for a process to make one
# What NCCL takes of a GPU for a rank: a guess until a card has shown it. On H100s it had 32 channels with buffers of
# 10 MiB (github.com/NVIDIA/nccl/issues/1685).
NCCL_BYTES = 320 * MB
# What trials on a CPU share, as their processes are forks of one with torch and PyG: that has 303 MB of its own.
SHARED_BYTES = 300 * MB if FORKED else 0
ALONE_BYTES = 200 * MB if FORKED else 0  # what a process that is no fork takes beyond one, for torch alone
# torch.utils.checkpoint and torch's own optimizers import torch.compile, see ``step`` and ``optimizers`` in
# ``tuner.training``.
COMPILER_BYTES = 76 * MB
PYG = "torch_geometric"  # which imports that, too
# The gaps between smaller tensors in a worker's heap (``tuner.machine.caps``), as a share of these tensors. They were
# 14 to 43 % at the smallest caps under which GraphSAGE 32x2 to 256x4, 512x2 with batches of 80,000 and an MLP ran.
HEAP_SLACK = 0.5
# A worker's own memory before its first tensor: a guess, which the first trials replace. On the emulated card a warm
# process has 162 MB, and Ray's part is 90. The real driver adds its own: before CUDA loaded kernels lazily (11.7), a
# process had 1.3 GB after its first tensor and 1.9 after a convolution (pytorch/pytorch#12873), libraries' pages that
# processes share included.
WORKER_BYTES = GB
# The copies of a workload's weights at once: the best ones, and those of a better epoch or the content of their file.
WEIGHTS_KEPT = 2
IN_EVERY_WORKER = {*sys.stdlib_module_names, "numpy", "torch", "tuner"}


def context_of(device: Device, *, alone: bool = False) -> tuple[int, str]:
    """The bytes that a process on this device takes beside its tensors, and why they are assumed, if they are.

    ``alone`` says that it is the user's own process, and no fork of one that has imported torch.

    A GPU of this machine is asked: a new process takes a first step there, once for each model of GPU, driver and
    torch, and the answer is kept beside the calibrations. It is not kept where the driver does not list that process,
    as in some containers: then others may have taken memory meanwhile. A node tells those of its own GPUs.
    """
    if not _is_here(device):
        return device.context_bytes or CONTEXT_BYTES[device.kind] + ALONE_BYTES * (alone and device.kind == "cpu"), ""
    same = replace(device, free_bytes=0, free_ram_bytes=0, idle_cores=None, context_bytes=0, node_id="", host="")
    return _context_on(same)


def _is_here(device: Device) -> bool:
    """Whether this is a GPU of this machine, which may be a node of a cluster."""
    if device.node_id and device.uuid:
        try:
            return bool(gpu_handle(device))
        except Exception:  # there is no driver, or it does not know this GPU
            return False
    return bool(device.uuid)


def measured_context(device: Device) -> int:
    """The bytes of ``context_of`` if they were measured, and else 0."""
    if not _is_here(device):
        return device.context_bytes
    context_bytes, why_assumed = context_of(device)
    return 0 if why_assumed else context_bytes


@cache
def _context_on(device: Device) -> tuple[int, str]:
    from tuner.estimation import calibration
    from tuner.estimation.measure import run_in_new_process

    try:
        key = context_key(device.name, driver_version())
        with suppress(InputError):  # the file is damaged, which those say that need it
            if samples := calibration.load_samples(key):
                return samples[-1].peak_bytes, ""
        context_bytes, is_listed = run_in_new_process(_made_context, b"", device)
    except Exception as error:
        return CONTEXT_BYTES["cuda"], f"the context is assumed, as it cannot be measured: {one_line(error, 200)}"
    low, high = CONTEXTS
    if not low <= context_bytes <= high:
        reason = f"{context_bytes / MB:,.0f} MB were measured while others used the GPU"
        return CONTEXT_BYTES["cuda"], f"the context is assumed, as {reason}"
    if is_listed:
        with suppress(InputError):  # it can be measured again
            calibration.record(key, [calibration.Sample(0, 0, context_bytes)], latest=True)
    return context_bytes, ""


def context_key(name: str, driver: str) -> str:
    """The key of a GPU's context in the file of calibrations."""
    return f"context | {name} | driver {driver} | torch {version('torch')}"


def _made_context(_content: bytes, device: Device) -> tuple[int, bool]:
    """The bytes of this process's context on a GPU, with the libraries that load late, and whether NVML lists it."""
    from tuner.machine.holders import held_here
    from tuner.machine.peak import make_cuda_context
    from tuner.training.rehearsal import warm_up

    signal.alarm(CONTEXT_SECONDS)  # it ends a process that hangs in CUDA
    pin(device)

    def steps() -> None:
        import torch

        warm_up("cuda:0")
        with suppress(Exception):  # without cuDNN there is nothing to load
            torch.nn.Conv2d(1, 1, 1).to("cuda:0")(torch.ones(1, 1, 1, 1, device="cuda:0")).sum().backward()

    return make_cuda_context(device, lambda: None, steps), bool(held_here(gpu_handle(device)))


def import_bytes(cls: type[Workload], *, compiler: bool = False) -> int:
    """The bytes that a CPU worker takes for what this class imports beside torch and its ``imports``.

    Measuring them takes seconds in a new process. So that is done only for a module that uses more than numpy, torch,
    PyG and the standard library.

    Args:
        cls: the workload's class.
        compiler: whether its trials import torch.compile's machinery, which PyG does as well.

    Raises:
        ExecutionError: the class cannot be imported.
    """
    module = sys.modules.get(cls.__module__)
    names = {_module(value) for value in vars(module).values()} - {cls.__module__} if module else set()
    packages = {name.partition(".")[0] for name in (*names, *cls.imports)}
    compiler_bytes = COMPILER_BYTES if compiler and PYG not in packages else 0
    if packages <= IN_EVERY_WORKER | {PYG}:
        return compiler_bytes
    return _measured(_growth, cls.__new__(cls), f"workload {cls.name}") + compiler_bytes


def program_bytes(program: Program) -> int:
    """The bytes that a worker takes for a program's imports beside a workload's worker, measured in a new process.

    A program that another process cannot have raises ``ExecutionError``.
    """
    return _measured(_program_growth, program, program.name)


_GROWTHS: dict[tuple[str, bytes], int] = {}  # by the name of ``growth`` and the digest of what it was given


def _measured(growth: Callable[[bytes], int], trainable: Trainable, name: str) -> int:
    """What ``growth`` finds in a new process. It takes seconds, so it is done once for what the process is given."""
    from tuner.estimation.measure import packed, run_in_new_process

    try:
        content = packed(tuple(trainable.imports), packed(trainable))
        key = growth.__name__, sha256(content).digest()
        if key not in _GROWTHS:
            _GROWTHS[key] = run_in_new_process(growth, content)
        return _GROWTHS[key]
    except Exception as error:
        reason = one_line(error, 200)
        raise ExecutionError(f"{name}: a worker cannot import it: {type(error).__name__}: {reason}") from error


def _module(value: object) -> str:
    """The module that defines a global; plain values count as builtins."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "builtins")


def _program_growth(content: bytes) -> int:
    """What this process takes of its own to get ready for a program, after the start of every worker."""
    from tuner.training.program import warm_up_program
    from tuner.training.rehearsal import warm_up
    from tuner.workloads.task import TrainingTask

    warm_up("cpu", 1)
    return _growth(content, lambda program: warm_up_program("cpu", 1, [TrainingTask(program, None)]))


def _growth(content: bytes, then: Callable[[Program], None] = lambda _: None) -> int:
    """What this process takes of its own to unpack the content and for ``then``, after a worker's imports."""
    from tuner.estimation.measure import unpacked
    from tuner.machine.peak import own_bytes

    names, inner = unpacked(content)
    for name in ("torch", *names):
        with suppress(Exception):  # the trial will raise it again
            import_module(name)
    before = own_bytes()
    (trainable,) = unpacked(inner)
    then(trainable)
    return max(0, own_bytes() - before)


def in_fork(context_bytes: int) -> int:
    """What a CPU trial's process takes beside its tensors, of what a new process takes."""
    return CONTEXT_BYTES["cpu"] + max(0, context_bytes - SHARED_BYTES)


def with_host(estimate: MemoryEstimate, own_bytes: int, *, keeps_weights: bool = True) -> MemoryEstimate:
    """A GPU trial's estimate with its host RAM.

    These are a worker's own memory, ``own_bytes`` of data, copies of the weights if tuner's loop keeps them, and the
    modules that are never trained, which a trace has found. What a program imports and keeps, and what its data
    loaders hold, is not known.
    """
    weights = WEIGHTS_KEPT * estimate.parameter_bytes if keeps_weights else 0
    return replace(estimate, host_bytes=estimate.host_bytes + WORKER_BYTES + own_bytes + weights)
