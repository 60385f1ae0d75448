"""Caps the memory that a trial may take, so that a trial that takes too much does not harm its neighbours.

On CUDA the cap is the caching allocator's fraction of the device. On a CPU under Linux it is the soft limit of the
process's private writable memory (``RLIMIT_DATA``). An out-of-memory error says how much was requested, allowed, in
use and free.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.errors import joined, one_line
from tuner.machine.peak import data_bytes
from tuner.trial import GB, MB, Device

# Larger blocks are mapped separately and go back to the system when they are freed. glibc's default threshold grows
# to 32 MiB. GraphSAGE on the synthetic data set, one thread, compared with glibc's defaults: 16 MiB lowers the peak
# of 128x3 from 101 to 67 MiB (512x2: from 368 to 244) and takes 0.97 times the time of an epoch. 4 MiB lowers the
# peak of 512x2 to 196 MiB, but its epochs take 1.3 times as long because every tensor gets new pages.
MMAP_THRESHOLD_BYTES = 16 * MB
TUNABLES = {
    # One arena for all threads: each further arena takes 64 MiB of address space.
    "glibc.malloc.arena_max": 1,
    "glibc.malloc.mmap_threshold": MMAP_THRESHOLD_BYTES,
    # The free memory that the heap keeps at its end. With less, 128x3 spends a tenth of its time on getting it back.
    "glibc.malloc.trim_threshold": 32 * MB,
    # The thread caches' small blocks keep the heap from shrinking: 50 to 116 MiB of it stayed after a trial with the
    # caches, 1 to 61 without them.
    "glibc.malloc.tcache_count": 0,
}
# By default a thread that waits for the others spins, and takes cores from other processes: beside other work, a
# study of one worker took 194 s instead of 0.9.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MB, "GiB": GB, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}
SIZE = rf"(\d+(?:\.\d+)?) ({'|'.join(UNITS)})"
# They are searched one by one, since releases of torch differ in which they print: the caching allocator's ``malloc``
# (c10/cuda/CUDACachingAllocator.cpp), the CPU's (c10/core/impl/alloc_cpu.cpp), and numpy's ``_ArrayMemoryError``.
REQUESTED = re.compile(rf"(?:Tried to allocate|you tried to allocate|Unable to allocate) {SIZE}")
ALLOWED = re.compile(rf"{SIZE} allowed;")
FREE = re.compile(rf"of which {SIZE} is free")
ALLOCATED = re.compile(rf"{SIZE} is allocated by PyTorch")
UNUSED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
ROUNDED = 0.01  # torch's sizes have two decimals
# When CUDA runs out of memory, torch asks NVML for the GPU's processes, to name them in its error. In MIG mode NVML
# lists them only for privileged users, and torch raises this assertion instead
# (``reportProcessMemoryInfo`` in CUDACachingAllocator.cpp; https://github.com/pytorch/pytorch/issues/112377).
UNTOLD = "NVML_SUCCESS == r INTERNAL ASSERT FAILED"
# torch raises these as RuntimeError, or in newer releases as subclasses of it that are not OutOfMemoryError.
OUT_OF_RAM = ("DefaultCPUAllocator", "std::bad_alloc")
OUT_OF_MEMORY = (
    *OUT_OF_RAM,
    "CUDA out of memory",
    "CUDA error: out of memory",
    UNTOLD,
    "could not create a primitive",  # oneDNN, which compiles its kernels when they are needed
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
# Of torch's errors where a data loader's process has ended (torch/csrc/DataLoader.cpp, and dataloader.py).
LOADER, LOADER_SIGNAL, LOADER_GONE = "DataLoader worker", "killed by signal: ", "exited unexpectedly"
SHARED_FULL = "out of shared memory"
STACK_BYTES = 8 * MB  # the address space of a thread, which hardly takes any memory
NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")  # Python's, and C++'s as gloo has it
# How near to the cap an error without a known reason counts as a lack of memory. When imports failed under caps of
# 0.5 to 64 MB, the address space in use was at most 0.4 MB below the cap, and the resident peak at most 0.5 MB.
NEAR_BYTES = 8 * MB
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def worker_environment(device: Device, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables of a worker; what the user has set in ``environ`` wins.

    Its OpenMP threads wait passively, and on the CPU its heap stays small under glibc.
    """
    waiting = {} if any(name in environ for name in PASSIVE) else PASSIVE
    if device.kind == "cuda":
        return dict(waiting)
    ours = [f"{name}={value}" for name, value in TUNABLES.items()]
    return {**waiting, "GLIBC_TUNABLES": ":".join([*ours, *filter(None, [environ.get("GLIBC_TUNABLES")])])}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables in the block."""
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
    """Limits the process to ``base_bytes + cap_bytes`` of its device in the block. Only Linux can cap RAM.

    ``base_bytes`` is the private writable address space before the block; CUDA ignores it.
    """
    if device.kind == "cuda":
        with _capped_cuda(cap_bytes):
            yield
    elif data_bytes() is not None:
        with _capped_data(base_bytes + cap_bytes):
            yield
    else:
        yield


def near_cap(taken_bytes: int | None, limit_bytes: int) -> bool:
    """Whether a process has taken almost all of its limit, so that it most likely failed for want of memory."""
    return taken_bytes is not None and taken_bytes >= limit_bytes - NEAR_BYTES


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, by the type or text of an exception or of its causes.

    Errors that may have other reasons count only at the cap, which ``capped`` notes in exceptions that leave it.
    """
    at_cap = False
    for cause in _chain(error):
        at_cap = at_cap or hasattr(cause, "tuner_at_cap")
        if _lacks_memory(cause, at_cap=at_cap):
            return True
    return False


