"""Predicts the seconds of an epoch from steps of earlier studies on the device, with ``placement/seconds.py``.

Steps are samples of the calibration's file, with microseconds in place of a peak. The seconds of a step are those of
an epoch over its steps, evaluation included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.estimation.calibration import Sample, to_sample
from tuner.placement.seconds import Pace
from tuner.trial import Config, MemoryEstimate
from tuner.workloads.base import Trainable
from tuner.workloads.protocols import training_samples

MOST_BEYOND = 2.0  # the factor by which activations may lie outside the range of those timed
MICROSECOND = 1e-6


def can_be_recorded(raw: MemoryEstimate) -> bool:
    """Whether an uncalibrated estimate is deterministic, so that it identifies a configuration."""
    return raw.method in ("traced", "static")


def steps_in_epoch(workload: Trainable, config: Config, data: object) -> int:
    """The number of steps in an epoch: training samples over batch size; 1 if either is unknown."""
    size = config.get(workload.memory_scales_with or "")
    samples = training_samples(workload, data)
    return math.ceil(samples / size) if samples and isinstance(size, int) and size > 0 else 1


def step_sample(raw: MemoryEstimate, epoch_seconds: float, steps: int) -> Sample:
    """The sample of a configuration with so many steps in an epoch, by its uncalibrated estimate."""
    return to_sample(raw, math.ceil(epoch_seconds / steps / MICROSECOND))


def predicted(samples: Sequence[Sample], raw: MemoryEstimate, steps: int) -> float | None:
    """The seconds of a configuration's epoch: as measured, or else predicted by its activations.

    None if its activations lie far outside the range of those timed.
    """
    asked = to_sample(raw, 0)
    size = asked.activation_bytes
    for sample in samples:
        if (sample.exact_bytes, sample.activation_bytes) == (asked.exact_bytes, size):
            return sample.peak_bytes * MICROSECOND * steps
    pace = Pace((sample.activation_bytes, sample.peak_bytes) for sample in samples if sample.activation_bytes)
    if not pace.sizes or not pace.sizes[0] / MOST_BEYOND <= size <= pace.sizes[-1] * MOST_BEYOND:
        return None
    return (pace.seconds(size) or 0.0) * MICROSECOND * steps
