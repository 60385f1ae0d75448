"""Who holds a device's memory: tuner's own processes, and those of other programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuner.machine.devices import ram_bytes
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
    # What each of the groups of processes holds that were asked about; None if they cannot be told from others.
    held_bytes: tuple[int, ...] | None


def memory_now(device: Device, groups: Sequence[Collection[int]]) -> Memory:
    """The memory of a device of this machine, and what groups of processes hold of it.

    In a container the driver may report other process ids than the container's, or none: then ``held_bytes`` is None.
    A driver that does not answer any more leaves the figures as they were when the device was detected.
    """
    if device.kind == "cpu":
        total, free = ram_bytes()
        return Memory(total, free, tuple(map(_resident_bytes, groups)))
    import pynvml

    try:
        handle = _gpu(device)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        found = _processes(handle)
    except pynvml.NVMLError:
        return Memory(device.total_bytes, device.free_bytes, None)
    asked = set[int]().union(*groups)
    known = any(pid in asked for pid, _ in found) or any((PROC / str(pid)).exists() for pid, _ in found)
    if not known or any(held is None for pid, held in found if pid in asked):
        return Memory(int(memory.total), int(memory.free), None)
    held = tuple(sum(int(held or 0) for pid, held in found if pid in group) for group in groups)
    return Memory(int(memory.total), int(memory.free), held)


def holders(device: Device, own: Collection[int], most: int) -> list[Holder]:
    """Of the processes other than ``own`` those that hold the most of the device's memory, the largest first."""
    if device.kind == "cuda":
        import pynvml

        try:
            found = [(pid, held) for pid, held in _processes(_gpu(device)) if pid not in own]
        except pynvml.NVMLError:
            return []
    else:
        import psutil

        found = [(pid, _status(pid).get("RssAnon", 0)) for pid in psutil.pids() if pid not in own]
    largest = sorted(found, key=lambda each: -(each[1] or 0))[:most]
    return [holder(pid, held) for pid, held in largest]


def gpu_holders(handle: object) -> list[Holder]:
    """The processes that compute on a GPU of NVML, with the memory that they hold."""
    return [holder(pid, held) for pid, held in _processes(handle)]


def holder(pid: int, held_bytes: int | None) -> Holder:
    """A process with its name; in a container the driver may report other process ids."""
    import psutil

    try:
        process = psutil.Process(pid)
        return Holder(pid, process.name(), process.username(), held_bytes)
    except (psutil.Error, KeyError):
        return Holder(pid, UNSEEN, "", held_bytes)


def with_descendants(pids: Sequence[int]) -> list[set[int]]:
    """For each of these processes itself and those that it has started, with theirs.

    No process is in two of the sets: one that was started by several of them is in the set of the last of these.
    """
    import psutil

    children: dict[int, list[int]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            children.setdefault(process.ppid(), []).append(process.pid)
    asked = set(pids)

    def tree(pid: int) -> set[int]:
        found, waiting = {pid}, [pid]
        while waiting:
            new = set(children.get(waiting.pop(), [])) - found - asked
            found |= new
            waiting += new
        return found

    return [tree(pid) if pid not in pids[:number] else set() for number, pid in enumerate(pids)]


@cache
def _nvml() -> Any:
    """NVML, which takes a while to start and stays: studies look at the memory again and again."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def _gpu(device: Device) -> Any:
    """NVML's handle of a GPU."""
    return _nvml().nvmlDeviceGetHandleByUUID(device.uuid)


def _processes(handle: Any) -> list[tuple[int, int | None]]:
    """The process ids on a GPU with the bytes that each holds; empty if the driver does not list them."""
    import pynvml

    try:
        return [(each.pid, each.usedGpuMemory) for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return []


def _resident_bytes(pids: Collection[int]) -> int:
    """What processes hold of the RAM, without files: what several of them share, such as Ray's store, counts once.

    Where the system does not divide what is shared (proc(5): smaps_rollup), each counts what is its own.
    """
    return sum(_proportional_bytes(pid) or _status(pid).get("RssAnon", 0) for pid in pids)


def _proportional_bytes(pid: int) -> int:
    """A process's part of the memory that it has to itself or shares, without files; 0 if that cannot be read."""
    fields = rollup(pid)
    return fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)


def rollup(pid: int) -> dict[str, int]:
    """The sums of a process's mappings (proc(5): smaps_rollup) in bytes, by field; empty if they cannot be read.

    The process has ended, or is another user's.
    """
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    except (OSError, ValueError, IndexError):
        return {}


def _status(pid: int) -> dict[str, int]:
    """A process's resident memory in bytes, ``RssAnon`` and ``RssShmem``; without /proc all of it as the former."""
    if not PROC.exists():
        import psutil

        with suppress(psutil.Error):
            return {"RssAnon": int(psutil.Process(pid).memory_info().rss)}
        return {}
    try:
        text = (PROC / str(pid) / "status").read_text()
    except OSError:  # it has ended
        return {}
    rows = (line.split() for line in text.splitlines() if line.startswith("Rss"))
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}
