"""The simulated allocator reserves what PyTorch's own would: cases worked out from its source, and properties."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.support.recorded_events import events_from_trace
from tuner.estimation.caching_allocator import (
    DEFAULT,
    NULL,
    PRIVATE,
    RELEASE,
    SIDE,
    AllocatorPeaks,
    CachingAllocator,
    Event,
    SimulatedOutOfMemoryError,
    largest_peaks,
    least_capacity,
    replay,
)
from tuner.machine.allocator_settings import AllocatorSettings

EXPANDABLE = AllocatorSettings(expandable_segments=True)
KIB, MIB = 1 << 10, 1 << 20
SEEDS = range(20)


@pytest.mark.parametrize("expandable", [False, True])
def test_streams_and_graphs_share_no_blocks_and_a_graph_keeps_its_own(expandable: bool) -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=expandable))
    for pools in (DEFAULT, SIDE, PRIVATE):
        allocator.use(pools)
        allocator.free(allocator.allocate(20 * MIB))
    assert allocator.reserved_bytes == 60 * MIB
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB


def test_nothing_is_given_back_while_a_graph_is_recorded() -> None:
    allocator = CachingAllocator(capacity_bytes=50 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.use(PRIVATE)
    with pytest.raises(SimulatedOutOfMemoryError):
        allocator.allocate(30 * MIB)
    allocator.use(SIDE)
    allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 30 * MIB


def reserved_for(*sizes: int, expandable: bool = False) -> tuple[int, int]:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=expandable))
    for size in sizes:
        allocator.allocate(size)
    return allocator.allocated_bytes, allocator.reserved_bytes


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (4, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, KIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (3 * MIB // 2, 3 * MIB // 2, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # The rest, exactly 1 MiB, is not split off: it counts as allocated.
        (11 * MIB, 12 * MIB, 12 * MIB),
        # A rest of more than 1 MiB is.
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),
        (100 * MIB, 100 * MIB, 100 * MIB),
    ],
)
def test_one_tensor_is_rounded_and_brings_its_segment(size: int, allocated: int, reserved: int) -> None:
    assert reserved_for(size) == (allocated, reserved)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (4, 512, 2 * MIB),
        (3 * MIB // 2, 3 * MIB // 2, 20 * MIB),
        (11 * MIB, 11 * MIB, 20 * MIB),  # split exactly, for a rest of 512 bytes is enough
        (20 * MIB + 1, 20 * MIB + 512, 40 * MIB),
    ],
)
def test_one_tensor_in_an_expandable_segment_maps_whole_pages(size: int, allocated: int, reserved: int) -> None:
    assert reserved_for(size, expandable=True) == (allocated, reserved)


def test_a_tensor_without_bytes_takes_nothing() -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(0) == NULL
    allocator.free(NULL)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


def test_a_segment_is_split_until_it_is_full() -> None:
    assert reserved_for(*[9 * MIB] * 2) == (18 * MIB, 20 * MIB)
    assert reserved_for(*[9 * MIB] * 3) == (27 * MIB, 40 * MIB)
    assert reserved_for(*[512] * 4096) == (2 * MIB, 2 * MIB)
    assert reserved_for(*[512] * 4097) == (2 * MIB + 512, 4 * MIB)


def test_a_freed_block_stays_reserved_and_is_used_again() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(30 * MIB)
    allocator.free(first)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 30 * MIB)
    assert allocator.allocate(30 * MIB - 100 * KIB) == first
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (30 * MIB, 30 * MIB)


def test_blocks_of_two_segments_do_not_merge() -> None:
    allocator = CachingAllocator()
    for block in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.free(block)
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_the_smallest_sufficient_block_is_chosen_and_of_equals_the_lowest() -> None:
    allocator = CachingAllocator()
    blocks = {size: allocator.allocate(size * MIB) for size in (40, 24, 32)}
    twin = allocator.allocate(24 * MIB)
    for block in [twin, *blocks.values()]:
        allocator.free(block)
    assert allocator.allocate(23 * MIB) == blocks[24] < twin
    assert allocator.allocate(23 * MIB) == twin
    assert allocator.allocate(23 * MIB) == blocks[32]


def interleaved(size: int, count: int) -> list[Event]:
    """Tensors of one size, every second of which is released, then tensors of twice that size."""
    events = [(tensor, size) for tensor in range(count)]
    events += [(tensor, RELEASE) for tensor in range(0, count, 2)]
    return events + [(count + tensor, 2 * size) for tensor in range(count // 4)]


def test_gaps_too_small_for_the_next_tensors_are_fragmentation() -> None:
    peaks = replay(interleaved(4 * MIB, 20))
    assert peaks == AllocatorPeaks(peak_allocated_bytes=80 * MIB, peak_reserved_bytes=140 * MIB)
    peaks = replay(interleaved(4 * MIB, 20), EXPANDABLE)
    assert peaks.peak_reserved_bytes - peaks.peak_allocated_bytes == 40 * MIB


def test_freed_pages_stay_mapped_until_the_cache_is_emptied() -> None:
    allocator = CachingAllocator(EXPANDABLE)
    blocks = [allocator.allocate(30 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    assert allocator.reserved_bytes == 100 * MIB
    allocator.empty_cache()  # of the free 30 to 60 MiB, only 40 to 60 MiB are a whole page
    assert allocator.reserved_bytes == 80 * MIB
    assert allocator.allocate(30 * MIB) == blocks[1]
    assert allocator.reserved_bytes == 100 * MIB


def test_an_emptied_cache_keeps_segments_in_use() -> None:
    allocator = CachingAllocator()
    kept, freed, whole = (allocator.allocate(size * MIB) for size in (5, 5, 50))
    allocator.free(freed)
    allocator.free(whole)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert allocator.peak_reserved_bytes == 70 * MIB


def test_capacity_releases_cached_segments_before_giving_up() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (80 * MIB, 80 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError, match="do not fit: 83886080 of 104857600 bytes are allocated"):
        allocator.allocate(21 * MIB)
    assert allocator.allocate(20 * MIB) and allocator.reserved_bytes == 100 * MIB


def test_the_least_capacity_is_that_with_which_nothing_free_stays_reserved() -> None:
    grown = [event for size in (50, 54, 58) for event in ((size, size * MIB), (size, RELEASE))]
    assert least_capacity(grown, replay(grown)) == 58 * MIB
    kept = interleaved(4 * MIB, 20)  # every segment stays in use, so that none can be given back
    assert least_capacity(kept, replay(kept)) == replay(kept).peak_reserved_bytes == 140 * MIB


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_succeeds_under_the_least_capacity_and_not_2_mib_below(seed: int) -> None:
    events = random_trace(seed)
    peaks = largest_peaks(events)
    least = least_capacity(events, peaks)
    assert peaks.peak_allocated_bytes <= least <= peaks.peak_reserved_bytes
    replay(events, capacity_bytes=least)
    replay(events, capacity_bytes=least, descending=True)
    with pytest.raises(SimulatedOutOfMemoryError):
        for descending in (False, True):
            replay(events, capacity_bytes=least - 2 * MIB, descending=descending)


@pytest.mark.parametrize("bad", [[(1, RELEASE)], [(1, 8), (1, 8)], [(1, 8), (1, RELEASE), (1, RELEASE)], [(1, -2)]])
def test_a_trace_that_cannot_be_is_refused(bad: list[Event]) -> None:
    with pytest.raises(ValueError, match=r"released but not allocated|allocated twice|must not be negative"):
        replay(bad)


def test_a_block_cannot_be_freed_twice() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(4)
    allocator.free(block)
    with pytest.raises(ValueError, match=f"address = {block}: no block in use"):
        allocator.free(block)


def entry(action: str, address: int, size: int = 0, stream: int = 0) -> dict[str, int | str]:
    return {"action": action, "addr": address, "size": size, "stream": stream}


def test_a_recorded_trace_becomes_events() -> None:
    trace = [
        entry("free_completed", 7, 100),  # of a block from before the recording
        entry("segment_alloc", 4096, 2 * MIB),
        entry("alloc", 4096, 1000),
        entry("free_requested", 4096, 1000),
        entry("free_completed", 4096, 1000),
        entry("alloc", 4096, 600),  # another tensor at the same address
        entry("snapshot", 0),
        entry("free_requested", 4096, 600),  # and not completed: still waited for
    ]
    events = events_from_trace(trace)
    assert events == [(0, 1000), (0, RELEASE), (2, 600)]
    assert replay(events) == AllocatorPeaks(peak_allocated_bytes=1024, peak_reserved_bytes=2 * MIB)


def test_a_recorded_trace_of_several_streams_needs_one_chosen() -> None:
    trace = [entry("alloc", 4096, 8, stream=0), entry("alloc", 8192, 9, stream=5), entry("free_completed", 8192, 9)]
    with pytest.raises(ValueError, match=r"streams \[0, 5\]"):
        events_from_trace(trace)
    assert events_from_trace(trace, stream=0) == [(0, 8)]
    assert events_from_trace(trace, stream=5) == [(0, 9), (0, RELEASE)]


def random_trace(seed: int, count: int = 1500) -> list[Event]:
    """Sizes over all classes, some of them often, released in a random order and all of them by the end."""
    rng = random.Random(seed)
    common = [int(2 ** rng.uniform(2, 26)) for _ in range(8)]
    live: list[int] = []
    events: list[Event] = []
    for tensor in range(count):
        events.append((tensor, rng.choice(common) if rng.random() < 0.5 else int(2 ** rng.uniform(2, 26))))
        live.append(tensor)
        while live and rng.random() < 0.48:
            events.append((live.pop(rng.randrange(len(live))), RELEASE))
    return events + [(tensor, RELEASE) for tensor in live]


@dataclass(eq=False)
class Piece:
    address: int
    size: int
    state: str  # "used", "free", or "hole": not mapped


class Transcript:
    """The allocator again, slow and literal: a list of pieces for each segment, searched from end to end.

    Written after the functions of CUDACachingAllocator.cpp, sharing nothing with the module.
    """

    def __init__(self, expandable: bool, capacity: int | None):
        self.expandable, self.capacity = expandable, capacity
        self.pools: dict[bool, list[list[Piece]]] = {True: [], False: []}
        if expandable:
            self.pools = {small: [[Piece(0, 1 << 60, "hole")]] for small in (True, False)}
        self.tensors: dict[int, tuple[list[Piece], Piece]] = {}

    def total(self, *states: str) -> int:
        segments = self.pools[True] + self.pools[False]
        return sum(piece.size for segment in segments for piece in segment if piece.state in states)

    def malloc(self, tensor: int, size: int) -> None:
        size = max(512, (size + 511) // 512 * 512)
        small = size <= MIB
        alloc_size = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        )
        found = self.get_free_block(small, size) or self.alloc_block(small, size, alloc_size)
        if not found:
            self.release_cached_blocks()
            found = self.alloc_block(small, size, alloc_size)
        if not found:
            raise MemoryError
        segment, piece = found
        remaining = piece.size - size
        if remaining >= 512 if small or self.expandable else remaining > MIB:
            segment.insert(segment.index(piece) + 1, Piece(piece.address + size, remaining, "free"))
            piece.size = size
        piece.state = "used"
        self.tensors[tensor] = (segment, piece)

    def get_free_block(self, small: bool, size: int) -> tuple[list[Piece], Piece] | None:
        def expandable_size(fit: tuple[list[Piece], Piece]) -> int:
            segment, piece = fit
            behind = segment[segment.index(piece) + 1 :][:1]
            return piece.size + sum(other.size for other in behind if other.state == "hole")

        fits = [(s, p) for s in self.pools[small] for p in s if p.state == "free" and p.size >= size]
        fits.sort(key=lambda fit: fit[1].size)  # stable: of equals the oldest segment, then the lowest address
        while self.expandable and len(fits) > 1 and expandable_size(fits[1]) < expandable_size(fits[0]):
            fits.pop(0)
        return fits[0] if fits else None

    def alloc_block(self, small: bool, size: int, alloc_size: int) -> tuple[list[Piece], Piece] | None:
        if self.capacity is not None and self.total("free", "used") + alloc_size > self.capacity:
            return None
        if not self.expandable:
            self.pools[small].append([Piece(0, alloc_size, "free")])
            return self.pools[small][-1], self.pools[small][-1][0]
        (segment,) = self.pools[small]
        at = self.find_expandable_block(segment, size)
        while segment[at].state == "hole" or segment[at].size < size:
            missing = size if segment[at].state == "hole" else size - segment[at].size
            hole = segment[at] if segment[at].state == "hole" else segment[at + 1]
            self.map_block(segment, hole, missing, 2 * MIB if small else 20 * MIB)
        return segment, segment[at]

    def find_expandable_block(self, segment: list[Piece], size: int) -> int:
        for hole in (n for n, piece in enumerate(segment) if piece.state == "hole"):
            first = last = hole - 1 if hole and segment[hole - 1].state == "free" else hole
            room = 0
            while room < size and last < len(segment) and segment[last].state != "used":
                room += segment[last].size
                last += 1
            if room >= size:
                return first
        raise AssertionError

    def map_block(self, segment: list[Piece], hole: Piece, size: int, page: int) -> None:
        mapped = min(hole.size, (size + page - 1) // page * page)
        segment.insert(segment.index(hole), Piece(hole.address, mapped, "free"))
        hole.address += mapped
        hole.size -= mapped
        self.merge(segment)

    def merge(self, segment: list[Piece]) -> None:
        segment[:] = [piece for piece in segment if piece.size]
        for left, right in list(pairwise(segment)):
            if left.state == right.state != "used":
                right.address = left.address
                right.size += left.size
                segment.remove(left)

    def release_cached_blocks(self) -> None:
        if not self.expandable:
            for pool in self.pools.values():
                pool[:] = [segment for segment in pool if len(segment) > 1 or segment[0].state == "used"]
            return
        for small, (segment,) in self.pools.items():
            page = 2 * MIB if small else 20 * MIB
            for piece in [piece for piece in segment if piece.state == "free"]:
                end = piece.address + piece.size
                first, last = (piece.address + page - 1) // page * page, end // page * page
                if first < last:
                    at = segment.index(piece)
                    bounds = ((piece.address, first, "free"), (first, last, "hole"), (last, end, "free"))
                    segment[at : at + 1] = [Piece(start, stop - start, state) for start, stop, state in bounds]
            self.merge(segment)

    def free(self, tensor: int) -> None:
        segment, piece = self.tensors.pop(tensor)
        piece.state = "free"
        self.merge(segment)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("capacity", [None, 150 * MIB, 400 * MIB])
def test_the_simulator_does_what_a_literal_transcript_of_the_source_does(
    seed: int, expandable: bool, capacity: int | None
) -> None:
    transcript, real = (
        Transcript(expandable, capacity),
        CachingAllocator(AllocatorSettings(expandable_segments=expandable), capacity_bytes=capacity),
    )
    addresses: dict[int, int] = {}
    peak = 0
    for tensor, size in random_trace(seed, 400):
        if size == RELEASE and tensor in addresses:
            transcript.free(tensor)
            real.free(addresses.pop(tensor))
        elif size != RELEASE:
            try:
                transcript.malloc(tensor, size)
            except MemoryError:
                with pytest.raises(SimulatedOutOfMemoryError):
                    real.allocate(size)
            else:
                addresses[tensor] = real.allocate(size)
        assert real.allocated_bytes == transcript.total("used")
        assert real.reserved_bytes == transcript.total("used", "free")
        peak = max(peak, real.reserved_bytes)
    assert real.peak_reserved_bytes == peak
