"""What trials turned out to need, kept per workload, device and torch version, to correct later estimates.

Weights, gradients, optimizer state and data are counted exactly, so only two numbers are fitted:

    peak = context + exact parts + slope · (activations, workspace, fragmentation)

and the errors that remain give the margin. The file is small and plain: ``calibration.json`` in the user's cache.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from tuner.errors import InputError
from tuner.trial import MemoryEstimate

FILE = "calibration.json"
KEPT_SAMPLES = 100
QUANTILE = 0.95
LEAST_MARGIN = 0.02
# With fewer samples than this the quantile of their errors says little: the margin is then at least that of no
# calibration.
FEW_SAMPLES = 5
UNCALIBRATED_MARGIN = 0.10
SLOPES = (0.5, 3.0)  # on the CPU the heap keeps what is freed, so a process may take twice its tensors
# Theil-Sen takes the slopes between all pairs: only pairs that are far enough apart say something.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class Sample:
    """One finished step or trial: what was predicted in two parts, and what its process took. In bytes."""

    exact_bytes: int
    activation_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Calibration:
    """The fitted correction.

    Attributes:
        context_bytes: what a process takes beside its tensors.
        slope: what activations are multiplied by.
        margin: the share by which a need exceeds its estimate: a quantile of the errors that remain.
        samples: how many it was fitted to.
    """

    context_bytes: int
    slope: float
    margin: float
    samples: int


def fit(samples: Sequence[Sample]) -> Calibration:
    """Fits context and slope by Theil-Sen (the median of the slopes between pairs), which outliers hardly move.

    Where the samples' activations are too alike to show a slope, it is 1. The margin is the conformal 95 %
    quantile of the relative errors, at least 2 %, and at least 10 % with fewer than five samples.

    Args:
        samples: at least one.
    """
    rests = [sample.peak_bytes - sample.exact_bytes for sample in samples]
    activations = [sample.activation_bytes for sample in samples]
    spread = LEAST_SPREAD * statistics.median(sample.peak_bytes for sample in samples)
    slopes = [
        (rests[i] - rests[j]) / (activations[i] - activations[j])
        for i, j in combinations(range(len(samples)), 2)
        if abs(activations[i] - activations[j]) > spread
    ]
    slope = min(max(statistics.median(slopes), SLOPES[0]), SLOPES[1]) if slopes else 1.0
    context = max(0.0, statistics.median(rest - slope * part for rest, part in zip(rests, activations, strict=True)))
    predicted = [context + sample.exact_bytes + slope * sample.activation_bytes for sample in samples]
    errors = [sample.peak_bytes / guess - 1 for sample, guess in zip(samples, predicted, strict=True)]
    least = UNCALIBRATED_MARGIN if len(samples) < FEW_SAMPLES else LEAST_MARGIN
    return Calibration(int(context), slope, max(least, _quantile(errors)), len(samples))


def apply(estimate: MemoryEstimate, calibration: Calibration) -> MemoryEstimate:
    """The estimate with the calibration's context, slope and margin."""
    scaled = {
        name: round(calibration.slope * getattr(estimate, name))
        for name in ("activation_bytes", "workspace_bytes", "fragmentation_bytes")
    }
    return replace(
        estimate,
        **scaled,
        context_bytes=calibration.context_bytes,
        margin=calibration.margin,
        method=f"{estimate.method}, calibrated",
    )


def to_sample(estimate: MemoryEstimate, peak_bytes: int) -> Sample:
    """A sample from an estimate that is not calibrated and the peak that was measured."""
    exact = estimate.parameter_bytes + estimate.gradient_bytes + estimate.optimizer_bytes + estimate.data_bytes
    rest = estimate.activation_bytes + estimate.workspace_bytes + estimate.fragmentation_bytes
    return Sample(exact, rest, peak_bytes)


def key(workload: str, device: str, expandable_segments: bool = False) -> str:
    """What samples are kept under: workload, device, torch version and the allocator's option."""
    from importlib import metadata

    option = " | expandable segments" if expandable_segments else ""
    return f"{workload} | {device} | torch {metadata.version('torch')}{option}"


def load(name: str, folder: Path | None = None) -> Calibration | None:
    """The calibration under a key; None if there is none.

    Raises:
        InputError: the file is damaged.
    """
    samples = _read(_path(folder)).get(name)
    return fit(samples) if samples else None


def record(name: str, samples: Sequence[Sample], folder: Path | None = None) -> Path:
    """Adds samples under a key, the latest hundred of which are kept; returns the file.

    Raises:
        InputError: the file is damaged or cannot be written.
    """
    path = _path(folder)
    content = _read(path)
    content[name] = [*content.get(name, []), *samples][-KEPT_SAMPLES:]
    listed = {key: [[s.exact_bytes, s.activation_bytes, s.peak_bytes] for s in kept] for key, kept in content.items()}
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(listed, indent=1))
        partial.replace(path)
    except OSError as error:
        raise InputError(f"the calibration {path} cannot be written: {error.strerror}") from error
    return path


def _path(folder: Path | None) -> Path:
    if folder is None:
        import platformdirs

        folder = Path(platformdirs.user_cache_dir("tuner"))
    return folder / FILE


def _read(path: Path) -> dict[str, list[Sample]]:
    try:
        content = json.loads(path.read_text())
        return {name: [Sample(*map(int, row)) for row in rows] for name, rows in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"the calibration {path} is damaged ({error}): delete it") from error


def _quantile(errors: Sequence[float]) -> float:
    """The conformal quantile: of n errors the ⌈(n + 1) · 0.95⌉-th smallest, or the largest if there are too few."""
    rank = min(len(errors), math.ceil((len(errors) + 1) * QUANTILE))
    return sorted(errors)[rank - 1]
