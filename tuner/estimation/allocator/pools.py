"""The two pools of the allocator, in which free blocks are found, split, merged and given back.

Where the real addresses are the driver's choice, they are modelled: a new segment lies above all earlier ones of
its pool, never touches another, and an address is not used again after its segment has been released. Addresses
only decide between free blocks of equal size. An expandable segment has endless address space, where the real one
has 9/8 of the device's memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort

# In bytes; in torch 2.13 they stand in c10/core/AllocatorConfig.h, in 2.6 at the top of CUDACachingAllocator.cpp.
MIN_BLOCK_SIZE = 512  # kMinBlockSize: every size is a multiple of it
SMALL_SIZE = 1 << 20  # kSmallSize: the largest request of the small pool
SMALL_BUFFER = 2 << 20  # kSmallBuffer: a segment, or a page of an expandable one, of the small pool
LARGE_BUFFER = 20 << 20  # kLargeBuffer, in 2.13 large_segment_size(): the same for the large pool
MIN_LARGE_ALLOC = 10 << 20  # kMinLargeAlloc: from here on a request has a segment of its own size
ROUND_LARGE = 2 << 20  # kRoundLarge: which is rounded up to this

# A free block is kept as one integer, size << ADDRESS_BITS | address, so that the order of integers is the order of
# BlockComparatorSize: by size, then by address.
ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
# Addresses of one pool: far more than any device has, and a whole number of pages of both sizes.
ADDRESS_SPACE = LARGE_BUFFER << 24


def round_size(size_bytes: int) -> int:
    """Bytes of a block for a request: a multiple of 512, at least 512 (``round_size``)."""
    return max(MIN_BLOCK_SIZE, -(-size_bytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE)


def segment_size(block_bytes: int) -> int:
    """Bytes asked of the driver when no free block can hold a block of this size (``get_allocation_size``)."""
    if block_bytes <= SMALL_SIZE:
        return SMALL_BUFFER
    if block_bytes < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-block_bytes // ROUND_LARGE) * ROUND_LARGE


class Pool:
    """The free blocks of one pool, found by size (best fit) and by either end (merging); grows by whole segments."""

    def __init__(self, base: int, smallest_rest: int):
        self.smallest_rest = smallest_rest  # should_split: a remainder from this size on becomes a free block
        self.by_size: list[int] = []
        self.size_at: dict[int, int] = {}
        self.start_before: dict[int, int] = {}  # end of a free block -> its address
        self.segments: dict[int, int] = {}
        self.next_address = base

    def add(self, address: int, size: int) -> None:
        """Keep a free block whose neighbours are not free."""
        insort(self.by_size, size << ADDRESS_BITS | address)
        self.size_at[address] = size
        self.start_before[address + size] = address

    def remove(self, address: int, size: int) -> None:
        """Take out a given free block."""
        del self.by_size[bisect_left(self.by_size, size << ADDRESS_BITS | address)]
        del self.size_at[address]
        del self.start_before[address + size]

    def add_merged(self, address: int, size: int) -> None:
        """Keep a free block, joined with the free blocks on either side (``free_block``, ``try_merge_blocks``)."""
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
        """The smallest free block that holds ``size``, of equals the lowest: address, size (``get_free_block``)."""
        by_size = self.by_size
        index = bisect_left(by_size, size << ADDRESS_BITS)
        return self.pop(index) if index < len(by_size) else None

    def pop(self, index: int) -> tuple[int, int]:
        """Take out the free block at a place in the order of sizes: address and size."""
        key = self.by_size.pop(index)
        address, size = key & ADDRESS_MASK, key >> ADDRESS_BITS
        del self.size_at[address]
        del self.start_before[address + size]
        return address, size

    def grow(self, size: int) -> tuple[int, int, int]:
        """Reserve a new segment: its address, its size, and by how many bytes the reserved memory grew."""
        address, segment = self.next_address, segment_size(size)
        self.next_address += segment + ROUND_LARGE  # the gap keeps blocks of two segments from merging
        self.segments[address] = segment
        return address, segment, segment

    def release(self) -> int:
        """Give back the segments that are one free block, and say how many bytes that was (``release_blocks``)."""
        whole = [item for item in self.size_at.items() if self.segments.get(item[0]) == item[1]]
        for address, size in whole:
            self.remove(address, size)
            del self.segments[address]
        return sum(size for _, size in whole)


class ExpandablePool(Pool):
    """A pool of one expandable segment, which grows by pages and shrinks only in ``release``."""

    def __init__(self, base: int, page: int):
        super().__init__(base, MIN_BLOCK_SIZE)
        self.page = page
        self.holes = {base: ADDRESS_SPACE}  # address -> size of what is not mapped; the last one is the segment's end

    def take(self, size: int) -> tuple[int, int] | None:
        """Best fit in which a block counts with the hole behind it, so that the growing end is used last."""
        by_size = self.by_size
        index = bisect_left(by_size, size << ADDRESS_BITS)
        if index == len(by_size):
            return None
        # A block without a hole behind it has no more room than the next one: the search ends there.
        while (hole := self._hole_behind(by_size[index])) and index + 1 < len(by_size):
            key, following = by_size[index], by_size[index + 1]
            if (following >> ADDRESS_BITS) + self._hole_behind(following) >= (key >> ADDRESS_BITS) + hole:
                break
            index += 1
        return self.pop(index)

    def _hole_behind(self, key: int) -> int:
        """Unmapped bytes right behind a free block, into which it could grow (``expandable_size``)."""
        return self.holes.get((key & ADDRESS_MASK) + (key >> ADDRESS_BITS), 0)

    def grow(self, size: int) -> tuple[int, int, int]:
        """Map the pages that the lowest place with room still lacks (``try_allocate_expandable_block``)."""
        address, mapped = self._find(size), 0
        while (have := self.size_at.get(address, 0)) < size:
            mapped += self._map(address + have, size - have)
        self.remove(address, have)
        return address, have, mapped

    def _find(self, size: int) -> int:
        """``find_expandable_block``: the lowest run of free and unmapped blocks, with a hole, that can hold size."""
        for hole in sorted(self.holes):
            start = end = self.start_before.get(hole, hole)
            while end - start < size and (step := self.size_at.get(end) or self.holes.get(end)):
                end += step
            if end - start >= size:
                return start
        raise AssertionError(f"no {size} bytes of address space in {self.holes}")

    def _map(self, address: int, size: int) -> int:
        """Map the pages of a hole, up to its end, that cover size: how many bytes they are (``map_block``)."""
        hole = self.holes.pop(address)
        mapped = min(hole, -(-size // self.page) * self.page)
        if mapped < hole:
            self.holes[address + mapped] = hole - mapped
        self.add_merged(address, mapped)
        return mapped

    def release(self) -> int:
        """Unmap the pages that lie wholly in a free block: how many bytes they were (``unmap_block``)."""
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
