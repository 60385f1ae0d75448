"""The recorded allocations of a step, and the estimate from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from tuner.estimation.allocator.replay import RELEASE, Event, largest_peaks, least_capacity
from tuner.estimation.calibration import UNCALIBRATED_MARGIN
from tuner.estimation.overheads import CONTEXT_BYTES, HEAP_SLACK
from tuner.machine.caps import MMAP_THRESHOLD_BYTES
from tuner.trial import MemoryEstimate

# Others measured 26 % more for a ResNet-50, 9 % for a Swin and 96 % for a ResNet-18 than a trace without workspaces
# (GPUMemNet, arXiv 2602.17817).
GUESS_MARGIN = 0.30
GUESS = f"workspaces that only cuDNN or cuSPARSE knows are a guess, with a margin of {GUESS_MARGIN:.0%} at first"
Category: TypeAlias = Literal["parameters", "gradients", "optimizer", "activations", "data", "workspace"]
DeviceKind: TypeAlias = Literal["cpu", "cuda"]
Origin: TypeAlias = tuple[tuple[str, int, str], ...]
"""Where an allocation comes from: (file, line, function) of each call, the innermost first."""


@dataclass(frozen=True)
class Trace:
    """Every allocation and release of a step, in order."""

    events: tuple[Event, ...]  # for ``tuner.estimation.allocator.replay``; ids are unique
    categories: Mapping[int, Category]  # by id
    origins: Mapping[int, Origin] = field(default_factory=dict)  # by id, where they were asked for
    has_guess: bool = False  # for workspaces that only cuDNN or cuSPARSE knows
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
        gives some back. On the CPU, the estimate is the tensors' peak and the heap's gaps.
        """
        parts = self.parts_at_peak()
        allocated = reserved = sum(parts.values())
        heap = cached = 0
        if device_kind == "cuda":
            peaks = largest_peaks(self.events, expandable_segments=expandable_segments)
            reserved = peaks.peak_reserved_bytes
            cached = reserved - least_capacity(self.events, peaks, expandable_segments=expandable_segments)
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
            note=GUESS if self.has_guess else "",
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
