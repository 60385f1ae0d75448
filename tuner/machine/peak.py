"""Measures the peak memory of a process on its device.

On a GPU it is the caching allocator's reserved peak plus the CUDA context. On a CPU it is the growth of resident
memory during the trial, without files that it has mapped, plus the worker's base (interpreter and libraries), which
counts as the CPU's context, plus the peak of its child processes.
A trial on a GPU takes the machine's RAM as well, which is measured beside it.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import ClassVar

from tuner.machine.devices import initialized_nvml
from tuner.machine.holders import gpu_handle, held_here, rollup, status
from tuner.machine.private_folder import locked
from tuner.machine.processes import descendants
from tuner.trial import MB, Device

CLEAR_REFS = Path("/proc/self/clear_refs")
LOCK_SECONDS = 120.0  # for dozens of contexts of a second or two; one that hangs must not block others for good
LOOK_SECONDS = 1.0  # between two measurements of a trial and its child processes
# What trials copy of the pages that they share, as they write to them; neither VmHWM nor VmData shows it. It was 42
# MB for GraphSAGE with PyG, and 8 MB for a function that trains nothing.
COPIED_BYTES = 48 * MB
RESET_PEAK = "5"  # proc(5): writing 5 resets VmHWM to the current resident size


class HostMeter:
    """Measures the RAM of a process that trains on a GPU, and of its child processes; on a CPU only these count.

    Data loaders' workers come and go between two reports, so a thread measures every second. Mapped files do not
    count: the kernel shares them between processes, and can drop them. Nor does shared memory of the process itself:
    it holds the study's data, and would count for the process that touched a page first. Of its children's shared
    memory, which holds the loaders' batches, each has its proportional share (proc(5): ``Pss``).
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._own_bytes = 0  # the thread's, and no other's
        self.children_bytes = 0  # the peak of the child processes since ``start``; the thread's, too
        self._reported_bytes = 0

    def start(self) -> None:
        """Begins a new measurement."""
        self.stop()
        self._own_bytes = self.children_bytes = self._reported_bytes = 0
        if status():
            self._ended = threading.Event()
            threading.Thread(target=self._watch, args=[self._ended], daemon=True, name="host memory").start()

    def stop(self) -> None:
        """Ends the thread; the peak stays."""
        self._ended.set()

    def peak_bytes(self) -> int | None:
        """The peak since ``start``; None without /proc."""
        now = status().get("RssAnon")
        if now is None:
            return None
        self._reported_bytes = max(self._reported_bytes, now)
        return max(self._own_bytes, self._reported_bytes) + self.children_bytes

    def _watch(self, ended: threading.Event) -> None:
        """Memory that a forked child shares with its parent counts once, until one of them writes to it."""
        while not ended.wait(LOOK_SECONDS):
            with suppress(MemoryError):  # under a trial's cap
                anonymous = status().get("RssAnon", 0)
                sizes = [rollup(pid) for pid in descendants(os.getpid())]
                children = sum(fields.get("Private_Dirty", 0) + fields.get("Pss_Shmem", 0) for fields in sizes)
                if not ended.is_set():  # else it is the next measurement's
                    self._own_bytes = max(self._own_bytes, anonymous)
                    self.children_bytes = max(self.children_bytes, children)


