"""The host RAM of trials on a GPU: estimates, and their correction by measured peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tuner.estimation.calibration import Sample
from tuner.trial import GB, MB, AttemptResult, EpochReport, MemoryEstimate, Request, Trial

# A worker's own memory before its first tensor: a guess, which the first trials replace. On the emulated card a warm
# process has 162 MB, and Ray's part is 90. The real driver adds its own: before CUDA loaded kernels lazily (11.7), a
# process had 1.3 GB after its first tensor and 1.9 after a convolution (pytorch/pytorch#12873), libraries' pages that
# processes share included.
WORKER_BYTES = GB
# The copies of a workload's weights at once: the best ones, and those of a better epoch or the content of their file.
WEIGHTS_KEPT = 2
CHANGED_BYTES = 16 * MB  # smaller corrections are not worth another look at the queue

HostNeed = Callable[[MemoryEstimate], int]


def with_host(estimate: MemoryEstimate, own_bytes: int, *, keeps_weights: bool = True) -> MemoryEstimate:
    """A GPU trial's estimate with its host RAM.

    These are a worker's own memory, ``own_bytes`` of data, copies of the weights if tuner's loop keeps them, and the
    modules that are never trained, which a trace has found. What a program imports and keeps, and what its data
    loaders hold, is not known.
    """
    weights = WEIGHTS_KEPT * estimate.parameter_bytes if keeps_weights else 0
    return replace(estimate, host_bytes=estimate.host_bytes + WORKER_BYTES + own_bytes + weights)


def corrected(host_bytes: int, samples: Sequence[Sample]) -> int:
    """An estimate of RAM, corrected up or down by peaks of the workload's trials.

    It is off by as much as the one that was the furthest too low, and is no less than the smallest peak.
    """
    if not samples:
        return host_bytes
    off = max(sample.peak_bytes - sample.exact_bytes for sample in samples)
    return max(host_bytes + off, min(sample.peak_bytes for sample in samples))


def to_sample(estimate: MemoryEstimate, peak_bytes: int) -> Sample:
    """A sample from an uncorrected estimate and the measured peak in RAM."""
    return Sample(estimate.host_bytes, 0, peak_bytes)


class HostFeedback:
    """Corrects the host RAM of one workload's trials by peaks of others in the study.

    Completed trials correct it down as well as up, running ones up alone. One that ran out of RAM has what was
    reserved for it as its peak. As an attempt ends, its peak replaces what its reports taught.
    """

    def __init__(self, raw: Mapping[str, MemoryEstimate], known: Sequence[Sample], need: HostNeed) -> None:
        """Takes uncorrected estimates by trial id, earlier samples, and the RAM to reserve for an estimate."""
        self._raw = raw
        self._known = list(known)
        self._need = need
        self._completed: dict[str, Sample] = {}
        self._least: dict[str, Sample] = {}  # of those that have not completed

    def report(self, trial: Trial, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""
        peak, before = report.host_peak_bytes or 0, self._least.get(trial.trial_id)
        return (before is None or peak > before.peak_bytes) and self._keep(self._least, trial, peak)

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns."""
        peak = result.host_peak_bytes or 0
        if result.status == "completed":
            return self._keep(self._completed, trial, peak)
        return self._keep(self._least, trial, max(peak, result.host_bytes if result.short_of == "RAM" else 0))

    def correct(self, request: Request) -> Request:
        """The request with the corrected need. A retry after running out of memory stays as it is."""
        raw = self._raw[request.trial.trial_id]
        if request.history.out_of_memory or not raw.host_bytes:
            return request
        measured = bool(self._known or self._completed or self._least)
        estimate = replace(request.estimate, host_bytes=self._corrected(raw.host_bytes), host_measured=measured)
        return replace(request, estimate=estimate, host_bytes=self._need(estimate))

    def _corrected(self, host_bytes: int) -> int:
        samples = [*self._known, *self._completed.values()]
        least = [host_bytes + sample.peak_bytes - sample.exact_bytes for sample in self._least.values()]
        return max([corrected(host_bytes, samples), *least])

    def _keep(self, kept: dict[str, Sample], trial: Trial, peak: int) -> bool:
        """Replaces what was known of a trial by its peak."""
        raw = self._raw[trial.trial_id]
        if not peak or not raw.host_bytes:
            return False
        before = self._corrected(raw.host_bytes)
        self._least.pop(trial.trial_id, None)
        kept[trial.trial_id] = to_sample(raw, peak)
        return abs(self._corrected(raw.host_bytes) - before) > CHANGED_BYTES
