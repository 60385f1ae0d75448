"""A traced step in the format of ``torch.cuda.memory._snapshot()``, which PyTorch's memory viewer draws.

The viewer is docs.pytorch.org/memory_viz, or ``python -m torch.cuda._memory_viz trace_plot FILE``. It reads pickles
of protocol 2 to 4 that consist of dicts, lists, tuples, texts and integers.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.estimation.allocator.caching_allocator import NULL, CachingAllocator, Segment
from tuner.estimation.allocator.pools import SMALL_SIZE
from tuner.estimation.allocator.replay import RELEASE, USE, largest_peaks, replay
from tuner.estimation.tracing.trace import Trace
from tuner.machine.atomic_files import replacing

PROTOCOL = 4  # the highest one that the viewer reads
DEVICE = STREAM = 0

Entry = dict[str, Any]


def write_snapshot(trace: Trace, file: Path, *, expandable_segments: bool = False) -> None:
    """Writes the snapshot as a whole or, if an OSError is raised, not at all."""
    with replacing(file) as content:
        pickle.dump(to_snapshot(trace, expandable_segments=expandable_segments), content, protocol=PROTOCOL)


def to_snapshot(trace: Trace, *, expandable_segments: bool = False) -> Entry:
    """The snapshot at the end of a trace for CUDA, with all its events and the segments that these lead to.

    Addresses are the simulated allocator's, in the order that reserves more. Sizes are in bytes, as requested. The
    first frame of an allocation is its category, then come the operator and the calls if the trace has its origins.
    """
    recorder = _Recorder(trace, expandable_segments)
    for key, size in trace.events:
        if key < 0:
            recorder.tell(key, size)
        elif size == RELEASE:
            recorder.free(key)
        else:
            recorder.allocate(key, size)
    return {
        "segments": recorder.segments(),
        "device_traces": [[*recorder.entries, _LEGEND]],
        "allocator_settings": {"expandable_segments": expandable_segments},
        "external_annotations": [],
    }


# The viewer's colours and legend are of the entries' categories, of which one must be "unknown", or it stops.
_LEGEND: Entry = {
    **{"action": "snapshot", "addr": NULL, "size": 0, "stream": STREAM, "frames": []},
    "category": "unknown",
}


class _Recorder:
    """Replays a trace in the simulated allocator, and notes what the real one would note."""

    def __init__(self, trace: Trace, expandable_segments: bool) -> None:
        most = largest_peaks(trace.events, expandable_segments=expandable_segments).peak_reserved_bytes
        ascending = replay(trace.events, expandable_segments=expandable_segments).peak_reserved_bytes
        self.entries: list[Entry] = []
        self._trace = trace
        self._expandable = expandable_segments
        self._allocator = CachingAllocator(expandable_segments=expandable_segments, descending=ascending < most)
        self._live: dict[int, Entry] = {}  # by id, the entry of the allocation
        self._mapped: dict[int, int] = {}  # address -> size of each segment so far
        self._types: dict[int, str] = {}  # by the address of a segment

    def allocate(self, key: int, size: int) -> None:
        """Notes an allocation, after the segment that it needs."""
        reserved = self._allocator.reserved_bytes
        address = self._allocator.allocate(size)
        if address == NULL:
            return
        category = self._trace.categories[key]
        frames = _frames([("category", 0, category), *self._trace.origins.get(key, ())])
        if self._allocator.reserved_bytes > reserved:
            self._grow("small" if size <= SMALL_SIZE else "large", frames)
        self._live[key] = self._note("alloc", address, size, frames, category=category)

    def free(self, key: int) -> None:
        """Notes a release, which the real allocator does in two steps."""
        if entry := self._live.pop(key, None):
            self._allocator.free(entry["addr"])
            for action in ("free_requested", "free_completed"):
                self._note(action, entry["addr"], entry["size"], entry["frames"])

    def tell(self, event: int, value: int) -> None:
        """Passes another event on, and notes which segments or pages this gives back."""
        if event == USE:
            self._allocator.use(value)
            return
        self._allocator.empty_cache()
        left = {segment.address: segment.size_bytes for segment in self._allocator.segments()}
        for address, size in self._mapped.items():
            if (now := left.get(address, 0)) < size:
                action = "segment_unmap" if self._expandable else "segment_free"
                self._note(action, address + now, size - now, [])
        for address in left:  # what lies behind pages that were given back
            self._types.setdefault(address, self._types[max(known for known in self._types if known <= address)])
        self._mapped = left

    def segments(self) -> list[Entry]:
        """The segments at the end."""
        blocks = {entry["addr"]: entry for entry in self._live.values()}
        return [self._segment(segment, blocks) for segment in self._allocator.segments()]

    def _note(self, action: str, address: int, size: int, frames: list[Entry], **more: str) -> Entry:
        entry = {"action": action, "addr": address, "size": size, "stream": STREAM, "frames": frames, **more}
        self.entries.append(entry)
        return entry

    def _grow(self, kind: str, frames: list[Entry]) -> None:
        """Notes what was reserved: a new segment, or further pages at the end of an expandable one."""
        for segment in self._allocator.segments():
            known = self._mapped.get(segment.address, 0)
            if segment.size_bytes > known:
                action = "segment_map" if self._expandable else "segment_alloc"
                self._note(action, segment.address + known, segment.size_bytes - known, frames)
                self._mapped[segment.address] = segment.size_bytes
                self._types.setdefault(segment.address, kind)

    def _segment(self, segment: Segment, blocks: Mapping[int, Entry]) -> Entry:
        listed = [
            {
                "address": block.address,
                "size": block.size_bytes,
                "requested_size": blocks[block.address]["size"] if block.allocated else 0,
                "state": "active_allocated" if block.allocated else "inactive",
                "frames": blocks[block.address]["frames"] if block.allocated else [],
            }
            for block in segment.blocks
        ]
        allocated = sum(block["size"] for block in listed if block["state"] == "active_allocated")
        return {
            "device": DEVICE,
            "address": segment.address,
            "total_size": segment.size_bytes,
            "allocated_size": allocated,
            "active_size": allocated,
            "requested_size": sum(block["requested_size"] for block in listed),
            "stream": STREAM,
            "segment_type": self._types[segment.address],
            "segment_pool_id": (0, 0),
            "is_expandable": self._expandable,
            "frames": [],
            "blocks": listed,
        }


def _frames(calls: Sequence[tuple[str, int, str]]) -> list[Entry]:
    return [{"filename": file, "line": line, "name": name} for file, line, name in calls]
