"""Calibration: measured peaks of earlier trials correct later estimates, per workload, device and torch version.

Weights, gradients, optimizer state and data are counted exactly, so only the context and the slope are fitted:

    peak = context + exact parts + slope · (activations + workspace + fragmentation)

The headroom follows from the residuals. The samples are kept in ``calibration.json`` in the user's cache, and so are
those of other modules under keys of their own: what trials took of a GPU's host, and how long their steps took.
"""

import fcntl
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path

from tuner.errors import InputError, joined
from tuner.machine.safe_files import MOST_BYTES, not_following, regular, replacing
from tuner.trial import MB, RANKS, Config, MemoryEstimate

FILE = "calibration.json"
KEPT_SAMPLES = 100
QUANTILE = 0.95
CALIBRATED_MARGIN = 0.02
UNCALIBRATED_MARGIN = 0.10  # also for a fit to too few samples, and for an estimate larger than all samples
FEW_SAMPLES = 5
# The minimum headroom of a CPU trial, and its minimum need above the context. Libraries take 10 to 20 MiB beside
# the tensors, and the worker's earlier trials leave gaps in the heap.
HEADROOM_BYTES = 32 * MB
LEAST_BYTES = 64 * MB
SLOPES = (0.5, 3.0)  # the CPU's heap keeps freed memory, so a process may take twice the bytes of its tensors
LEAST_SPREAD = 0.05  # the fit uses only pairs whose activations differ by this share of the median peak


