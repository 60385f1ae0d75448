"""What a piece of a training step takes from torch's allocator on the emulated card, and what its trace says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.support.recorded_events import events_from_trace
from tuner.estimation.allocator_pools import round_size
from tuner.estimation.caching_allocator import RELEASE, Event
from tuner.estimation.cards import find_card
from tuner.estimation.tracing.tracer import tracing

Make = Callable[[str], Callable[[], object]]
"""A device → what runs on it; tensors that exist before it runs do not count."""

NEGLIGIBLE = 4096  # results of one number, semaphores, and the smallest temporaries of CUB


class Taken(NamedTuple):
    """The blocks of a run."""

    blocks: Counter[int]  # how many of each size, without negligible ones
    peak: int  # in bytes, of these


def on_card(make: Make) -> Taken:
    """What the allocator records."""
    torch.manual_seed(0)
    run = make("cuda")
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        kept = run()
        recorded = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(None)
    del kept
    return _taken(events_from_trace(recorded))


def traced(make: Make) -> Taken:
    """What the trace records for the same card; cuBLAS' workspaces are there already."""
    torch.manual_seed(0)
    card = find_card(torch.cuda.get_device_name())
    with tracing("cuda", card) as tracker:
        with tracker.paused():
            run = make("cpu")
        result = run()
        events, categories = list(tracker.events), dict(tracker.categories)
        del result
    released = {key for key, size in events if size == RELEASE}
    kept = {key for key, category in categories.items() if category == "workspace"} - released
    ignored = kept | {key for key, category in categories.items() if category == "data"}
    return _taken([event for event in events if event[0] not in ignored])


def warm_up() -> None:
    """The workspaces of forward and backward pass."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.nn.Linear(8, 8, device="cuda", dtype=dtype)
        layer(torch.ones(4, 8, device="cuda", dtype=dtype, requires_grad=True)).sum().backward()


def _taken(events: list[Event]) -> Taken:
    blocks: Counter[int] = Counter()
    live: dict[int, int] = {}
    peak = now = 0
    for key, size in events:
        if size == RELEASE:
            now -= live.pop(key, 0)
        elif round_size(size) > NEGLIGIBLE:
            live[key] = round_size(size)
            blocks[live[key]] += 1
            now += live[key]
            peak = max(peak, now)
    return Taken(blocks, peak)
