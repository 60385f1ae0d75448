"""The allocator of one device, whose blocks belong to a stream, or to the private pool of a CUDA graph.

It follows ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.6 and the constants of 2.13 at the default settings. Names
in brackets are functions there. The reserved bytes depend on the order of allocations and releases, too.

Not simulated, as they are off by default or not needed: ``max_split_size_mb``, ``roundup_power2_divisions``,
``garbage_collection_threshold``, ``large_segment_size_mb`` and ``record_stream``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.estimation.allocator.pools import (
    ADDRESS_SPACE,
    LARGE_BUFFER,
    MIN_BLOCK_SIZE,
    SMALL_BUFFER,
    SMALL_SIZE,
    ExpandablePool,
    Pool,
    round_size,
    segment_size,
)

DEFAULT, SIDE, PRIVATE = range(3)  # whose blocks: the default stream's, another one's, a CUDA graph's
NULL = 0  # the address of an empty tensor, for which nothing is allocated


class SimulatedOutOfMemoryError(Exception):
    """A request exceeds the capacity even after every cached segment has been released. All sizes are in bytes."""

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int, capacity_bytes: int):
        super().__init__(
            f"{requested_bytes} bytes do not fit: {allocated_bytes} of {capacity_bytes} bytes are allocated "
            f"and {reserved_bytes} reserved"
        )
        self.requested_bytes, self.allocated_bytes = requested_bytes, allocated_bytes


@dataclass(frozen=True)
class Block:
    """A part of a segment, which one tensor uses or which is free."""

    address: int
    size_bytes: int
    allocated: bool


@dataclass(frozen=True)
class Segment:
    """Contiguous reserved memory (for an expandable segment: contiguous mapped pages), divided into blocks."""

    address: int
    size_bytes: int
    blocks: tuple[Block, ...]


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
                raise SimulatedOutOfMemoryError(size, self.allocated_bytes, self.reserved_bytes, self._capacity or 0)
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
        found = self._live.pop(address, None)
        if found is None:
            raise ValueError(f"address = {address}: no block in use")
        size, pool = found
        self.allocated_bytes -= size
        pool.add_merged(address, size)

    def empty_cache(self) -> None:
        """Releases every free segment, or free page of an expandable segment (``release_cached_blocks``).

        A graph keeps its pool.
        """
        for small, large in self._pools[:PRIVATE]:
            self.reserved_bytes -= large.release() + small.release()

    def segments(self) -> list[Segment]:
        """The segments and their blocks by address, like ``torch.cuda.memory_snapshot``."""
        blocks = [Block(address, size, True) for address, (size, _) in self._live.items()]
        for pool in (pool for both in self._pools for pool in both):
            blocks += [Block(address, size, False) for address, size in pool.size_at.items()]
        runs: list[list[Block]] = []  # blocks without gaps are one segment, as segments never touch
        for block in sorted(blocks, key=lambda block: block.address):
            if runs and runs[-1][-1].address + runs[-1][-1].size_bytes == block.address:
                runs[-1].append(block)
            else:
                runs.append([block])
        return [Segment(run[0].address, sum(block.size_bytes for block in run), tuple(run)) for run in runs]
