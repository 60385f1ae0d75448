"""A traced step in the format of ``torch.cuda.memory._snapshot()``, which PyTorch's memory viewer draws.

The viewer is docs.pytorch.org/memory_viz, or ``python -m torch.cuda._memory_viz trace_plot FILE``. It reads pickles
of protocol 2 to 4 that consist of dicts, lists, tuples, texts and integers.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from tuner.estimation.allocator.pools import MIN_BLOCK_SIZE, round_size
from tuner.estimation.allocator.replay import RELEASE
from tuner.estimation.tracing.trace import Trace
from tuner.machine.atomic_files import replacing

PROTOCOL = 4  # the highest one that the viewer reads
Entry = dict[str, Any]

# The viewer's colours and legend are of the entries' categories, of which one must be "unknown", or it stops.
_LEGEND: Entry = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}


def write_snapshot(trace: Trace, file: Path) -> None:
    """Writes the snapshot as a whole or, if an OSError is raised, not at all."""
    with replacing(file) as content:
        pickle.dump(to_snapshot(trace), content, protocol=PROTOCOL)


def to_snapshot(trace: Trace) -> Entry:
    """The snapshot of a trace: its allocations and releases, without the segments that hold them.

    Sizes are in bytes, as requested. No two allocations have the same address. The first frame of an allocation is
    its category, then come the operator and the calls if the trace has its origins.
    """
    entries: list[Entry] = []
    live: dict[int, Entry] = {}  # the allocations by id
    address = MIN_BLOCK_SIZE  # of the next allocation
    for key, size in trace.events:
        if size == RELEASE:
            if key in live:
                released = live.pop(key)
                entries += [{**released, "action": action} for action in ("free_requested", "free_completed")]
        elif key >= 0 and size:
            category = trace.categories[key]
            calls = (("category", 0, category), *trace.origins.get(key, ()))
            frames = [{"filename": file, "line": line, "name": name} for file, line, name in calls]
            live[key] = {**_LEGEND, "action": "alloc", "addr": address, "size": size, "frames": frames}
            live[key]["category"] = category
            entries.append(live[key])
            address += round_size(size)
    return {"segments": [], "device_traces": [[*entries, _LEGEND]], "external_annotations": []}
