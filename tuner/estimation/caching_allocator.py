"""The allocator of one device, whose blocks belong to a stream or a CUDA graph's private pool, and replays in it.

It follows ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.6 and the constants of 2.13, under the user's settings.
Names in brackets are functions there. The reserved bytes depend on the order of allocations and releases, too.

Not simulated, as it is not needed: ``record_stream``. In the garbage collection a block's age is counted by stream.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tuner.estimation.allocator_pools import ROUND_LARGE, SMALL_SIZE, Pool, make_pools, round_size, segment_size
from tuner.machine.allocator_settings import DEFAULTS, AllocatorSettings

DEFAULT, SIDE, PRIVATE = range(3)  # whose blocks: the default stream's, another one's, a CUDA graph's
NULL = 0  # the address of an empty tensor, for which nothing is allocated
RELEASE = -1  # instead of an event's size
USE, EMPTY_CACHE = -2, -3  # instead of an event's id

Event: TypeAlias = tuple[int, int]
"""(tensor id, size in bytes) for an allocation, (tensor id, ``RELEASE``) for a release.

(``USE``, pools) and (``EMPTY_CACHE``, 0) are for the methods ``use`` and ``empty_cache`` of ``CachingAllocator``.
"""


class SimulatedOutOfMemoryError(Exception):
    """A request exceeds the capacity even after every cached segment has been released."""


class CachingAllocator:
    """The allocator of one device, as in torch 2.6 to 2.13.

    ``capacity_bytes`` is the limit of ``torch.cuda.set_per_process_memory_fraction``. As in PyTorch, reserved bytes +
    ``segment_size`` of the request must not exceed it; expandable segments, whose pages may be larger, can exceed it
    by up to one page of 20 MiB. Without a capacity there is no garbage collection.
    ``descending``: the driver gives every new segment an address below the earlier ones, instead of above them.
    """

    def __init__(
        self, settings: AllocatorSettings = DEFAULTS, *, capacity_bytes: int | None = None, descending: bool = False
    ):
        self._settings, self._capacity = settings, capacity_bytes
        self._live: dict[int, tuple[int, Pool]] = {}  # by address: size and pool
        self.allocated_bytes = 0  # of blocks in use, with rounding: ``torch.cuda.memory_allocated``
        self.reserved_bytes = 0  # of all segments or mapped pages: ``torch.cuda.memory_reserved``
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._pools = [make_pools(place, settings, descending=descending) for place in (1, 3, 5)]
        self.use(DEFAULT)

    def use(self, pools: int) -> None:
        """Allocates from ``DEFAULT``, ``SIDE`` or ``PRIVATE`` from now on (``beginAllocateToPool``)."""
        self._used = pools
        self._small, self._large = self._pools[pools]

    def allocate(self, size_bytes: int) -> int:
        """Allocates a block and returns its address, or ``NULL`` for 0 bytes (``malloc``).

        Raises ``SimulatedOutOfMemoryError`` if the capacity is exceeded and no cached segment can be released.
        """
        if size_bytes <= 0:
            if size_bytes < 0:
                raise ValueError(f"size_bytes = {size_bytes}: must not be negative")
            return NULL
        size = round_size(size_bytes, self._settings.roundup_power2_divisions)
        pool = self._small if size <= SMALL_SIZE else self._large
        address, block = pool.take(size) or self._grow(pool, size)
        if pool.splits(block, size):
            pool.add(address + size, block - size)
            block = size
        self._live[address] = block, pool
        self.allocated_bytes += block
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return address

    def _grow(self, pool: Pool, size: int) -> tuple[int, int]:
        self._collect()
        if not self._fits(size):
            if self._used != PRIVATE:  # nothing is given back while a graph is recorded
                released = pool.release_oversize(size)
                self.reserved_bytes -= released
                if released < max(size, pool.oversize) or not self._fits(size):
                    self.empty_cache()
            if not self._fits(size):
                raise SimulatedOutOfMemoryError(
                    f"{size} bytes do not fit: {self.allocated_bytes} of {self._capacity} bytes are allocated "
                    f"and {self.reserved_bytes} reserved"
                )
        address, block, grown = pool.grow(size)
        self.reserved_bytes += grown
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return address, block

    def _fits(self, size: int) -> bool:
        return self._capacity is None or self.reserved_bytes + segment_size(size, self._settings) <= self._capacity

    def _collect(self) -> None:
        """Releases large segments that have been free for long (``garbage_collect_cached_blocks``)."""
        least = int((self._capacity or 0) * self._settings.garbage_collection_threshold)
        if not least or self.reserved_bytes <= least:
            return
        large = [pool for _, pool in self._pools[:PRIVATE]]
        ages = {
            (pool, place): pool.takes - pool.free_since[place] for pool in large for place in pool.whole_segments()
        }
        while self.reserved_bytes > least and ages:
            mean = sum(ages.values()) / len(ages)
            for pool, address in [segment for segment, age in ages.items() if age >= mean]:
                del ages[pool, address]
                self.reserved_bytes -= pool.release_segment(address)

    def free(self, address: int) -> None:
        """Releases the block at an address; its bytes stay reserved (``free``)."""
        if address == NULL:
            return
        block = self._live.pop(address, None)
        if block is None:
            raise ValueError(f"address = {address}: no block in use")
        size, pool = block
        self.allocated_bytes -= size
        pool.add_merged(address, size)

    def empty_cache(self) -> None:
        """Releases every free segment, or free page of an expandable segment (``release_cached_blocks``).

        A graph keeps its pool.
        """
        for small, large in self._pools[:PRIVATE]:
            self.reserved_bytes -= large.release() + small.release()


@dataclass(frozen=True)
class AllocatorPeaks:
    """The peaks of a replay in bytes, as ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved``."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int


