"""A simulator of PyTorch's CUDA caching allocator: which bytes a sequence of tensors reserves, without a device.

It follows ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.6 and the constants of 2.13, at the default settings and
on one stream; the names in brackets below are the functions there. ``torch.cuda.memory_reserved`` is what the
device loses, and it depends on the order of allocations and releases as much as on their sizes.

Where the real addresses are the driver's choice, they are modelled: a new segment lies above all earlier ones of
its pool, never touches another, and an address is not used again after its segment has been released. Addresses
only decide between free blocks of equal size. An expandable segment has endless address space, where the real one
has 9/8 of the device's memory.

Left out, being off by default or of no meaning on one stream: ``max_split_size_mb``, ``roundup_power2_divisions``,
``garbage_collection_threshold``, ``large_segment_size_mb``, private pools (CUDA graphs), ``record_stream``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

# In bytes; in torch 2.13 they stand in c10/core/AllocatorConfig.h, in 2.6 at the top of CUDACachingAllocator.cpp.
MIN_BLOCK_SIZE = 512  # kMinBlockSize: every size is a multiple of it
SMALL_SIZE = 1 << 20  # kSmallSize: the largest request of the small pool
SMALL_BUFFER = 2 << 20  # kSmallBuffer: a segment, or a page of an expandable one, of the small pool
LARGE_BUFFER = 20 << 20  # kLargeBuffer, in 2.13 large_segment_size(): the same for the large pool
MIN_LARGE_ALLOC = 10 << 20  # kMinLargeAlloc: from here on a request has a segment of its own size
ROUND_LARGE = 2 << 20  # kRoundLarge: which is rounded up to this

NULL = 0  # the address of a tensor without bytes, for which nothing is allocated
RELEASE = -1  # in the place of an event's size: the tensor is released

Event: TypeAlias = tuple[int, int]
"""(tensor id, size in bytes) for an allocation, (tensor id, ``RELEASE``) for its end."""

# A free block is kept as one integer, size << ADDRESS_BITS | address, so that the order of integers is the order of
# BlockComparatorSize: by size, then by address.
ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
# Addresses of one pool: far more than any device has, and a whole number of pages of both sizes.
ADDRESS_SPACE = LARGE_BUFFER << 24


class SimulatedOutOfMemoryError(Exception):
    """The capacity cannot hold a request, even after every cached segment has been released. All sizes in bytes."""

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int, capacity_bytes: int):
        super().__init__(
            f"{requested_bytes} bytes do not fit: {allocated_bytes} of {capacity_bytes} bytes are allocated "
            f"and {reserved_bytes} reserved"
        )
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.capacity_bytes = capacity_bytes


@dataclass(frozen=True)
class Block:
    """A piece of a segment: in use by one tensor, or free."""

    address: int
    size_bytes: int
    allocated: bool


@dataclass(frozen=True)
class Segment:
    """Contiguous reserved memory (of an expandable segment: a contiguous mapped part) and the blocks that tile it."""

    address: int
    size_bytes: int
    blocks: tuple[Block, ...]


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


class _Pool:
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


class _ExpandablePool(_Pool):
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


class CachingAllocator:
    """The allocator of one device and stream, as in torch 2.6 to 2.13 at its default settings.

    Args:
        expandable_segments: the option of that name of ``PYTORCH_CUDA_ALLOC_CONF``.
        capacity_bytes: what ``torch.cuda.set_per_process_memory_fraction`` allows; None: no limit. The check is
            PyTorch's own, reserved + ``segment_size`` of the request, made before memory is asked of the driver;
            with expandable segments, whose pages may be larger than that, reserved bytes can end up to one page
            of 20 MiB above it.
    """

    def __init__(self, *, expandable_segments: bool = False, capacity_bytes: int | None = None):
        self._capacity = capacity_bytes
        self._live: dict[int, int] = {}
        self._allocated = self._reserved = self._peak_allocated = self._peak_reserved = 0
        # Each pool has a range of addresses of its own: blocks of two pools are never compared.
        small, large = ADDRESS_SPACE, 2 * ADDRESS_SPACE
        self._small, self._large = (
            (_ExpandablePool(small, SMALL_BUFFER), _ExpandablePool(large, LARGE_BUFFER))
            if expandable_segments
            else (_Pool(small, MIN_BLOCK_SIZE), _Pool(large, SMALL_SIZE + MIN_BLOCK_SIZE))
        )

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks in use, rounding included: ``torch.cuda.memory_allocated``."""
        return self._allocated

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments or mapped pages: ``torch.cuda.memory_reserved``."""
        return self._reserved

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes that were ever allocated: ``torch.cuda.max_memory_allocated``."""
        return self._peak_allocated

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes that were ever reserved: ``torch.cuda.max_memory_reserved``."""
        return self._peak_reserved

    def allocate(self, size_bytes: int) -> int:
        """Give a tensor of ``size_bytes`` a block, and return the block's address (``malloc``).

        A tensor of 0 bytes takes none and has the address ``NULL``.

        Raises:
            SimulatedOutOfMemoryError: the capacity is exceeded and no cached segment is left to release.
            ValueError: the size is negative.
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
        self._live[address] = block
        self._allocated += block
        if self._allocated > self._peak_allocated:
            self._peak_allocated = self._allocated
        return address

    def _grow(self, pool: _Pool, size: int) -> tuple[int, int]:
        if not self._fits(size):
            self.empty_cache()
            if not self._fits(size):
                raise SimulatedOutOfMemoryError(size, self._allocated, self._reserved, self._capacity or 0)
        address, block, grown = pool.grow(size)
        self._reserved += grown
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return address, block

    def _fits(self, size: int) -> bool:
        return self._capacity is None or self._reserved + segment_size(size) <= self._capacity

    def free(self, address: int) -> None:
        """Put a block back among the free ones; its bytes stay reserved (``free``).

        Raises:
            ValueError: no block in use has this address.
        """
        if address == NULL:
            return
        size = self._live.pop(address, None)
        if size is None:
            raise ValueError(f"address = {address}: no block in use")
        self._allocated -= size
        # Blocks of the small pool are always split to size, those of the large pool are never this small.
        (self._small if size <= SMALL_SIZE else self._large).add_merged(address, size)

    def empty_cache(self) -> None:
        """Give back every segment, or page of an expandable one, that is wholly free (``release_cached_blocks``)."""
        self._reserved -= self._large.release() + self._small.release()

    def segments(self) -> list[Segment]:
        """What is reserved, by address, down to the blocks: ``torch.cuda.memory_snapshot`` in short."""
        blocks = [Block(address, size, True) for address, size in self._live.items()]
        for pool in (self._small, self._large):
            blocks += [Block(address, size, False) for address, size in pool.size_at.items()]
        return [_segment(run) for run in _runs(sorted(blocks, key=lambda block: block.address))]


def _runs(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Blocks in order of address, in groups without a gap: one group a segment, for segments never touch."""
    run: list[Block] = []
    for block in blocks:
        if run and run[-1].address + run[-1].size_bytes != block.address:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _segment(run: list[Block]) -> Segment:
    return Segment(run[0].address, sum(block.size_bytes for block in run), tuple(run))


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


def events_from_trace(trace: Iterable[Mapping[str, Any]], *, stream: int | None = None) -> list[Event]:
    """The events of a real run, for ``replay``, from one device's trace.

    That is one list of ``torch.cuda.memory._snapshot()["device_traces"]``, recorded by ``_record_memory_history``
    from before the process's first CUDA tensor: a release of a block that was there before is dropped, and so is
    that block's share of the segments. A block is released at its ``free_completed``, when others can have it. What
    the allocator did on its own account (``segment_…``, ``oom``) and ``snapshot`` marks are not events: the replay
    finds them by itself, but not an ``empty_cache`` that the program called.

    Args:
        trace: entries with ``action``, ``addr``, ``size`` (bytes requested) and ``stream``.
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