def is_short_of_ram(error: BaseException) -> bool:
    """Whether it is the machine's RAM that ran out, and not a GPU's memory."""
    return any(
        isinstance(cause, MemoryError)
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        or (isinstance(cause, RuntimeError) and any(sign in one_line(cause) for sign in OUT_OF_RAM))
        for cause in _chain(error)
    )


def lost_loader(error: BaseException) -> bool:
    """Whether a data loader's process has ended, and no signal but SIGKILL is known to have ended it.

    torch names the signal only in the main thread (torch/utils/data/_utils/signal_handling.py).
    """
    texts = [one_line(cause) for cause in _chain(error) if isinstance(cause, RuntimeError)]
    signals = [text for text in texts if LOADER_SIGNAL in text]
    gone = any(text.startswith(LOADER) and (LOADER_SIGNAL in text or LOADER_GONE in text) for text in texts)
    return gone and all(f"{LOADER_SIGNAL}Killed" in text for text in signals)


def lacks_shared_memory(error: BaseException) -> bool:
    """Whether a data loader's process was killed by SIGBUS because the shared memory was full."""
    return any(isinstance(cause, RuntimeError) and SHARED_FULL in one_line(cause) for cause in _chain(error))


def lack_of_memory(error: BaseException) -> LackOfMemory | None:
    """The sizes that an exception or one of its causes names. A bare MemoryError of Python names none."""
    lacks = filter(None, (parse_out_of_memory(one_line(cause)) for cause in _chain(error)))
    return next(lacks, LackOfMemory() if isinstance(error, MemoryError) and not str(error) else None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and its causes, each once, since a program can make a circle of them."""
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _lacks_memory(error: BaseException, *, at_cap: bool) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError) and any(sign in one_line(error) for sign in OUT_OF_MEMORY):
        return True
    # CPython raises SystemError where its C code fails without an exception; libraries fail to map their parts.
    if at_cap and isinstance(error, (SystemError, ImportError)) and not isinstance(error, ModuleNotFoundError):
        return True
    return at_cap and _lacks_thread(error)


def _lacks_thread(error: BaseException) -> bool:
    """Whether a thread could not be started, for lack of memory for its stack or of processes."""
    return isinstance(error, RuntimeError) and any(sign in one_line(error) for sign in NO_THREAD)


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
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [limit for limit in (before, hard) if limit != resource.RLIM_INFINITY]
    limit_bytes = min([limit_bytes, *bounds])
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
    try:
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
    except Exception as error:
        missing = _stack_bytes() if any(map(_lacks_thread, _chain(error))) else 0
        if near_cap(data_bytes(), limit_bytes - missing):  # the exception's frames still hold what was allocated
            error.tuner_at_cap = True  # type: ignore[attr-defined]
        raise


def _stack_bytes() -> int:
    """The address space that a new thread asks for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return threading.stack_size() or (STACK_BYTES if soft == resource.RLIM_INFINITY else soft)


@dataclass(frozen=True)
class LackOfMemory:
    """The figures of a failed allocation in bytes, None where unknown. CUDA rounds to a hundredth of the unit."""

    requested_bytes: int | None = None  # what the allocation asked for; on CUDA the whole block for it
    in_use_bytes: int | None = None  # by the process; on CUDA the allocator's reserved memory, without the context
    allowed_bytes: int | None = None  # the cap of what the process may hold
    free_bytes: int | None = None  # what the device had free

    @property
    def device_full(self) -> bool:
        """Whether the device was full, and the cap, if there was one, was not reached."""
        if self.requested_bytes is None or self.free_bytes is None or self.free_bytes >= self.requested_bytes:
            return False
        if self.allowed_bytes is None or self.in_use_bytes is None:
            return self.allowed_bytes is None
        wanted = self.in_use_bytes + self.requested_bytes
        return wanted <= self.allowed_bytes + ROUNDED * (GB if wanted >= GB else MB)

    def within(self, share_bytes: int) -> bool:
        """Whether the device was full although the process was within its share."""
        return self.device_full and (self.in_use_bytes or 0) + (self.requested_bytes or 0) <= share_bytes

    def __str__(self) -> str:
        """One short line, for a trial's row."""
        needed = None if self.requested_bytes is None else f"needed {_size(self.requested_bytes)} more"
        allowed = None if self.allowed_bytes is None else f"allowed {_size(self.allowed_bytes)}"
        in_use = None if self.in_use_bytes is None else f"in use {_size(self.in_use_bytes)}"
        full = f"the device had only {_size(self.free_bytes or 0)} free" if self.device_full else None
        figures = joined(needed, allowed, in_use, full, by=", ")
        return f"out of memory: {figures}" if figures else "out of memory"


def parse_out_of_memory(text: str) -> LackOfMemory | None:
    """The sizes in the text of an out-of-memory error by torch or numpy; None for other texts."""
    requested = _found(REQUESTED, text)
    if requested is None:
        return LackOfMemory() if UNTOLD in text else None
    allocated, unused = _found(ALLOCATED, text), _found(UNUSED, text)
    in_use = None if allocated is None else allocated + (unused or 0)
    return LackOfMemory(requested, in_use, _found(ALLOWED, text), _found(FREE, text))


def _found(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(float(match[1]) * UNITS[match[2]]) if match else None


def _size(size_bytes: int) -> str:
    """A size in KB, MB or GB, of which the last has decimals."""
    if size_bytes < MB:
        return f"{size_bytes / 2**10:.0f} KB"
    return f"{size_bytes / MB:.0f} MB" if size_bytes < GB else f"{size_bytes / GB:.2f} GB"


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables from which libraries take their number of threads as they are imported."""
    return dict.fromkeys(VARIABLES, str(threads))


def limit_threads(threads: int) -> None:
    """Limits the threads of CPU operations, also of libraries that are imported later."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    os.environ.update(thread_variables(threads))
