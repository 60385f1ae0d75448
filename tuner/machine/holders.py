"""Who holds a device's memory: tuner's own processes, and those of other programs."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

from tuner.machine.devices import initialized_nvml, ram_bytes
from tuner.trial import GB, Device

PROC = Path("/proc")
UNSEEN = "a process that cannot be seen from here"


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU, or RAM."""

    pid: int
    name: str
    user: str  # empty if it is unknown
    held_bytes: int | None  # None if the driver does not say

    def __str__(self) -> str:
        held = "memory" if self.held_bytes is None else f"{self.held_bytes / GB:.2f} GB"
        return f"{held} by {self.name} (process {self.pid}{f' of {self.user}' if self.user else ''})"


@dataclass(frozen=True)
class Memory:
    """A device's memory now."""

    total_bytes: int
    free_bytes: int
    # What each of the given groups of processes holds; None if their memory cannot be told from that of others.
    held_bytes: tuple[int, ...] | None


def memory_now(device: Device, groups: Sequence[Collection[int]]) -> Memory:
    """The memory of a device of this machine, and what groups of processes hold of it.

    In a container the driver may report process ids of the host, or none. Then ``held_bytes`` is None. If the driver
    does not answer, the figures are those of the device's detection.
    """
    if device.kind == "cpu":
        total, free = ram_bytes()
        return Memory(total, free, tuple(map(_resident_bytes, groups)))
    try:
        handle = gpu_handle(device)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        processes = compute_processes(handle)
    except pynvml.NVMLError:
        return Memory(device.total_bytes, device.free_bytes, None)
    members = set[int]().union(*groups)
    visible = any(pid in members for pid, _ in processes) or any((PROC / str(pid)).exists() for pid, _ in processes)
    if not visible or any(held is None for pid, held in processes if pid in members):
        return Memory(int(memory.total), int(memory.free), None)
    held = tuple(sum(int(held or 0) for pid, held in processes if pid in group) for group in groups)
    return Memory(int(memory.total), int(memory.free), held)


def holders(device: Device, excluded: Collection[int], most: int) -> list[Holder]:
    """The ``most`` largest holders of the device's memory other than ``own`` processes, the largest first."""
    if device.kind == "cuda":
        try:
            sizes = [(pid, held) for pid, held in compute_processes(gpu_handle(device)) if pid not in excluded]
        except pynvml.NVMLError:
            return []
    else:
        sizes = [(pid, _anonymous_bytes(pid)) for pid in psutil.pids() if pid not in excluded]
    largest = sorted(sizes, key=lambda entry: -(entry[1] or 0))[:most]
    return [holder(pid, held) for pid, held in largest]


def holder(pid: int, held_bytes: int | None) -> Holder:
    """A process with its name, if it can be seen: in a container the driver may report process ids of the host."""
    try:
        process = psutil.Process(pid)
        return Holder(pid, process.name(), process.username(), held_bytes)
    except (psutil.Error, KeyError):
        return Holder(pid, UNSEEN, "", held_bytes)


def with_descendants(pids: Sequence[int]) -> list[set[int]]:
    """For each of these processes, its own id and those of its descendants.

    The sets do not overlap: a descendant of several of the processes belongs to the nearest one.
    """

    def tree(pid: int) -> set[int]:
        with suppress(psutil.Error):
            return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
        return {pid}

    trees = {pid: tree(pid) for pid in pids}
    nested = {pid: [trees[other] for other in trees if other in trees[pid] and other != pid] for pid in trees}
    apart = {pid: trees[pid].difference(*nested[pid]) for pid in trees}
    return [apart.pop(pid, set()) for pid in pids]


def gpu_handle(device: Device) -> object:
    """NVML's handle of a GPU."""
    return initialized_nvml().nvmlDeviceGetHandleByUUID(device.uuid)


def compute_processes(handle: object) -> list[tuple[int, int | None]]:
    """The process ids on a GPU with the bytes that each holds; empty if the driver does not list them."""
    try:
        return [
            (process.pid, process.usedGpuMemory) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
    except pynvml.NVMLError:
        return []


def held_here(handle: object) -> int | None:
    """The bytes that this process holds of a GPU.

    None if the driver does not list it, as in a container with the host's process ids.
    """
    return dict(compute_processes(handle)).get(os.getpid())


def _resident_bytes(pids: Collection[int]) -> int:
    """The RAM that processes hold, without mapped files. What they share, such as Ray's store, counts once.

    Without smaps_rollup (proc(5)), shared memory does not count.
    """
    parts = ((pid, rollup(pid)) for pid in pids)
    return sum(part.get("Pss_Anon", 0) + part.get("Pss_Shmem", 0) or _anonymous_bytes(pid) for pid, part in parts)


def rollup(pid: int) -> dict[str, int]:
    """The sums of a process's mappings (proc(5): smaps_rollup) in bytes, by field.

    They are empty if the process has ended or is another user's.
    """
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    except (OSError, ValueError, IndexError):
        return {}


def status(pid: int | str = "self") -> dict[str, int]:
    """The sizes in a process's ``/proc/PID/status`` in bytes, by field; empty without /proc, or if it has ended.

    ``VmRSS`` is resident memory, ``VmHWM`` its peak, ``RssAnon`` its anonymous part. ``VmData`` is private writable
    address space.
    """
    with suppress(OSError):
        rows = (line.split() for line in (PROC / str(pid) / "status").read_text().splitlines())
        return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1] == "kB"}
    return {}


def _anonymous_bytes(pid: int) -> int:
    """A process's resident memory without files; without /proc all of it. It is 0 if the process has ended."""
    if PROC.exists():
        return status(pid).get("RssAnon", 0)
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
