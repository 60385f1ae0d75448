"""What the trials that have run tell of those that wait: their estimates are corrected, down as well as up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tuner.estimation import calibration
from tuner.estimation.calibration import Calibration, Sample
from tuner.estimation.registry import can_be_calibrated
from tuner.trial import ACCUMULATION, AttemptResult, MemoryEstimate, Request, Trial

# A fit takes time that grows with the square of the samples: with many, it waits until they are a tenth more.
REFIT = 1.1
Need = Callable[[MemoryEstimate], int]


class Feedback:
    """Learns from the peaks of one workload's trials, beside what is known of earlier ones.

    Estimates that can be calibrated are fitted to the peaks, as between studies; a trial that ran out of memory
    counts there as one that takes what it had been given, until it is known better. A fit may take such a trial for
    an outlier, and estimates of other kinds are not fitted at all, so a trial is also given no less than one that ran
    out with an estimate that was no larger: a tenth more than that had, or what it took in the end. What the user
    gave as the footprint of all says nothing of that kind.
    """

    def __init__(self, raw: Mapping[str, MemoryEstimate], known: Sequence[Sample], need: Need) -> None:
        """Begins with what is known before the study.

        Args:
            raw: each trial's estimate before any calibration, by trial id.
            known: samples of earlier studies.
            need: from an estimate to what is set aside for it, in bytes.
        """
        self._raw = dict(raw)
        self._known = list(known)
        self._need = need
        self._samples: dict[str, Sample] = {}
        self._calibration: Calibration | None = None
        self._fitted = 0
        self._least: dict[str, tuple[int, int]] = {}  # by trial that ran out: its estimate, and what to give at least

    def add(self, trial: Trial, raw: MemoryEstimate) -> None:
        """A search has suggested another trial, of which this is the estimate before any calibration."""
        self._raw[trial.trial_id] = raw

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Takes note of how an attempt ended; returns whether that changes what ``correct`` says."""
        estimate = self._raw[trial.trial_id]
        ran_out = result.status == "out_of_memory" and result.limit_bytes > 0
        if ACCUMULATION in trial.config or estimate.is_given:
            return False
        if ran_out:
            enough = math.ceil(result.limit_bytes * (1 + calibration.UNCALIBRATED_MARGIN))
            self._least[trial.trial_id] = estimate.total_bytes, enough
        elif trial.trial_id in self._least and result.peak_bytes and result.status == "completed":
            enough = math.ceil(result.peak_bytes * (1 + calibration.CALIBRATED_MARGIN))
            self._least[trial.trial_id] = estimate.total_bytes, enough
        peak = result.limit_bytes if ran_out else result.peak_bytes
        if can_be_calibrated(estimate) and peak and (ran_out or result.status == "completed"):
            known_better = trial.trial_id in self._samples  # it had run out before
            self._samples[trial.trial_id] = calibration.to_sample(estimate, peak)
            if ran_out or known_better or len(self._samples) >= REFIT * self._fitted:
                self._fit()
                return True
        return ran_out

    def correct(self, request: Request) -> Request:
        """The request as its estimate is known now; one that was raised after it ran out is left as it is."""
        raw = self._raw[request.trial.trial_id]
        if request.history.out_of_memory or raw.is_given:
            return request
        if self._calibration and can_be_calibrated(raw):
            estimate = calibration.apply(raw, self._calibration)
            request = replace(request, estimate=estimate, need_bytes=self._need(estimate))
        floors = (enough for total, enough in self._least.values() if total <= raw.total_bytes)
        return replace(request, need_bytes=max([request.need_bytes, *floors]))

    def _fit(self) -> None:
        self._fitted = len(self._samples)
        samples = [*self._known, *self._samples.values()]
        self._calibration = calibration.fit(samples[-calibration.KEPT_SAMPLES :])


class StudyFeedback:
    """The feedback of each workload of a study: what one's trials took says nothing of another's."""

    def __init__(self, raw: Mapping[str, MemoryEstimate], known: Mapping[str, Sequence[Sample]], need: Need) -> None:
        """Begins with what is known before the study, by workload; every workload of it has an entry in ``known``."""
        self._of = {workload: Feedback(raw, samples, need) for workload, samples in known.items()}

    def add(self, trial: Trial, raw: MemoryEstimate) -> None:
        """A search has suggested another trial, of which this is the estimate before any calibration."""
        self._of[trial.workload].add(trial, raw)

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Takes note of how an attempt ended; returns whether that changes what ``correct`` says."""
        return self._of[trial.workload].learn(trial, result)

    def correct(self, request: Request) -> Request:
        """The request as its estimate is known now, by the trials of its own workload."""
        return self._of[request.trial.workload].correct(request)
