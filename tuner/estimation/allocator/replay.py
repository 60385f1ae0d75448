"""Allocations and releases run through the simulated allocator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from tuner.estimation.allocator.caching_allocator import CachingAllocator

RELEASE = -1  # in the place of an event's size: the tensor is released

Event: TypeAlias = tuple[int, int]
"""(tensor id, size in bytes) for an allocation, (tensor id, ``RELEASE``) for its end."""


class SnapshotEvent(TypedDict):
    """What is read of an entry of ``torch.cuda.memory._snapshot()["device_traces"][device]``; sizes are requests'."""

    action: str
    addr: int
    size: int
    stream: int


@dataclass(frozen=True)
class AllocatorPeaks:
    """The largest values during a replay, in bytes, as ``torch.cuda.max_memory_allocated`` and ``…_reserved``."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @property
    def fragmentation_bytes(self) -> int:
        """What is reserved on top of the peak of allocated bytes: peak reserved - peak allocated.

        The two peaks need not fall on one moment; this is the difference that makes the parts of an estimate add
        up to what the device loses. Bytes lost by rounding to 512 are not in it: they count as allocated.
        """
        return self.peak_reserved_bytes - self.peak_allocated_bytes


def replay(
    events: Iterable[Event], *, expandable_segments: bool = False, capacity_bytes: int | None = None
) -> AllocatorPeaks:
    """Run allocations and releases through a fresh ``CachingAllocator``: the peaks they lead to, in bytes.

    Args:
        events: (tensor id, size in bytes) for an allocation, (tensor id, ``RELEASE``) for a release, in the order
            in which they happened. An id may be used again after its release.
        expandable_segments: see ``CachingAllocator``.
        capacity_bytes: see ``CachingAllocator``.

    Raises:
        SimulatedOutOfMemoryError: an allocation does not fit.
        ValueError: a release of a tensor that is not there, or a second allocation of one that is.
    """
    allocator = CachingAllocator(expandable_segments=expandable_segments, capacity_bytes=capacity_bytes)
    allocate, free = allocator.allocate, allocator.free
    addresses: dict[int, int] = {}
    for tensor, size in events:
        if size == RELEASE:
            if tensor not in addresses:
                raise ValueError(f"tensor {tensor} is released but not allocated")
            free(addresses.pop(tensor))
        elif tensor in addresses:
            raise ValueError(f"tensor {tensor} is allocated twice")
        else:
            addresses[tensor] = allocate(size)
    return AllocatorPeaks(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def events_from_trace(trace: Iterable[SnapshotEvent], *, stream: int | None = None) -> list[Event]:
    """The events of a real run, for ``replay``, from one device's trace.

    That is one list of ``torch.cuda.memory._snapshot()["device_traces"]``, recorded by ``_record_memory_history``
    from before the process's first CUDA tensor: a release of a block that was there before is dropped, and so is
    that block's share of the segments. A block is released at its ``free_completed``, when others can have it. What
    the allocator did on its own account (``segment_…``, ``oom``) and ``snapshot`` marks are not events: the replay
    finds them by itself, but not an ``empty_cache`` that the program called.

    Args:
        trace: its entries.
        stream: keep the blocks of this stream only; None: there must be no more than one.

    Raises:
        ValueError: blocks of several streams, none of which was asked for.
    """
    events: list[Event] = []
    live: dict[int, int] = {}
    streams: set[int] = set()
    for entry in trace:
        action, address = entry["action"], entry["addr"]
        if action == "alloc" and stream in (None, entry["stream"]):
            streams.add(entry["stream"])
            live[address] = len(events)  # an address comes back, a place in the list does not
            events.append((live[address], entry["size"]))
        elif action == "free_completed" and address in live:
            events.append((live.pop(address), RELEASE))
    if len(streams) > 1:
        raise ValueError(f"blocks of streams {sorted(streams)}: a replay has one; choose it with stream=")
    return events
