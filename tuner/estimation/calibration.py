"""What trials turned out to need, kept per workload, device and torch version, to correct later estimates.

Weights, gradients, optimizer state and data are counted exactly, so only two numbers are fitted:

    peak = context + exact parts + slope · (activations, workspace, fragmentation)

and the errors that remain give the headroom. The file is small and plain: ``calibration.json`` in the user's cache.
"""

from __future__ import annotations

import fcntl
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from tuner.errors import InputError
from tuner.machine.atomic_files import replacing
from tuner.trial import MB, MemoryEstimate

FILE = "calibration.json"
KEPT_SAMPLES = 100
QUANTILE = 0.95
CALIBRATED_MARGIN = 0.02
# Without a calibration; also with fewer samples than this, and for what is larger than all of them.
UNCALIBRATED_MARGIN = 0.10
FEW_SAMPLES = 5
# What a CPU trial's need has on top of its reserved bytes, so that it does not meet its cap, and what it has above
# the context at least: 10 to 20 MiB are libraries' and not its tensors', and the worker's earlier trials left gaps.
HEADROOM_BYTES = 32 * MB
LEAST_BYTES = 64 * MB
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
    """The fitted correction."""

    context_bytes: int  # what a process takes beside its tensors
    slope: float  # what activations, workspace and fragmentation are multiplied by
    headroom_bytes: int  # a quantile of the errors that remain: what a need has on top of its estimate
    largest_bytes: int  # the largest sample without its context, by this fit; beyond it nothing is known
    samples: int  # how many it was fitted to


def fit(samples: Sequence[Sample]) -> Calibration:
    """Fits context and slope by Theil-Sen (the median of the slopes between pairs), which outliers hardly move.

    Where the samples' activations are too alike to show a slope, it is 1. The headroom is the conformal 95 % quantile
    of the errors in bytes: most of them do not grow with the footprint.

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
    reserved = [sample.exact_bytes + slope * sample.activation_bytes for sample in samples]
    errors = [sample.peak_bytes - context - guess for sample, guess in zip(samples, reserved, strict=True)]
    return Calibration(int(context), slope, max(0, int(_quantile(errors))), int(max(reserved)), len(samples))


def apply(estimate: MemoryEstimate, calibration: Calibration) -> MemoryEstimate:
    """The estimate with the calibration's context, slope and headroom, and a margin that fits what is known.

    The margin is 2 %, or the 10 % of no calibration where there are fewer than five samples or the estimate is more
    than a tenth larger than all of them. The allowance for the heap is dropped, as the slope knows better. An
    estimate with a headroom keeps at least what ``with_headroom`` gives: with the same configuration the gaps in the
    heap were seen to differ by half of that allowance.
    """
    scaled = {
        name: round(calibration.slope * getattr(estimate, name))
        for name in ("activation_bytes", "workspace_bytes", "fragmentation_bytes")
    }
    corrected = replace(
        estimate,
        **scaled,
        heap_bytes=0,
        context_bytes=calibration.context_bytes,
        headroom_bytes=calibration.headroom_bytes,
        margin=CALIBRATED_MARGIN,
        method=f"{estimate.method}, calibrated",
    )
    beyond = corrected.reserved_bytes > 1.1 * calibration.largest_bytes
    if beyond or calibration.samples < FEW_SAMPLES:
        corrected = replace(corrected, margin=UNCALIBRATED_MARGIN)
    return with_headroom(corrected, estimate.heap_bytes // 2) if estimate.headroom_bytes else corrected


def with_headroom(estimate: MemoryEstimate, gaps_bytes: int = 0) -> MemoryEstimate:
    """The estimate of a CPU trial with a headroom of at least ``HEADROOM_BYTES``, and ``LEAST_BYTES`` in all.

    Args:
        estimate: any; a headroom that it has stays if it is larger.
        gaps_bytes: what gaps in the heap differ by from run to run, if the estimate has no allowance for them.
    """
    reserved = math.ceil(estimate.reserved_bytes * (1 + estimate.margin))
    least = max(HEADROOM_BYTES + gaps_bytes, LEAST_BYTES - reserved)
    return replace(estimate, headroom_bytes=max(estimate.headroom_bytes, least))


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
    samples = load_samples(name, folder)
    return fit(samples) if samples else None


def load_samples(name: str, folder: Path | None = None) -> list[Sample]:
    """What is kept under a key, the latest last; empty if there is nothing.

    Raises:
        InputError: the file is damaged.
    """
    return _read(_path(folder)).get(name, [])


def record(name: str, samples: Sequence[Sample], folder: Path | None = None) -> Path:
    """Adds samples under a key; returns the file.

    Of one footprint only the largest peak is kept, so that many alike do not push out the others, and of all
    footprints the latest hundred.

    Raises:
        InputError: the file is damaged or cannot be written.
    """
    path = _path(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two studies may end at one moment
            content = _read(path)
            content[name] = _distinct([*content.get(name, []), *samples])[-KEPT_SAMPLES:]
            _write(path, content)
    except OSError as error:
        raise InputError(f"the calibration {path} cannot be written: {error.strerror}") from error
    return path


def _distinct(samples: Sequence[Sample]) -> list[Sample]:
    """One sample for each footprint, with its largest peak, in the order in which they were last seen."""
    found: dict[tuple[int, int], Sample] = {}
    for sample in samples:
        footprint = sample.exact_bytes, sample.activation_bytes
        known = found.pop(footprint, sample)
        found[footprint] = max(sample, known, key=lambda each: each.peak_bytes)
    return list(found.values())


def _write(path: Path, content: Mapping[str, Sequence[Sample]]) -> None:
    listed = {key: [[s.exact_bytes, s.activation_bytes, s.peak_bytes] for s in kept] for key, kept in content.items()}
    with replacing(path) as partial:
        partial.write_text(json.dumps(listed, indent=1))


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
