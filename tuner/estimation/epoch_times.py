"""How long an epoch takes, by what trials of earlier studies on the device took.

They are told apart by their traced footprints, to the byte. One that has not run is taken to follow a power law

    seconds of a step = a · (bytes of activations, workspace and fragmentation) ^ b

that is fitted to those that have. The seconds of a step are those of an epoch over its steps, evaluation included.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tuner.estimation.calibration import Sample, to_sample
from tuner.trial import Config, MemoryEstimate
from tuner.workloads.base import Trainable
from tuner.workloads.protocols import training_samples

EXPONENTS = (0.5, 2.0)  # products of matrices take time as width squared, and memory as width
LEAST_RATIO = 1.2  # the exponent is fitted to pairs whose activations differ by this factor
MOST_OFF = 2.0  # by which a sample may be off the law, and a footprint beyond all of them
MICROSECOND = 1e-6


@dataclass(frozen=True)
class StepTime:
    """One trial that has run: both parts of its uncalibrated estimate, and how long its steps took."""

    exact_bytes: int
    activation_bytes: int
    step_seconds: float

    @classmethod
    def of(cls, raw: MemoryEstimate, epoch_seconds: float, steps: int) -> StepTime:
        """Of a trial with so many steps in an epoch."""
        parts = to_sample(raw, 0)
        return cls(parts.exact_bytes, parts.activation_bytes, epoch_seconds / steps)

    @classmethod
    def from_row(cls, row: Sample) -> StepTime:
        """As ``to_row`` has written it."""
        return cls(row.exact_bytes, row.activation_bytes, row.peak_bytes * MICROSECOND)

    def to_row(self) -> Sample:
        """Its row in the calibration's file, which has microseconds in the place of a peak."""
        return Sample(self.exact_bytes, self.activation_bytes, math.ceil(self.step_seconds / MICROSECOND))

    @property
    def footprint(self) -> tuple[int, int]:
        """What tells configurations apart."""
        return self.exact_bytes, self.activation_bytes


def can_be_recorded(raw: MemoryEstimate) -> bool:
    """Whether an uncalibrated estimate is the same each time, so that it tells configurations apart."""
    return raw.method in ("traced", "static")


def steps_in_epoch(workload: Trainable, config: Config, data: object) -> int:
    """Training samples over the batch size; 1 where either is unknown."""
    size = config.get(workload.memory_scales_with or "")
    samples = training_samples(workload, data)
    return math.ceil(samples / size) if samples and isinstance(size, int) and size > 0 else 1


def recorded(known: Sequence[StepTime], raw: MemoryEstimate, steps: int) -> float | None:
    """The seconds of an epoch of a configuration that has run; None if it has not."""
    asked = StepTime.of(raw, 0.0, steps).footprint
    found = next((each for each in known if each.footprint == asked), None)
    return found.step_seconds * steps if found else None


def predicted(known: Sequence[StepTime], raw: MemoryEstimate, steps: int) -> float | None:
    """The same, and of one that has not run by the power law; None where that does not hold for those that have."""
    if (found := recorded(known, raw, steps)) is not None:
        return found
    asked = StepTime.of(raw, 0.0, steps).activation_bytes
    usable = [each for each in known if each.activation_bytes and each.step_seconds]
    if not usable or not asked:
        return None
    points = [(math.log(each.activation_bytes), math.log(each.step_seconds)) for each in usable]
    slopes = [
        (second[1] - first[1]) / (second[0] - first[0])
        for first, second in combinations(points, 2)
        if abs(second[0] - first[0]) > math.log(LEAST_RATIO)
    ]
    exponent = min(max(statistics.median(slopes), EXPONENTS[0]), EXPONENTS[1]) if slopes else 1.0
    factor = statistics.median(seconds - exponent * size for size, seconds in points)
    off = max(abs(seconds - exponent * size - factor) for size, seconds in points)
    sizes, size = [size for size, _ in points], math.log(asked)
    beyond = max(min(sizes) - size, size - max(sizes))
    if max(off, beyond) > math.log(MOST_OFF):
        return None
    return math.exp(factor + exponent * size) * steps