def replay(
    events: Iterable[Event],
    settings: AllocatorSettings = DEFAULTS,
    *,
    capacity_bytes: int | None = None,
    descending: bool = False,
) -> AllocatorPeaks:
    """Replays events in order in a new ``CachingAllocator``, and returns the peaks.

    An id may be reused after its release. The other arguments are the allocator's.

    Raises:
        SimulatedOutOfMemoryError: an allocation does not fit.
        ValueError: a tensor is released without an allocation, or allocated twice.
    """
    allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes, descending=descending)
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


def largest_peaks(events: Sequence[Event], settings: AllocatorSettings = DEFAULTS) -> AllocatorPeaks:
    """The peaks of the replay with ascending or with descending addresses, whichever reserves more.

    Drivers do both. The order decides between free blocks of equal size, and so how well later blocks fit.
    """
    both = [
        replay(events, settings, descending=descending)
        for descending in ((False,) if settings.expandable_segments else (False, True))
    ]
    return max(both, key=lambda peaks: peaks.peak_reserved_bytes)


def least_capacity(events: Sequence[Event], peaks: AllocatorPeaks, settings: AllocatorSettings = DEFAULTS) -> int:
    """The smallest capacity in bytes under which a replay succeeds, at most the reserved bytes of ``peaks``.

    At the capacity the allocator gives back the segments that are free as a whole, and tries again
    (``release_cached_blocks``). So a capped process needs less than one without a cap reserves. It is found by
    bisection, in steps of 2 MiB from the allocated to the reserved peak, and holds for both orders of addresses.
    """

    def succeeds(steps: int) -> bool:
        capacity = steps * ROUND_LARGE
        try:
            for descending in (False,) if settings.expandable_segments else (False, True):
                replay(events, settings, capacity_bytes=capacity, descending=descending)
        except SimulatedOutOfMemoryError:
            return False
        return True

    least, most = -(-peaks.peak_allocated_bytes // ROUND_LARGE), peaks.peak_reserved_bytes // ROUND_LARGE
    return ROUND_LARGE * (least + bisect_left(range(least, most), True, key=succeeds))