class PeakMeter:
    """Measures one trial after another in a worker. It is made before the worker's first trial."""

    def __init__(self, device: Device, warm_up: Callable[[], None], *, host: bool = True) -> None:
        """Measures the worker's base after ``warm_up``, a first step, so that libraries loaded late belong to it.

        ``host`` says whether to measure the RAM beside a GPU and child processes, which is wrong in a process that
        has other work, too.
        """
        self._device, self._cuda = device, device.kind == "cuda"
        # ``context_bytes``: the CUDA context, or the worker's own RAM after its imports.
        if self._cuda:
            self.context_bytes = make_cuda_context(device, warm_up)
        else:
            warm_up()
            _return_free_heap()
            self.context_bytes = own_bytes()
        self._resident_bytes = status().get("VmRSS", 0)
        self._held_bytes = self._holds_bytes()
        # A CPU worker's private writable address space at ``start``, less what earlier trials left in it. The trial's
        # cap is added to it. It is 0 on CUDA and without /proc.
        self.base_bytes = 0
        self._before_bytes = self._mapped_before_bytes = 0
        self._stale_peak_bytes: int | None = None
        self._beside_bytes = self.context_bytes  # the most that a trial took of a GPU beside torch's allocator
        self._host = HostMeter() if host else None

    def start(self) -> None:
        """Begins a new measurement."""
        if self._host:
            self._host.start()  # first, as the stack of its thread is no part of a trial
        if self._cuda:
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._beside_bytes = self.context_bytes
        elif status():
            # Measured now: each thread that Ray starts late takes 8 MiB of address space, but no memory.
            self.base_bytes = (data_bytes() or 0) - self.left_bytes()
            now = status()
            self._before_bytes, self._mapped_before_bytes = now.get("VmRSS", 0), now.get("RssFile", 0)
            try:
                CLEAR_REFS.write_text(RESET_PEAK)
                self._stale_peak_bytes = None
            except OSError:  # a kernel or container that does not allow it
                self._stale_peak_bytes = status().get("VmHWM")

    def left_bytes(self) -> int:
        """The bytes that earlier trials have left in the worker: what it holds beyond its base after freeing memory.

        On the CPU these are its own resident memory and the free part of its heap.
        """
        if self._cuda:
            import torch

            torch.cuda.empty_cache()
        else:
            _return_free_heap()
        return max(0, self._holds_bytes() - self._held_bytes)

    def host_peak_bytes(self) -> int | None:
        """The peak in RAM since ``start``, with child processes; None on the CPU, or if it is unknown."""
        return self._host.peak_bytes() if self._host and self._cuda else None

    def stop(self) -> None:
        """Ends the measurement; the peaks stay."""
        if self._host:
            self._host.stop()

    def peak_bytes(self) -> int | None:
        """The peak since ``start``; None without /proc, or if an earlier peak hides it.

        On a GPU that is what torch's allocator reserved, and what the process takes beside it as it is asked, such as
        the context, kernels that were loaded late, and NCCL's buffers.
        """
        if self._cuda:
            import torch

            with suppress(Exception):  # the driver does not answer: the context is known
                held = held_here(gpu_handle(self._device)) or 0
                self._beside_bytes = max(self._beside_bytes, held - int(torch.cuda.memory_reserved()))
            return int(torch.cuda.max_memory_reserved()) + self._beside_bytes
        now = status()
        if (peak := now.get("VmHWM")) is None or peak == self._stale_peak_bytes:
            return None
        # Pages of mapped data sets are shared by the machine's workers, and the kernel can take them back.
        mapped = max(0, now.get("RssFile", 0) - self._mapped_before_bytes)
        # The memory that earlier trials left resident is now part of the worker's base.
        left = max(0, self._before_bytes - self._resident_bytes)
        resident = max(0, peak - mapped - self._before_bytes) + self.context_bytes + left
        return resident + (self._host.children_bytes if self._host else 0)

    def _holds_bytes(self) -> int:
        if self._cuda:
            import torch

            return int(torch.cuda.memory_allocated())
        now = status()
        return now.get("RssAnon", 0) + now.get("VmSwap", 0) + _free_heap_bytes()


def own_bytes() -> int:
    """What this process adds to the machine's RAM, and a trial that is a fork of it; 0 without /proc.

    Pages that it shares with the process from which it was forked, and files, count for the machine once.
    """
    now = status()
    anonymous = now.get("RssAnon", now.get("VmRSS", 0))
    return rollup(os.getpid()).get("Private_Dirty", anonymous) + COPIED_BYTES if now else 0


def resident_bytes() -> dict[str, int]:
    """This process's ``resident`` bytes now and at its ``peak``, where the system reports them."""
    now = status()
    return {name: now[field] for name, field in (("resident", "VmRSS"), ("peak", "VmHWM")) if field in now}


def data_bytes() -> int | None:
    """This process's private writable address space, which ``RLIMIT_DATA`` limits; None without /proc."""
    return status().get("VmData")


def _return_free_heap() -> None:
    """Makes glibc return freed memory to the system; a kept heap would hide the next trial's first bytes."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # not in musl or on macOS
        libc.malloc_trim(0)


class _Mallinfo2(ctypes.Structure):  # mallinfo(3)
    _fields_: ClassVar = [
        ("others", 8 * ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


def _free_heap_bytes() -> int:
    """The free bytes in the C library's heap; 0 if it does not report them, as before glibc 2.33."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _Mallinfo2
    return int(libc.mallinfo2().fordblks)


_contexts: dict[str, int] = {}  # by the device's UUID: a process makes its context there once


def _first_kernels() -> None:
    import torch

    weight = torch.ones(8, 8, device="cuda", requires_grad=True)
    torch.autograd.backward((weight @ weight).sum())


def make_cuda_context(device: Device, warm_up: Callable[[], None], first: Callable[[], None] = _first_kernels) -> int:
    """Makes this process's CUDA context, if it has none yet, and returns its bytes by NVML's list of processes.

    In a container that list has the host's process ids. Then the context is the device's. Without one, it is what the
    used memory grows by in ``first``, which also has cuBLAS load its kernels, and a lock keeps this user's other
    workers on this machine from making their contexts at the same time. ``warm_up`` runs beside theirs.
    """
    if device.uuid in _contexts:
        return _contexts[device.uuid]
    import torch

    nvml, handle = initialized_nvml(), gpu_handle(device)
    with nullcontext() if device.context_bytes else _alone(), ThreadPoolExecutor(1) as thread:
        before = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        thread.submit(first).result()  # as it ends, it leaves cuBLAS' handle with its workspace to other threads
        grown = int(nvml.nvmlDeviceGetMemoryInfo(handle).used) - before - int(torch.cuda.memory_reserved())
    warm_up()
    held = held_here(handle)  # none of a MIG instance on a host of virtual GPUs
    context_bytes = held - int(torch.cuda.memory_reserved()) if held else device.context_bytes or grown
    return _contexts.setdefault(device.uuid, max(0, context_bytes))


@contextmanager
def _alone(seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """A block that one of this user's processes on this machine runs at a time.

    After these seconds, or where no lock is possible, it runs without: a less exact measurement is better than none.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked("context.lock", seconds))
        yield
