"""Parses out-of-memory errors: how much memory was requested, allowed, in use and free."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.trial import GB, MB

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
        said = ", ".join(filter(None, [needed, allowed, in_use, full]))
        return f"out of memory: {said}" if said else "out of memory"


def parse_out_of_memory(text: str) -> LackOfMemory | None:
    """The sizes in the text of an out-of-memory error by torch or numpy; None for other texts."""
    requested = _found(REQUESTED, text)
    if requested is None:
        return LackOfMemory() if UNTOLD in text else None
    allocated, unused = _found(ALLOCATED, text), _found(UNUSED, text)
    in_use = None if allocated is None else allocated + (unused or 0)
    return LackOfMemory(requested, in_use, _found(ALLOWED, text), _found(FREE, text))


def _found(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def _size(size_bytes: int) -> str:
    """A size in KB, MB or GB, of which the last has decimals."""
    if size_bytes < MB:
        return f"{size_bytes / 2**10:.0f} KB"
    return f"{size_bytes / MB:.0f} MB" if size_bytes < GB else f"{size_bytes / GB:.2f} GB"
