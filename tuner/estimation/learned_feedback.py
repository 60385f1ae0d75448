"""The footprints of trials whose step cannot be traced, learned from the peaks of those before them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.estimation import calibration
from tuner.estimation.learned_footprints import LearnedFootprints, Values, spread
from tuner.estimation.service import memory_key
from tuner.trial import MB, SUCCESSFUL, AttemptResult, EpochReport, MemoryEstimate, Request, Trial

FIRST = 8  # the number of first trials, chosen to differ, that keep ample memory; the others are estimated by them
REFIT = 1.1  # refit only after this growth in samples, or if a trial takes more than was allowed for it
GREW = 1.02  # a peak that grows by less tells nothing new
RAN_OUT = 1.25  # a trial that ran out of memory is taken to need at least this many times what it had
LEAST_BYTES = MB


class LearnedFeedback:
    """Learns from the reports and results of one workload's trials.

    What is learned are the bytes above an idle worker: the context, which is the least memory that a trial reported
    before its training began, is subtracted. A trial that ran out of memory tells only that it needs more than
    it had.
    """

    def __init__(self) -> None:
        """Begins with nothing known."""
        self._values: dict[str, Values] = {}  # the configurations by key
        self._peaks: dict[str, int] = {}  # the largest peak of a configuration's trials
        self._limits: dict[str, int] = {}  # the largest memory with which one of them ran out
        self._context_bytes: int | None = None
        self._first: set[str] = set()
        self._learned: LearnedFootprints | None = None
        self._fitted = 0

    def choose_first(self, requests: Sequence[Request]) -> list[str]:
        """The ids of the trials from which most is to be learned. They keep their memory."""
        missing = max(0, FIRST - len(self._peaks))
        indices = spread([_values(request.trial) for request in requests], missing)
        chosen = [requests[index].trial.trial_id for index in indices]
        self._first = set(chosen)
        return chosen

    def report(self, trial: Trial, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""
        memory = report.memory_bytes
        if memory is None:
            return False
        if report.epoch == 0:
            self._context_bytes = min(memory, self._context_bytes or memory)
            return False
        return self._add_peak(trial, memory)

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns."""
        if result.status == "out_of_memory" and result.limit_bytes:
            key = self._key(trial)
            self._limits[key] = max(result.limit_bytes, self._limits.get(key, 0))
            self._learned = None
            return True
        if result.peak_bytes and result.status in (*SUCCESSFUL, "diverged"):
            return self._add_peak(trial, result.peak_bytes)
        return False

    def correct(self, request: Request, raw: MemoryEstimate, need: Callable[[MemoryEstimate], int]) -> Request:
        """The request with the learned estimate; unchanged as long as nothing is known."""
        if not self._peaks and not self._limits:
            return request
        if self._learned is None:
            self._fit(raw)
        assert self._learned is not None
        found = self._learned.predict(_values(request.trial))
        estimate = replace(
            raw,
            activation_bytes=found.size_bytes,
            context_bytes=self._context(raw),
            # A cap counts what is allocated, which on the CPU is more than the resident peak that was measured.
            margin=calibration.UNCALIBRATED_MARGIN,
            headroom_bytes=found.margin_bytes + raw.headroom_bytes,
        )
        keeps_room = request.trial.trial_id in self._first and len(self._peaks) < FIRST
        least = max(self._least(request.trial), need(raw) if keeps_room else 0)
        return replace(request, estimate=estimate, need_bytes=max(need(estimate), least))

    def _least(self, trial: Trial) -> int:
        """The peak of the same configuration, for example with another seed, or more than it ran out with."""
        key = repr(_values(trial))
        if key in self._peaks:
            return math.ceil(self._peaks[key] * (1 + calibration.CALIBRATED_MARGIN))
        return math.ceil(self._limits.get(key, 0) * RAN_OUT)

    def _add_peak(self, trial: Trial, peak: int) -> bool:
        key = self._key(trial)
        known = self._peaks.get(key, 0)
        if peak <= GREW * known:
            return False
        self._peaks[key] = peak
        if self._learned is not None and self._context_bytes is not None and len(self._peaks) < REFIT * self._fitted:
            found = self._learned.predict(self._values[key])
            if peak - self._context_bytes <= found.size_bytes + found.margin_bytes:
                return False
        self._learned = None
        return True

    def _fit(self, raw: MemoryEstimate) -> None:
        """Fits the peaks, and then what ran out of memory although the fit gives it no more than it had."""
        context = self._context(raw)
        samples = [(self._values[key], float(max(LEAST_BYTES, peak - context))) for key, peak in self._peaks.items()]
        learned = LearnedFootprints(samples) if samples else None
        small: list[tuple[Values, float]] = []
        for key, limit in self._limits.items():
            enough = float(max(LEAST_BYTES, RAN_OUT * (limit - context)))
            if key not in self._peaks and (not learned or learned.predict(self._values[key]).size_bytes < enough):
                small.append((self._values[key], enough))
        self._learned = LearnedFootprints([*samples, *small]) if small or not learned else learned
        self._fitted = len(self._peaks)

    def _context(self, raw: MemoryEstimate) -> int:
        return raw.context_bytes if self._context_bytes is None else self._context_bytes

    def _key(self, trial: Trial) -> str:
        values = _values(trial)
        key = repr(values) if values else trial.trial_id  # nothing is known of a trial whose values are chosen later
        self._values[key] = values
        return key


def _values(trial: Trial) -> Values:
    """The values that may decide a trial's memory."""
    return dict(memory_key(trial.config))
