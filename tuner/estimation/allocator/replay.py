"""Replays allocations and releases in the simulated allocator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tuner.estimation.allocator.caching_allocator import CachingAllocator, SimulatedOutOfMemoryError
from tuner.estimation.allocator.pools import ROUND_LARGE

RELEASE = -1  # instead of an event's size
USE, EMPTY_CACHE = -2, -3  # instead of an event's id

Event: TypeAlias = tuple[int, int]
"""(tensor id, size in bytes) for an allocation, (tensor id, ``RELEASE``) for a release.

(``USE``, pools) and (``EMPTY_CACHE``, 0) are for the methods ``use`` and ``empty_cache`` of ``CachingAllocator``.
"""


@dataclass(frozen=True)
class AllocatorPeaks:
    """The peaks of a replay in bytes, as ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved``."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int


def replay(
    events: Iterable[Event],
    *,
    expandable_segments: bool = False,
    capacity_bytes: int | None = None,
    descending: bool = False,
) -> AllocatorPeaks:
    """Replays events in order in a new ``CachingAllocator``, and returns the peaks.

    An id may be reused after its release. The other arguments are the allocator's.

    Raises:
        SimulatedOutOfMemoryError: an allocation does not fit.
        ValueError: a tensor is released without an allocation, or allocated twice.
    """
    allocator = CachingAllocator(
        expandable_segments=expandable_segments, capacity_bytes=capacity_bytes, descending=descending
    )
    allocate, free = allocator.allocate, allocator.free
    addresses: dict[int, int] = {}
    for tensor, size in events:
        if tensor < 0:
            allocator.use(size) if tensor == USE else allocator.empty_cache()
        elif size == RELEASE:
            if tensor not in addresses:
                raise ValueError(f"tensor {tensor} is released but not allocated")
            free(addresses.pop(tensor))
        elif tensor in addresses:
            raise ValueError(f"tensor {tensor} is allocated twice")
        else:
            addresses[tensor] = allocate(size)
    return AllocatorPeaks(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def largest_peaks(events: Sequence[Event], *, expandable_segments: bool = False) -> AllocatorPeaks:
    """The peaks of the replay with ascending or with descending addresses, whichever reserves more.

    Drivers do both. The order decides between free blocks of equal size, and so how well later blocks fit.
    """
    both = [
        replay(events, expandable_segments=expandable_segments, descending=descending)
        for descending in ((False,) if expandable_segments else (False, True))
    ]
    return max(both, key=lambda peaks: peaks.peak_reserved_bytes)


def least_capacity(events: Sequence[Event], peaks: AllocatorPeaks, *, expandable_segments: bool = False) -> int:
    """The smallest capacity in bytes under which a replay succeeds, at most the reserved bytes of ``peaks``.

    At the capacity the allocator gives back the segments that are free as a whole, and tries again
    (``release_cached_blocks``). So a capped process needs less than one without a cap reserves. It is found by
    bisection, in steps of 2 MiB from the allocated to the reserved peak, and holds for both orders of addresses.
    """

    def succeeds(steps: int) -> bool:
        capacity = steps * ROUND_LARGE
        try:
            for descending in (False,) if expandable_segments else (False, True):
                replay(
                    events, expandable_segments=expandable_segments, capacity_bytes=capacity, descending=descending
                )
        except SimulatedOutOfMemoryError:
            return False
        return True

    least, most = -(-peaks.peak_allocated_bytes // ROUND_LARGE), peaks.peak_reserved_bytes // ROUND_LARGE
    return ROUND_LARGE * (least + bisect_left(range(least, most), True, key=succeeds))
