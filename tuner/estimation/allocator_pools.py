"""The pools of ``CachingAllocator``: free blocks in segments, or in an expandable one.

The driver's choice of addresses is modelled. A new segment lies above all earlier ones of its pool, or below all of
them, and touches none, and addresses are not reused. Addresses only decide between free blocks of equal size. An
expandable segment's address space is unlimited; the real one is 9/8 of the device's memory.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from tuner.machine.allocator_settings import DEFAULTS, AllocatorSettings

# In bytes; from c10/core/AllocatorConfig.h in torch 2.13, and CUDACachingAllocator.cpp in 2.6.
MIN_BLOCK_SIZE = 512  # kMinBlockSize: every size is a multiple of it
SMALL_SIZE = 1 << 20  # kSmallSize: the largest request of the small pool
SMALL_BUFFER = 2 << 20  # kSmallBuffer: a segment, or a page of an expandable one, of the small pool
MIN_LARGE_ALLOC = 10 << 20  # kMinLargeAlloc: the smallest request that gets a segment of its own size
ROUND_LARGE = 2 << 20  # kRoundLarge: that size is rounded up to a multiple of this

# A free block is one integer, size << ADDRESS_BITS | address, which sorts like BlockComparatorSize.
ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
ADDRESS_SPACE = SMALL_BUFFER << 28  # of one pool: more than any device has


def round_size(size_bytes: int, divisions: Sequence[int] = ()) -> int:
    """The bytes of a request's block: a multiple of 512, at least 512 (``round_size``).

    ``divisions`` are ``roundup_power2_divisions``: into how many parts the way to the next power of 2 is divided.
    """
    if divisions:
        power = size_bytes.bit_length() - 1
        number = divisions[min(max(power - 20, 0), len(divisions) - 1)]
        if number > 1 and size_bytes > MIN_BLOCK_SIZE * number:
            part = (1 << power) // number
            return -(-size_bytes // part) * part
    return max(MIN_BLOCK_SIZE, -(-size_bytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE)


def segment_size(block_bytes: int, settings: AllocatorSettings = DEFAULTS) -> int:
    """The bytes requested from the driver if no free block is large enough (``get_allocation_size``)."""
    if block_bytes <= SMALL_SIZE:
        return SMALL_BUFFER
    if block_bytes < MIN_LARGE_ALLOC:
        return settings.large_segment_size_bytes
    return -(-block_bytes // ROUND_LARGE) * ROUND_LARGE


class Pool:
    """The free blocks of a pool that grows by segments, by size (for best fit) and by both ends (for merging)."""

    def __init__(
        self, base: int, smallest_rest: int, settings: AllocatorSettings = DEFAULTS, *, descending: bool = False
    ):
        self.descending, self.settings = descending, settings
        self.smallest_rest = smallest_rest  # the smallest one that becomes a free block
        self.oversize = settings.max_split_size_bytes  # blocks from this size on are not split, and released alone
        self.takes = 0  # how often a free block was looked for (``get_free_blocks_call_count``)
        self.free_since: dict[int, int] = {}  # by a free block's address: ``takes`` as it was added
        self.by_size: list[int] = []
        self.size_at: dict[int, int] = {}
        self.start_before: dict[int, int] = {}  # end of a free block -> its address
        self.segments: dict[int, int] = {}
        self.next_address = base

    def add(self, address: int, size: int) -> None:
        """Adds a free block whose neighbours are not free."""
        insort(self.by_size, size << ADDRESS_BITS | address)
        self.size_at[address] = size
        self.free_since[address] = self.takes
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
        self.takes += 1
        index = bisect_left(self.by_size, size << ADDRESS_BITS)
        return self.pop(index) if index < len(self.by_size) and self._suits(index, size) else None

    def _suits(self, index: int, size: int) -> bool:
        """Whether the free block at an index of ``by_size`` is not oversize for a request, or not by too much."""
        block, limit = self.by_size[index] >> ADDRESS_BITS, self.settings.max_split_size_bytes
        if size < limit:
            return block < limit
        return block < size + self.settings.max_non_split_rounding_bytes

    def splits(self, block: int, size: int) -> bool:
        """Whether the rest of a block becomes a free block (``should_split``)."""
        return block - size >= self.smallest_rest and size < self.oversize

    def pop(self, index: int) -> tuple[int, int]:
        """Removes the free block at an index of ``by_size``; returns its address and size."""
        key = self.by_size.pop(index)
        address, size = key & ADDRESS_MASK, key >> ADDRESS_BITS
        del self.size_at[address]
        del self.start_before[address + size]
        return address, size

    def grow(self, size: int) -> tuple[int, int, int]:
        """Reserves a segment; returns its address, its size, and the growth of the reserved memory in bytes."""
        segment = segment_size(size, self.settings)
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
        return sum(map(self.release_segment, self.whole_segments()))

    def whole_segments(self) -> list[int]:
        """The addresses of the segments that are one free block."""
        return [address for address, size in self.size_at.items() if self.segments.get(address) == size]

    def release_segment(self, address: int) -> int:
        """Releases a segment that is one free block; returns its bytes (``release_block``)."""
        size = self.segments.pop(address)
        self.remove(address, size)
        return size

    def release_oversize(self, size: int) -> int:
        """Releases an oversize segment of a request's size, or else the largest ones; returns their bytes.

        This is ``release_available_cached_blocks``. Without ``max_split_size_mb`` no segment is oversize.
        """
        wanted, released = max(size, self.oversize), 0
        while released < wanted and self.by_size and self.by_size[-1] >> ADDRESS_BITS >= self.oversize:
            index = min(bisect_left(self.by_size, wanted << ADDRESS_BITS), len(self.by_size) - 1)
            released += self.release_segment(self.by_size[index] & ADDRESS_MASK)
        return released


class ExpandablePool(Pool):
    """A pool of one expandable segment. It grows by pages, and shrinks only in ``release``."""

    def __init__(self, base: int, page: int, settings: AllocatorSettings):
        base -= base % page
        super().__init__(base, MIN_BLOCK_SIZE, settings)
        self.oversize = DEFAULTS.max_split_size_bytes  # its blocks are always split
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
        return self.pop(index) if self._suits(index, size) else None

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


def make_pools(place: int, settings: AllocatorSettings, *, descending: bool) -> tuple[Pool, Pool]:
    """The small and the large pool of a place. No two of them share addresses, so their blocks are never compared."""
    small, large = place * ADDRESS_SPACE, (place + 1) * ADDRESS_SPACE
    if settings.expandable_segments:
        page = settings.large_segment_size_bytes
        return ExpandablePool(small, SMALL_BUFFER, settings), ExpandablePool(large, page, settings)
    small_pool = Pool(small, MIN_BLOCK_SIZE, settings, descending=descending)
    return small_pool, Pool(large, SMALL_SIZE + MIN_BLOCK_SIZE, settings, descending=descending)
