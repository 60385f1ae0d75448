"""The recorded allocations of a step, the estimate from them, and their form for PyTorch's memory viewer."""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from tuner.errors import joined
from tuner.estimation.allocator_pools import MIN_BLOCK_SIZE, round_size
from tuner.estimation.caching_allocator import RELEASE, Event, largest_peaks, least_capacity
from tuner.estimation.calibration import UNCALIBRATED_MARGIN
from tuner.estimation.overheads import CONTEXT_BYTES, HEAP_SLACK
from tuner.machine.allocator_settings import allocator_settings
from tuner.machine.caps import MMAP_THRESHOLD_BYTES
from tuner.machine.safe_files import replacing
from tuner.trial import MemoryEstimate

# Others measured 26 % more for a ResNet-50, 9 % for a Swin and 96 % for a ResNet-18 than a trace without workspaces
# (GPUMemNet, arXiv 2602.17817).
GUESS_MARGIN = 0.30
GUESS = (
    "workspaces that only cuDNN or cuSPARSE knows, and sizes that values decide (the largest), are a guess, "
    f"with a margin of {GUESS_MARGIN:.0%} at first"
)
Category: TypeAlias = Literal["parameters", "gradients", "optimizer", "activations", "data", "workspace"]
DeviceKind: TypeAlias = Literal["cpu", "cuda"]
Origin: TypeAlias = tuple[tuple[str, int, str], ...]
"""Where an allocation comes from: (file, line, function) of each call, the innermost first."""
PROTOCOL = 4  # the highest one that the viewer reads
Entry = dict[str, object]

# The viewer's colours and legend are of the entries' categories, of which one must be "unknown", or it stops.
_LEGEND: Entry = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}


@dataclass(frozen=True)
class Trace:
    """Every allocation and release of a step, in order."""

    events: tuple[Event, ...]  # for ``tuner.estimation.caching_allocator``; ids are unique
    categories: Mapping[int, Category]  # by id
    origins: Mapping[int, Origin] = field(default_factory=dict)  # by id, where they were asked for
    has_guess: bool = False  # for workspaces that only cuDNN or cuSPARSE knows, or sizes that values decide
    parameters: int = 0  # how many numbers the model's parameters have
    host_bytes: int = 0  # of modules that are never trained: the host has their weights, offloaded or not

    def peak_bytes(self) -> int:
        """The peak of the allocated bytes without rounding, which is what counts on the CPU."""
        return _peak(self.events)[0]

    def parts_at_peak(self) -> dict[Category, int]:
        """The bytes of each category at the first peak."""
        live: dict[int, int] = {}
        for key, size in self.events[: _peak(self.events)[1]]:
            if key < 0:
                continue
            if size == RELEASE:
                del live[key]
            else:
                live[key] = size
        parts: dict[Category, int] = dict.fromkeys(get_args(Category), 0)
        for key, size in live.items():
            parts[self.categories[key]] += size
        return parts

    def to_estimate(self, device_kind: DeviceKind, expandable_segments: bool = False) -> MemoryEstimate:
        """The uncalibrated estimate.

        On CUDA, a replay gives the reserved bytes. Those beyond the tensors' peak are fragmentation, of which a cap
        gives some back. It has the user's settings of the allocator (``allocator_settings``, which raises errors). On
        the CPU, the estimate is the tensors' peak and the heap's gaps.
        """
        parts = self.parts_at_peak()
        allocated = reserved = sum(parts.values())
        heap = cached = 0
        note = GUESS if self.has_guess else ""
        if device_kind == "cuda":
            settings = allocator_settings(expandable_segments)
            peaks = largest_peaks(self.events, settings)
            reserved = peaks.peak_reserved_bytes
            cached = reserved - least_capacity(self.events, peaks, settings)
            note = joined(note, settings.note)
        else:  # each larger tensor has its own mapping, outside the heap
            heap = _peak((key, size) for key, size in self.events if size < MMAP_THRESHOLD_BYTES)[0]
        return MemoryEstimate(
            method="traced",
            parameter_bytes=parts["parameters"],
            gradient_bytes=parts["gradients"],
            optimizer_bytes=parts["optimizer"],
            activation_bytes=parts["activations"],
            data_bytes=parts["data"],
            workspace_bytes=parts["workspace"],
            fragmentation_bytes=reserved - allocated,
            cached_bytes=cached,
            heap_bytes=round(HEAP_SLACK * heap),
            context_bytes=CONTEXT_BYTES[device_kind],
            margin=GUESS_MARGIN if self.has_guess else UNCALIBRATED_MARGIN,
            note=note,
            host_bytes=self.host_bytes if device_kind == "cuda" else 0,
            parameters=self.parameters,
        )


def _peak(events: Iterable[Event]) -> tuple[int, int]:
    """The peak of the allocated bytes, and the number of events up to it."""
    live: dict[int, int] = {}
    now = most = place = 0
    for number, (key, size) in enumerate(events, 1):
        if key < 0:  # no tensor
            continue
        if size == RELEASE:
            now -= live.pop(key, 0)
        else:
            live[key] = size
            now += size
            if now > most:
                most, place = now, number
    return most, place


def write_snapshot(trace: Trace, file: Path) -> None:
    """Writes the snapshot as a whole or, if an OSError is raised, not at all.

    The viewer is docs.pytorch.org/memory_viz, or ``python -m torch.cuda._memory_viz trace_plot FILE``. It reads
    pickles of protocol 2 to 4 that consist of dicts, lists, tuples, texts and integers.
    """
    with replacing(file) as content:
        pickle.dump(to_snapshot(trace), content, protocol=PROTOCOL)


def to_snapshot(trace: Trace) -> Entry:
    """A trace as of ``torch.cuda.memory._snapshot()``: allocations and releases, without the segments that hold them.

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
