"""The allocator of one device, whose blocks belong to a stream, or to the private pool of a CUDA graph.

It follows ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.6 and the constants of 2.13 at the default settings. Names
in brackets are functions there. The reserved bytes depend on the order of allocations and releases, too.

Not simulated, as they are off by default or not needed: ``max_split_size_mb``, ``roundup_power2_divisions``,
``garbage_collection_threshold``, ``large_segment_size_mb`` and ``record_stream``.
"""

from __future__ import annotations

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
