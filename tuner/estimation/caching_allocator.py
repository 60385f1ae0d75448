"""The allocator of one device, whose blocks belong to a stream or a CUDA graph's private pool, and replays in it.

It follows ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.6 and the constants of 2.13 at the default settings. Names
in brackets are functions there. The reserved bytes depend on the order of allocations and releases, too.

The driver's choice of addresses is modelled. A new segment lies above all earlier ones of its pool, or below all of
them, and touches none, and addresses are not reused. Addresses only decide between free blocks of equal size. An
expandable segment's address space is unlimited; the real one is 9/8 of the device's memory.

Not simulated, as they are off by default or not needed: ``max_split_size_mb``, ``roundup_power2_divisions``,
``garbage_collection_threshold``, ``large_segment_size_mb`` and ``record_stream``.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

DEFAULT, SIDE, PRIVATE = range(3)  # whose blocks: the default stream's, another one's, a CUDA graph's
NULL = 0  # the address of an empty tensor, for which nothing is allocated
RELEASE = -1  # instead of an event's size
USE, EMPTY_CACHE = -2, -3  # instead of an event's id

Event: TypeAlias = tuple[int, int]
"""(tensor id, size in bytes) for an allocation, (tensor id, ``RELEASE``) for a release.

(``USE``, pools) and (``EMPTY_CACHE``, 0) are for the methods ``use`` and ``empty_cache`` of ``CachingAllocator``.
"""

# In bytes; from c10/core/AllocatorConfig.h in torch 2.13, and CUDACachingAllocator.cpp in 2.6.
MIN_BLOCK_SIZE = 512  # kMinBlockSize: every size is a multiple of it
SMALL_SIZE = 1 << 20  # kSmallSize: the largest request of the small pool
SMALL_BUFFER = 2 << 20  # kSmallBuffer: a segment, or a page of an expandable one, of the small pool
LARGE_BUFFER = 20 << 20  # kLargeBuffer, in 2.13 large_segment_size(): the same for the large pool
MIN_LARGE_ALLOC = 10 << 20  # kMinLargeAlloc: the smallest request that gets a segment of its own size
ROUND_LARGE = 2 << 20  # kRoundLarge: that size is rounded up to a multiple of this

# A free block is one integer, size << ADDRESS_BITS | address, which sorts like BlockComparatorSize.
ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
ADDRESS_SPACE = LARGE_BUFFER << 24  # of one pool: more than any device has, and a multiple of both page sizes


def round_size(size_bytes: int) -> int:
    """The bytes of a request's block: a multiple of 512, at least 512 (``round_size``)."""
    return max(MIN_BLOCK_SIZE, -(-size_bytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE)


def segment_size(block_bytes: int) -> int:
    """The bytes requested from the driver if no free block is large enough (``get_allocation_size``)."""
    if block_bytes <= SMALL_SIZE:
        return SMALL_BUFFER
    if block_bytes < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-block_bytes // ROUND_LARGE) * ROUND_LARGE


class Pool:
    """The free blocks of a pool that grows by segments, by size (for best fit) and by both ends (for merging)."""

    def __init__(self, base: int, smallest_rest: int, *, descending: bool = False):
        self.descending = descending
        self.smallest_rest = smallest_rest  # should_split: the smallest remainder that becomes a free block
        self.by_size: list[int] = []
        self.size_at: dict[int, int] = {}
        self.start_before: dict[int, int] = {}  # end of a free block -> its address
        self.segments: dict[int, int] = {}
        self.next_address = base

    def add(self, address: int, size: int) -> None:
        """Adds a free block whose neighbours are not free."""
        insort(self.by_size, size << ADDRESS_BITS | address)
        self.size_at[address] = size
        self.start_before[address + size] = address

    def remove(self, address: int, size: int) -> None:
        """Removes a free block."""
        del self.by_size[bisect_left(self.by_size, size << ADDRESS_BITS | address)]
        del self.size_at[address]
        del self.start_before[address + size]

    def add_merged(self, address: int, size: int) -> None:
        """Adds a free block and merges it with its free neighbours (``free_block``, ``try_merge_blocks``)."""
        before = self.start_before.get(address)
        if before is not None:
            self.remove(before, address - before)
            size += address - before
            address = before
        after = self.size_at.get(address + size)
        if after is not None:
            self.remove(address + size, after)
            size += after
        self.add(address, size)

    def take(self, size: int) -> tuple[int, int] | None:
        """Removes the smallest free block that holds ``size``; returns address and size (``get_free_block``)."""
        by_size = self.by_size
        index = bisect_left(by_size, size << ADDRESS_BITS)
        return self.pop(index) if index < len(by_size) else None

    def pop(self, index: int) -> tuple[int, int]:
        """Removes the free block at an index of ``by_size``; returns its address and size."""
        key = self.by_size.pop(index)
        address, size = key & ADDRESS_MASK, key >> ADDRESS_BITS
        del self.size_at[address]
        del self.start_before[address + size]
        return address, size

    def grow(self, size: int) -> tuple[int, int, int]:
        """Reserves a segment; returns its address, its size, and the growth of the reserved memory in bytes."""
        segment = segment_size(size)
        step = segment + ROUND_LARGE  # the gap keeps blocks of two segments from merging
        if self.descending:
            self.next_address -= step
        address = self.next_address
        if not self.descending:
            self.next_address += step
        self.segments[address] = segment
        return address, segment, segment

    def release(self) -> int:
        """Releases the segments that are one free block; returns their bytes (``release_blocks``)."""
        whole = [item for item in self.size_at.items() if self.segments.get(item[0]) == item[1]]
        for address, size in whole:
            self.remove(address, size)
            del self.segments[address]
        return sum(size for _, size in whole)


class ExpandablePool(Pool):
    """A pool of one expandable segment. It grows by pages, and shrinks only in ``release``."""

    def __init__(self, base: int, page: int):
        super().__init__(base, MIN_BLOCK_SIZE)
        self.page = page
        self.holes = {base: ADDRESS_SPACE}  # address -> size of unmapped ranges; the last one ends the segment

    def take(self, size: int) -> tuple[int, int] | None:
        """Best fit, where a block's size includes the hole behind it. So the end that can grow is used last."""
        by_size = self.by_size
        index = bisect_left(by_size, size << ADDRESS_BITS)
        if index == len(by_size):
            return None
        # A block without a hole behind it is not larger than the next one: the search ends there.
        while (hole := self._hole_behind(by_size[index])) and index + 1 < len(by_size):
            key, following = by_size[index], by_size[index + 1]
            if (following >> ADDRESS_BITS) + self._hole_behind(following) >= (key >> ADDRESS_BITS) + hole:
                break
            index += 1
        return self.pop(index)

    def _hole_behind(self, key: int) -> int:
        """The unmapped bytes directly behind a free block, into which it could grow (``expandable_size``)."""
        return self.holes.get((key & ADDRESS_MASK) + (key >> ADDRESS_BITS), 0)

    def grow(self, size: int) -> tuple[int, int, int]:
        """Maps the missing pages of the lowest range that is large enough (``try_allocate_expandable_block``)."""
        address, mapped = self._find(size), 0
        while (have := self.size_at.get(address, 0)) < size:
            mapped += self._map(address + have, size - have)
        self.remove(address, have)
        return address, have, mapped

    def _find(self, size: int) -> int:
        """The lowest run of free blocks and at least one hole that can hold the size (``find_expandable_block``)."""
        for hole in sorted(self.holes):
            start = end = self.start_before.get(hole, hole)
            while end - start < size and (step := self.size_at.get(end) or self.holes.get(end)):
                end += step
            if end - start >= size:
                return start
        raise AssertionError(f"no {size} bytes of address space in {self.holes}")

    def _map(self, address: int, size: int) -> int:
        """Maps the pages of a hole that cover the size, up to its end; returns their bytes (``map_block``)."""
        hole = self.holes.pop(address)
        mapped = min(hole, -(-size // self.page) * self.page)
        if mapped < hole:
            self.holes[address + mapped] = hole - mapped
        self.add_merged(address, mapped)
        return mapped

    def release(self) -> int:
        """Unmaps the pages that lie completely in a free block; returns their bytes (``unmap_block``)."""
        return sum(self._unmap(address, size) for address, size in list(self.size_at.items()))

    def _unmap(self, address: int, size: int) -> int:
        first = -(-address // self.page) * self.page
        last = (address + size) // self.page * self.page
        if first >= last:
            return 0
        self.remove(address, size)
        if address < first:
            self.add(address, first - address)
        if last < address + size:
            self.add(last, address + size - last)
        self._add_hole(first, last - first)
        return last - first

    def _add_hole(self, address: int, size: int) -> None:
        size += self.holes.pop(address + size, 0)
        for start, length in self.holes.items():
            if start + length == address:
                self.holes[start] += size
                return
        self.holes[address] = size


class SimulatedOutOfMemoryError(Exception):
    """A request exceeds the capacity even after every cached segment has been released."""


class CachingAllocator:
    """The allocator of one device, as in torch 2.6 to 2.13 at its default settings.

    ``expandable_segments`` is the option of ``PYTORCH_CUDA_ALLOC_CONF``. ``capacity_bytes`` is the limit of
    ``torch.cuda.set_per_process_memory_fraction``. As in PyTorch, reserved bytes + ``segment_size`` of the request
    must not exceed it; expandable segments, whose pages may be larger, can exceed it by up to one page of 20 MiB.
    ``descending``: the driver gives every new segment an address below the earlier ones, instead of above them.
    """

    def __init__(
        self, *, expandable_segments: bool = False, capacity_bytes: int | None = None, descending: bool = False
    ):
        self._capacity = capacity_bytes
        self._live: dict[int, tuple[int, Pool]] = {}  # by address: size and pool
        self.allocated_bytes = 0  # of blocks in use, with rounding: ``torch.cuda.memory_allocated``
        self.reserved_bytes = 0  # of all segments or mapped pages: ``torch.cuda.memory_reserved``
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._pools = [
            (ExpandablePool(small, SMALL_BUFFER), ExpandablePool(large, LARGE_BUFFER))
            if expandable_segments
            else (
                Pool(small, MIN_BLOCK_SIZE, descending=descending),
                Pool(large, SMALL_SIZE + MIN_BLOCK_SIZE, descending=descending),
            )
            # Each pool has its own range of addresses, so blocks of two pools are never compared.
            for small, large in ((place * ADDRESS_SPACE, (place + 1) * ADDRESS_SPACE) for place in (1, 3, 5))
        ]
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
        size = round_size(size_bytes)
        pool = self._small if size <= SMALL_SIZE else self._large
        address, block = pool.take(size) or self._grow(pool, size)
        if block - size >= pool.smallest_rest:
            pool.add(address + size, block - size)
            block = size
        self._live[address] = block, pool
        self.allocated_bytes += block
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return address

    def _grow(self, pool: Pool, size: int) -> tuple[int, int]:
        if not self._fits(size):
            if self._used != PRIVATE:  # nothing is given back while a graph is recorded
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
        return self._capacity is None or self.reserved_bytes + segment_size(size) <= self._capacity

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
