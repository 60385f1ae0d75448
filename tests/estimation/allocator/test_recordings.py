"""The simulated allocator against recordings of others' training on real GPUs, which lie beside the checkout."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.estimation.allocator_pools import MIN_BLOCK_SIZE, SMALL_BUFFER, SMALL_SIZE, Pool, round_size, segment_size
from tuner.estimation.caching_allocator import CachingAllocator

RECORDINGS = Path(tuner.__file__).parents[1].parent / "shared/data/gpu"
NAMES = ("transformer_a", "transformer_b", "small_cnn")


class GivenPool(Pool):
    """A pool whose segments lie where the driver put them: at twice their address, so that no two of them touch."""

    def __init__(self, smallest_rest: int) -> None:
        super().__init__(0, smallest_rest)
        self.given: dict[int, list[int]] = defaultdict(list)  # a segment's size -> addresses, next one first

    def grow(self, size: int) -> tuple[int, int, int]:
        segment = segment_size(size)
        address = 2 * self.given[segment].pop(0)
        self.segments[address] = segment
        return address, segment, segment


class Recording:
    """Segments and events as they were; the state before the first event is the last one, undone backwards.

    An event is its action, address, size and stream. All of them are of one stream.
    """

    def __init__(self, name: str) -> None:
        content: dict[str, Any] = json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes()))
        self.events: list[tuple[str, int, int, int]] = content["events"]
        self.segments = {segment["address"]: segment["total_size"] for segment in content["segments"]}
        self.live: dict[int, int] = {}
        for segment in content["segments"]:
            address = segment["address"]
            for size, state in segment["blocks"]:
                if state != "inactive":
                    self.live[address] = size
                address += size
        for action, address, size, _ in reversed(self.events):
            if action == "alloc":
                del self.live[address]
            elif action == "free_completed":
                self.live[address] = round_size(size)
            elif action == "segment_alloc":
                del self.segments[address]
            elif action == "segment_free":
                self.segments[address] = size

    def place(self, address: int) -> int:
        """Where the simulation has an address of the segments that there are now."""
        bases = sorted(self.segments)
        return bases[bisect_right(bases, address) - 1] + address


class Simulation:
    """The allocator with a recording's first state."""

    def __init__(self, recording: Recording) -> None:
        self.allocator = CachingAllocator()
        self.small, self.large = GivenPool(MIN_BLOCK_SIZE), GivenPool(SMALL_SIZE + MIN_BLOCK_SIZE)
        self.allocator._small, self.allocator._large = self.small, self.large
        for base, size in recording.segments.items():
            self._add(base, size, sorted(at for at in recording.live if base <= at < base + size), recording.live)
        self.allocator.peak_reserved_bytes = self.allocator.reserved_bytes
        for action, address, size, _ in recording.events:
            if action == "segment_alloc":
                self.pool(size).given[size].append(address)

    def pool(self, segment: int) -> GivenPool:
        return self.small if segment == SMALL_BUFFER else self.large

    def _add(self, base: int, size: int, starts: list[int], live: dict[int, int]) -> None:
        pool, end = self.pool(size), base + size
        pool.segments[2 * base] = size
        self.allocator.reserved_bytes += size
        free = base
        for start, following in pairwise([*starts, end]):
            if free < start:
                pool.add(base + free, start - free)
            free = start + live[start]
            if following - free < pool.smallest_rest:  # too small a rest to be a block of its own
                free = following
            self.allocator._live[base + start] = free - start, pool
        if free < end:
            pool.add(base + free, end - free)

    def release(self, address: int, size: int) -> None:
        """The driver gets a segment back, which must be one free block."""
        pool = self.pool(size)
        pool.remove(2 * address, size)
        assert pool.segments.pop(2 * address) == size
        self.allocator.reserved_bytes -= size


@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"{RECORDINGS} does not exist")
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_training_reserves_what_it_did_and_places_each_block_where_it_was(name: str) -> None:
    recording = Recording(name)
    simulation = Simulation(recording)
    allocator, peak = simulation.allocator, sum(recording.segments.values())
    found = {address: recording.place(address) for address in recording.live}
    for action, address, size, _ in recording.events:
        if action == "segment_alloc":
            recording.segments[address] = size
        elif action == "segment_free":
            del recording.segments[address]
            simulation.release(address, size)
        elif action == "alloc":
            found[address] = allocator.allocate(size)
            assert found[address] == recording.place(address)
        elif action == "free_completed":
            allocator.free(found.pop(address))
        peak = max(peak, sum(recording.segments.values()))
    assert allocator.peak_reserved_bytes == pytest.approx(peak, rel=0.001)
    assert allocator.reserved_bytes == pytest.approx(sum(recording.segments.values()), rel=0.001)