@dataclass(frozen=True)
class Sample:
    """One finished step or trial: both parts of its estimate, and its measured peak, in bytes."""

    exact_bytes: int
    activation_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Calibration:
    """The fitted correction."""

    context_bytes: int  # what a process takes beside its tensors
    slope: float  # the factor of activations, workspace and fragmentation
    headroom_bytes: int  # added to an estimate: a quantile of the residuals
    largest_bytes: int  # the largest fitted value without the context; nothing is known beyond it
    samples: int  # their number

    def correct(self, estimate: MemoryEstimate) -> MemoryEstimate:
        """The estimate with this context, slope and headroom.

        What of the context was a guess no longer is, as the note says. The margin is 2 %. It is the estimate's own,
        at least 10 %, if there are fewer than five samples, or if the estimate is over 10 % larger than all of them.
        The slope includes the heap's gaps, so their allowance is dropped. An estimate with a headroom keeps at least
        the minimum, plus half of that allowance: runs of one configuration differ by that much.
        """
        scaled = {
            name: round(self.slope * getattr(estimate, name))
            for name in ("activation_bytes", "workspace_bytes", "fragmentation_bytes", "cached_bytes")
        }
        note = estimate.note.removesuffix(estimate.context_note).removesuffix("; ")
        if estimate.context_note:
            note = joined(note, f"the context is as {self.samples} trials took it, no longer a guess")
        corrected = replace(
            estimate,
            **scaled,
            note=note,
            context_note="",
            heap_bytes=0,
            context_bytes=self.context_bytes,
            headroom_bytes=self.headroom_bytes,
            margin=CALIBRATED_MARGIN,
            method=f"{estimate.method}, calibrated",
        )
        beyond = corrected.reserved_bytes > 1.1 * self.largest_bytes
        if beyond or self.samples < FEW_SAMPLES:
            corrected = replace(corrected, margin=max(UNCALIBRATED_MARGIN, estimate.margin))
        return with_headroom(corrected, estimate.heap_bytes // 2) if estimate.headroom_bytes else corrected


def fit(samples: Sequence[Sample]) -> Calibration:
    """Fits context and slope to at least one sample by Theil-Sen: the median of the slopes between pairs.

    Theil-Sen is robust to outliers. The slope is 1 if the samples' activations are too similar. The headroom is the
    conformal 95 % quantile of the residuals in bytes, as most of them do not grow with the footprint.
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
    return Calibration(int(context), slope, max(0, int(quantile(errors, QUANTILE))), int(max(reserved)), len(samples))


def with_headroom(estimate: MemoryEstimate, gaps_bytes: int = 0) -> MemoryEstimate:
    """A CPU trial's estimate with at least the minimum headroom. A larger headroom is kept.

    ``gaps_bytes`` is what the heap's gaps vary by between runs, if the estimate has no allowance for them.
    """
    reserved = math.ceil(estimate.reserved_bytes * (1 + estimate.margin))
    least = max(HEADROOM_BYTES + gaps_bytes, LEAST_BYTES - reserved)
    return replace(estimate, headroom_bytes=max(estimate.headroom_bytes, least))


def to_sample(estimate: MemoryEstimate, peak_bytes: int) -> Sample:
    """A sample from an uncalibrated estimate and the measured peak."""
    exact = estimate.parameter_bytes + estimate.gradient_bytes + estimate.optimizer_bytes + estimate.data_bytes
    rest = estimate.activation_bytes + estimate.workspace_bytes + estimate.fragmentation_bytes
    return Sample(exact, rest, peak_bytes)


def kind_of(workload: str, config: Config) -> str:
    """What shares samples: the trials of a workload; those of several ranks, which hold what they exchange, apart."""
    ranks = config.get(RANKS, 1)
    return workload if ranks == 1 else f"{workload} | {ranks} ranks"


@cache
def key(workload: str, device: str, allocator: str = "") -> str:
    """The key of a list of samples: workload, device, versions of what a worker imports, ``allocator_key``."""
    from importlib import metadata

    option = f" | {allocator}".replace("expandable_segments:True", "expandable segments") if allocator else ""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "torch_geometric"))
    return f"{workload} | {device} | {versions}{option}"


def load_samples(name: str, folder: Path | None = None) -> list[Sample]:
    """The samples of a key, the latest last. A damaged file raises ``InputError``."""
    return _read(_path(folder)).get(name, [])


def record(name: str, samples: Sequence[Sample], folder: Path | None = None, *, latest: bool = False) -> Path:
    """Adds samples to a key, and returns the file. A file that is damaged or not writable raises ``InputError``.

    The latest hundred footprints are kept, each with its largest peak. So repeated ones do not push out the others.
    With ``latest`` each is kept as it was seen last.
    """
    path = _path(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w", opener=not_following) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two studies may end at the same time
            content = _read(path)
            all_of_them = [*content.get(name, []), *samples]
            content[name] = _distinct(all_of_them, latest=latest)[-KEPT_SAMPLES:]
            _write(path, content)
    except OSError as error:
        raise InputError(f"the calibration {path} cannot be written: {error.strerror}") from error
    return path


def _distinct(samples: Sequence[Sample], *, latest: bool) -> list[Sample]:
    """One sample per footprint, the latest or that with the largest peak, by when the footprint was last seen."""
    kept: dict[tuple[int, int], Sample] = {}
    for sample in samples:
        footprint = sample.exact_bytes, sample.activation_bytes
        earlier = kept.pop(footprint, sample)
        kept[footprint] = sample if latest else max(sample, earlier, key=lambda other: other.peak_bytes)
    return list(kept.values())


def _write(path: Path, content: Mapping[str, Sequence[Sample]]) -> None:
    listed = {key: [[s.exact_bytes, s.activation_bytes, s.peak_bytes] for s in kept] for key, kept in content.items()}
    with replacing(path) as file:
        file.write(json.dumps(listed, indent=1).encode())


def _path(folder: Path | None) -> Path:
    if folder is None:
        import platformdirs

        folder = Path(platformdirs.user_cache_dir("tuner"))
    return folder / FILE


def _read(path: Path) -> dict[str, list[Sample]]:
    try:
        content = json.loads(regular(path, MOST_BYTES).read_text())
        return {name: [Sample(*map(_size, row)) for row in rows[-KEPT_SAMPLES:]] for name, rows in content.items()}
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # this user may have no home
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"the calibration {path} is damaged ({error}): delete it") from error


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is not a number of bytes")
    return value


def quantile(errors: Sequence[float], share: float) -> float:
    """The conformal quantile: the ⌈(n + 1) · share⌉-th smallest of n errors, or the largest if n is too small."""
    rank = min(len(errors), math.ceil((len(errors) + 1) * share))
    return sorted(errors)[rank - 1]
