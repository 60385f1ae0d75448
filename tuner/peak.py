"""How much of its device a process has taken: the one measure of memory, on GPU and CPU alike.

GPU: the caching allocator's reserved peak plus the CUDA context. CPU: the resident peak above what the worker
held before the trial, plus the worker's own base (interpreter and libraries), which is the CPU's context.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tuner.trial import Device

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): writing 5 sets VmHWM back to the current resident size


class PeakMeter:
    """Measures one trial after another in a warm worker; made once, before the worker's first trial.

    Attributes:
        context_bytes: resident bytes after the worker's imports, or its CUDA context.
    """

    def __init__(self, device: Device, warm_up: Callable[[], None]) -> None:
        """Takes the worker's base: resident bytes after ``warm_up``, or the CUDA context that it makes.

        Args:
            device: the worker's.
            warm_up: takes a first step on the device, so that what is loaded late belongs to the base.
        """
        self._cuda = device.kind == "cuda"
        if self._cuda:
            self.context_bytes = _make_cuda_context(device, warm_up)
        else:
            warm_up()
            self.context_bytes = _resident_bytes("VmRSS") or 0
        self._before_bytes = 0
        self._stale_peak_bytes: int | None = None

    def start(self) -> None:
        """Begins a new measurement."""
        if self._cuda:
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        elif STATUS.exists():
            _return_free_heap()
            self._before_bytes = _resident_bytes("VmRSS") or 0
            try:
                CLEAR_REFS.write_text(RESET_PEAK)
                self._stale_peak_bytes = None
            except OSError:  # a kernel or container that does not allow it
                self._stale_peak_bytes = _resident_bytes("VmHWM")

    def peak_bytes(self) -> int | None:
        """The most that was taken since ``start``; None where the system does not tell (no /proc, an old peak)."""
        if self._cuda:
            import torch

            return int(torch.cuda.max_memory_reserved()) + self.context_bytes
        peak = _resident_bytes("VmHWM")
        if peak is None or peak == self._stale_peak_bytes:
            return None
        # What earlier trials of a warm worker have left resident is part of its base by now.
        return max(0, peak - self._before_bytes) + max(self.context_bytes, self._before_bytes)


def _return_free_heap() -> None:
    """Has glibc give back what earlier trials freed: heap that it keeps would hide the next trial's first bytes."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # not in musl or on macOS
        libc.malloc_trim(0)


def _resident_bytes(field: str) -> int | None:
    """A field of /proc/self/status in bytes: ``VmRSS`` now, ``VmHWM`` at the peak; None without /proc."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def _make_cuda_context(device: Device, warm_up: Callable[[], None]) -> int:
    """Makes this process's CUDA context and returns its bytes.

    By NVML's list of processes; in a container, where that has the host's process numbers, by what the device's used
    memory grows by, with a lock so that no other worker of this machine's makes its own at that moment.
    """
    import pynvml
    import torch

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        with (Path(tempfile.gettempdir()) / f"tuner-context-{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            warm_up()
            grown = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) - before
        held = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    finally:
        pynvml.nvmlShutdown()
    return max(0, int(held.get(os.getpid()) or grown) - int(torch.cuda.memory_reserved()))
