"""The simulated allocator under the user's settings, and PyTorch's own on the emulated card: equal to the byte."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import torch

from tuner.estimation import allocator_pools
from tuner.estimation.allocator_pools import Pool, segment_size
from tuner.estimation.caching_allocator import CachingAllocator, SimulatedOutOfMemoryError
from tuner.machine.allocator_settings import ALLOCATOR_VARIABLE, AllocatorSettings, allocator_settings

MIB = 1 << 20
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:33,max_non_split_rounding_mb:24",
    "garbage_collection_threshold:0.4",
    "large_segment_size_mb:30",
    "large_segment_size_mb:30,expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:16,4:8,16:2,>:1]",
    "garbage_collection_threshold:0.6,max_split_size_mb:24,roundup_power2_divisions:[8:2]",
    "expandable_segments:True,max_split_size_mb:21,roundup_power2_divisions:8",
)
USUAL = (
    "expandable_segments:False,large_segment_size_mb:20,max_non_split_rounding_mb:20"  # which torch does not reset
)
SEQUENCES = int(os.environ.get("ALLOCATOR_SEQUENCES", "2"))  # under each setting

Step = tuple[int, int]  # the number of a tensor, and its size or 0 to release it
State = tuple[int, int] | None  # the allocated and the reserved bytes; None if memory ran out


def sequence(seed: int, count: int = 300) -> list[Step]:
    """Sizes over all classes, some of them often, released in a random order."""
    rng = random.Random(seed)
    common = [int(2 ** rng.uniform(8, 26)) for _ in range(8)]
    live: list[int] = []
    steps: list[Step] = []
    for tensor in range(count):
        steps.append((tensor, rng.choice(common) if rng.random() < 0.4 else int(2 ** rng.uniform(8, 26.5))))
        live.append(tensor)
        while live and rng.random() < 0.48:
            steps.append((live.pop(rng.randrange(len(live))), 0))
    return steps


def really(steps: list[Step]) -> tuple[list[State], list[int]]:
    """What PyTorch's allocator has after each step, and the addresses of its segments in their order."""
    memory, addresses, states = torch.cuda.memory, dict[int, int](), list[State]()
    memory._record_memory_history("all", context=None)
    for tensor, size in steps:
        try:
            if size:
                addresses[tensor] = torch.cuda.caching_allocator_alloc(size)
            elif tensor in addresses:
                torch.cuda.caching_allocator_delete(addresses.pop(tensor))
            stats = torch._C._cuda_memoryStats(0)
            states.append((stats["allocated_bytes"]["all"]["current"], stats["reserved_bytes"]["all"]["current"]))
        except torch.OutOfMemoryError:
            states.append(None)
    events = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(None)
    for address in addresses.values():
        torch.cuda.caching_allocator_delete(address)
    torch.cuda.empty_cache()
    return states, [event["addr"] for event in events if event["action"] == "segment_alloc"]


def simulated(steps: list[Step], settings: AllocatorSettings, capacity: int) -> list[State]:
    allocator, addresses, states = (
        CachingAllocator(settings, capacity_bytes=capacity),
        dict[int, int](),
        list[State](),
    )
    for tensor, size in steps:
        try:
            if size:
                addresses[tensor] = allocator.allocate(size)
            elif tensor in addresses:
                allocator.free(addresses.pop(tensor))
            states.append((allocator.allocated_bytes, allocator.reserved_bytes))
        except SimulatedOutOfMemoryError:
            states.append(None)
    return states


@pytest.fixture
def set_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[AllocatorSettings]:
    """The parameter's settings in PyTorch, and as they are read from the environment."""
    monkeypatch.setenv(ALLOCATOR_VARIABLE, request.param)
    torch.cuda.current_stream().synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch._C._accelerator_setAllocatorSettings(request.param)
    yield allocator_settings()
    torch._C._accelerator_setAllocatorSettings(USUAL)
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.emulated
@pytest.mark.parametrize("set_up", SETTINGS, indirect=True)
def test_every_setting_reserves_what_pytorch_does(set_up: AllocatorSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[int]()

    class GivenPool(Pool):
        """It has the driver's addresses, twice as far from each other, so that no two segments touch."""

        def grow(self, size: int) -> tuple[int, int, int]:
            address, segment = 2 * given.pop(0), segment_size(size, self.settings)
            self.segments[address] = segment
            return address, segment, segment

    monkeypatch.setattr(allocator_pools, "Pool", GivenPool)
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    assert before == (0, 0), "a tensor of another test is still there"
    total = torch.cuda.get_device_properties(0).total_memory
    for seed in range(SEQUENCES):
        capacity = random.Random(seed).choice((250, 600, 1500)) * MIB
        torch.cuda.set_per_process_memory_fraction((capacity + 1) / total)
        states, given[:] = really(sequence(seed))
        assert simulated(sequence(seed), set_up, capacity) == states, f"sequence {seed}"
