"""Caps the memory that a process may take of its device, so that a trial fails alone and not its neighbours.

CUDA: the caching allocator's share of its device. CPU, on Linux: the soft limit on the process's private writable
memory (``RLIMIT_DATA``), which every thread of it shares.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tuner.trial import MB, Device

STATUS = Path("/proc/self/status")
# A larger block is mapped by itself, and goes back to the system when it is freed. glibc's own threshold
# grows to 32 MiB as a process runs. One thread, this machine, GraphSAGE on the synthetic data set, against glibc's
# own settings: with 16 MiB an epoch of 128x3 takes 0.97 times as long (512x2 0.98), and the peak is 67 MiB instead of
# 101 (512x2 244 instead of 368). With 4 MiB the peak of 512x2 is 196 MiB, but its epochs take 1.3 times as long, as
# every tensor's pages are new.
MMAP_THRESHOLD_BYTES = 16 * MB
TUNABLES = {
    # For all threads: another arena is 64 MiB of address space that no trial has asked for.
    "glibc.malloc.arena_max": 1,
    "glibc.malloc.mmap_threshold": MMAP_THRESHOLD_BYTES,
    # Free memory at the heap's end that is kept: with less, 128x3 spends a tenth of its time in getting it back.
    "glibc.malloc.trim_threshold": 32 * MB,
    # Small freed blocks in the threads' caches lie all over the heap and keep it from shrinking: with them 50 to
    # 116 MiB of it stayed after a trial, without them 1 to 61.
    "glibc.malloc.tcache_count": 0,
}
# torch raises these as RuntimeError, or in newer releases as children of it that are not OutOfMemoryError.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "std::bad_alloc",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "could not create a primitive",  # oneDNN under a cap: it compiles its kernels as they are needed
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def caps_available(device: Device) -> bool:
    """Whether this machine can cap a trial on such a device: in RAM only Linux can."""
    return device.kind == "cuda" or STATUS.exists()


def worker_environment(device: Device) -> dict[str, str]:
    """Environment variables that keep a CPU worker's heap as small as its tensors.

    The user's own ``GLIBC_TUNABLES`` come last and win. Other C libraries do not read them.
    """
    if device.kind == "cuda":
        return {}
    ours = [f"{name}={value}" for name, value in TUNABLES.items()]
    return {"GLIBC_TUNABLES": ":".join([*ours, *filter(None, [os.environ.get("GLIBC_TUNABLES")])])}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables in this block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def capped(device: Device, cap_bytes: int, base_bytes: int) -> Iterator[None]:
    """In this block the process can take no more of its device than its base and the cap.

    Args:
        device: the process's own; there is no cap if ``caps_available`` is false.
        cap_bytes: for tensors, and on the CPU for all other memory that the block allocates; above 0.
        base_bytes: private writable address space from before the block; ignored on CUDA.
    """
    if device.kind == "cuda":
        with _capped_cuda(cap_bytes):
            yield
    elif STATUS.exists():
        with _capped_data(base_bytes + cap_bytes):
            yield
    else:
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: by an exception's type or its text, as torch has no type for some, or by its causes."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY):
        return True
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return origin is not None and is_out_of_memory(origin)


@contextmanager
def _capped_cuda(cap_bytes: int) -> Iterator[None]:
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def _capped_data(limit_bytes: int) -> Iterator[None]:
    import resource

    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [limit for limit in (before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([limit_bytes, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
