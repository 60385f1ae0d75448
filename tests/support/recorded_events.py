"""Events of a real run on CUDA, for the simulated allocator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from tuner.estimation.caching_allocator import RELEASE, Event


class SnapshotEvent(TypedDict):
    """The used fields of an entry of ``torch.cuda.memory._snapshot()["device_traces"][device]``.

    Sizes are as requested, before rounding.
    """

    action: str
    addr: int
    size: int
    stream: int


def events_from_trace(trace: Iterable[SnapshotEvent], *, stream: int | None = None) -> list[Event]:
    """The events of a real run for ``replay``, from one list of ``torch.cuda.memory._snapshot()["device_traces"]``.

    ``_record_memory_history`` must have started before the process's first CUDA tensor, as blocks from before are
    ignored. A block is released at its ``free_completed``, when it can be reused. The allocator's own actions
    (``segment_…``, ``oom``) are skipped: the replay repeats them, but not the program's ``empty_cache``. Only blocks
    of ``stream`` count; with None, a trace of several streams raises ``ValueError``.
    """
    events: list[Event] = []
    live: dict[int, int] = {}
    streams: set[int] = set()
    for entry in trace:
        action, address = entry["action"], entry["addr"]
        if action == "alloc" and stream in (None, entry["stream"]):
            streams.add(entry["stream"])
            live[address] = len(events)  # unique, unlike the address
            events.append((live[address], entry["size"]))
        elif action == "free_completed" and address in live:
            events.append((live.pop(address), RELEASE))
    if len(streams) > 1:
        raise ValueError(f"blocks of streams {sorted(streams)}: a replay has one; choose it with stream=")
    return events
