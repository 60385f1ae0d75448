"""The simulated allocator reserves what PyTorch's own would: cases worked out from its source, and properties."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.support.recorded_events import events_from_trace
from tuner.estimation.allocator.caching_allocator import (
    DEFAULT,
    NULL,
    PRIVATE,
    SIDE,
    CachingAllocator,
    SimulatedOutOfMemoryError,
)
from tuner.estimation.allocator.replay import (
    RELEASE,
    AllocatorPeaks,
    Event,
    largest_peaks,
    least_capacity,
    replay,
)

KIB, MIB = 1 << 10, 1 << 20
SEEDS = range(20)


@pytest.mark.parametrize("expandable", [False, True])
def test_streams_and_graphs_share_no_blocks_and_a_graph_keeps_its_own(expandable: bool) -> None:
    allocator = CachingAllocator(expandable_segments=expandable)
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
    allocator = CachingAllocator(expandable_segments=expandable)
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


def test_small_and_large_tensors_never_share_a_segment() -> None:
    assert reserved_for(2 * MIB, KIB) == (2 * MIB + KIB, 22 * MIB)


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


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_merge_whichever_goes_first(order: tuple[int, ...]) -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    for index in order:
        allocator.free(blocks[index])
    (segment,) = allocator.segments()
    assert [block.size_bytes for block in segment.blocks] == [20 * MIB]


def test_blocks_of_two_segments_do_not_merge() -> None:
    allocator = CachingAllocator()
    for block in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.free(block)
    assert [segment.size_bytes for segment in allocator.segments()] == [20 * MIB, 20 * MIB]
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
    peaks = replay(interleaved(4 * MIB, 20), expandable_segments=True)
    assert peaks.peak_reserved_bytes - peaks.peak_allocated_bytes == 40 * MIB


def test_tensors_that_grow_a_little_reuse_an_expandable_segment_only() -> None:
    events = [event for size in range(50, 90, 4) for event in ((size, size * MIB), (size, RELEASE))]
    assert replay(events).peak_reserved_bytes == sum(range(50, 90, 4)) * MIB
    assert replay(events, expandable_segments=True).peak_reserved_bytes == 100 * MIB


def test_an_expandable_segment_grows_from_its_free_end() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    allocator.allocate(15 * MIB)
    second = allocator.allocate(24 * MIB)
    assert (second - allocator.segments()[0].address, allocator.reserved_bytes) == (15 * MIB, 40 * MIB)


def test_an_expandable_segment_prefers_a_larger_block_to_its_growing_end() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    first, _ = allocator.allocate(12 * MIB), allocator.allocate(2 * MIB)
    allocator.free(first)
    # 6 MiB are free at the end, and 12 MiB at the start, where there is no hole behind.
    assert allocator.allocate(5 * MIB) == first


def test_freed_pages_stay_mapped_until_the_cache_is_emptied() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    blocks = [allocator.allocate(30 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    assert allocator.reserved_bytes == 100 * MIB
    allocator.empty_cache()  # of the free 30 to 60 MiB, only 40 to 60 MiB are a whole page
    assert allocator.reserved_bytes == 80 * MIB
    assert [segment.size_bytes for segment in allocator.segments()] == [40 * MIB, 40 * MIB]
    assert allocator.allocate(30 * MIB) == blocks[1]
    assert allocator.reserved_bytes == 100 * MIB


def test_pages_unmapped_one_after_the_other_are_one_hole() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    _, first, second, larger, _ = (allocator.allocate(size * MIB) for size in (30, 50, 20, 60, 20))
    for block in (first, second):
        allocator.free(block)
        allocator.empty_cache()
    allocator.free(larger)
    # 10 MiB are free before a hole of 40 + 20 MiB: with it more room than the 60 MiB block has, which is preferred.
    assert allocator.allocate(5 * MIB) == larger


def test_an_emptied_cache_keeps_segments_in_use() -> None:
    allocator = CachingAllocator()
    kept, freed, whole = (allocator.allocate(size * MIB) for size in (5, 5, 50))
    allocator.free(freed)
    allocator.free(whole)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments()) == (0, [])
    assert allocator.peak_reserved_bytes == 70 * MIB


def test_capacity_releases_cached_segments_before_giving_up() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (80 * MIB, 80 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError, match="do not fit: 83886080 of 104857600 bytes are allocated"):
        allocator.allocate(21 * MIB)
    assert allocator.allocate(20 * MIB) and allocator.reserved_bytes == 100 * MIB


def test_fragmentation_can_exceed_a_capacity_that_the_tensors_would_fit() -> None:
    peaks = replay(interleaved(4 * MIB, 20), capacity_bytes=140 * MIB)
    assert peaks.peak_reserved_bytes == 140 * MIB
    with pytest.raises(SimulatedOutOfMemoryError) as caught:
        replay(interleaved(4 * MIB, 20), capacity_bytes=120 * MIB)
    assert caught.value.allocated_bytes + caught.value.requested_bytes < 120 * MIB


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


def run(events: list[Event], allocator: CachingAllocator, look: Callable[[int], None]) -> None:
    """Drive an allocator through a trace, leaving out what does not fit, with a ``look`` after every event."""
    addresses: dict[int, int] = {}
    for number, (tensor, size) in enumerate(events):
        if size == RELEASE:
            allocator.free(addresses.pop(tensor, NULL))
        else:
            try:
                addresses[tensor] = allocator.allocate(size)
            except SimulatedOutOfMemoryError:
                continue
        look(number)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("capacity", [None, 200 * MIB])
def test_blocks_tile_their_segments_and_the_sums_agree(seed: int, expandable: bool, capacity: int | None) -> None:
    allocator = CachingAllocator(expandable_segments=expandable, capacity_bytes=capacity)

    def look(number: int) -> None:
        assert allocator.peak_allocated_bytes >= allocator.allocated_bytes
        assert allocator.peak_reserved_bytes >= allocator.reserved_bytes >= allocator.allocated_bytes
        if number % 97:
            return
        segments = allocator.segments()
        blocks = [block for segment in segments for block in segment.blocks]
        assert all(a.address + a.size_bytes <= b.address for a, b in pairwise(blocks))
        assert sum(segment.size_bytes for segment in segments) == allocator.reserved_bytes
        assert sum(block.size_bytes for block in blocks if block.allocated) == allocator.allocated_bytes
        for segment in segments:
            assert segment.size_bytes % (2 * MIB) == 0
            free = [not block.allocated for block in segment.blocks]
            assert not any(a and b for a, b in pairwise(free)), "free neighbours were not merged"

    run(random_trace(seed), allocator, look)
    assert allocator.allocated_bytes == 0
    assert all(len(segment.blocks) == 1 for segment in allocator.segments())
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments()) == (0, [])


@pytest.mark.parametrize("seed", SEEDS)
def test_two_replays_are_equal(seed: int) -> None:
    events = random_trace(seed)
    assert replay(events) == replay(iter(events))


@pytest.mark.parametrize("seed", SEEDS)
def test_without_releases_an_expandable_segment_reserves_the_pages_needed_and_no_more(seed: int) -> None:
    sizes = [-(-size // 512) * 512 for _, size in random_trace(seed, 200) if size != RELEASE]
    small = sum(size for size in sizes if size <= MIB)
    large = sum(sizes) - small
    expected = -(-small // (2 * MIB)) * 2 * MIB + -(-large // (20 * MIB)) * 20 * MIB
    assert reserved_for(*sizes, expandable=True) == (small + large, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stack_of_tensors_in_an_expandable_segment_reserves_its_height_in_pages(seed: int) -> None:
    rng, stack, events = random.Random(seed), [], []
    for tensor in range(500):
        events.append((tensor, rng.randrange(MIB + 1, 30 * MIB)))
        stack.append(tensor)
        while stack and rng.random() < 0.48:
            events.append((stack.pop(), RELEASE))
    peaks = replay(events, expandable_segments=True)
    assert peaks.peak_reserved_bytes == -(-peaks.peak_allocated_bytes // (20 * MIB)) * 20 * MIB


@pytest.mark.parametrize("seed", SEEDS)
def test_a_capacity_of_the_peak_itself_changes_nothing(seed: int) -> None:
    events = random_trace(seed)
    peaks = replay(events)
    assert replay(events, capacity_bytes=peaks.peak_reserved_bytes) == peaks


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
        CachingAllocator(expandable_segments=expandable, capacity_bytes=capacity),
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
