"""Feedback during a study: peaks of finished trials correct the estimates of waiting ones, down as well as up.

Three fits learn from a workload's trials: ``CalibratedFit``, ``LearnedFit``, and ``HostFit`` for the host's RAM.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tuner.decisions.events import Corrected, Decision, Ended, Event, Opened, Planned, Reported, Retried
from tuner.decisions.plan import host_need_bytes, need_bytes
from tuner.decisions.state import State
from tuner.estimation import calibration
from tuner.estimation.calibration import Calibration, Sample
from tuner.estimation.estimators import can_be_calibrated
from tuner.estimation.learned_footprints import LearnedFit
from tuner.hyperparameters import shrunk
from tuner.trial import MB, AttemptResult, EpochReport, History, MemoryEstimate, Request, Trial

REFIT = 1.1  # refit only after this growth in samples, as a fit's time is quadratic in their number
CHANGED_BYTES = 16 * MB  # smaller corrections are not worth another look at the queue
SAMPLED, CHANGED = 256, 0.05  # of more waiting trials, all are corrected if needs of this many change by this share
# The most trials that did not complete whose host RAM is remembered: those that were the furthest too low.
BOUNDS = 64
WHOLE = ("completed", "paused")  # of trials whose peak is what they take


class FootprintFit(Protocol):
    """What a workload's trials have taken, for the estimates of others. ``raw`` is an estimate before corrections."""

    def report(self, trial: Trial, raw: MemoryEstimate, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""

    def learn(self, trial: Trial, raw: MemoryEstimate, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns."""

    def correct(self, request: Request, raw: MemoryEstimate) -> Request:
        """The request with the corrected estimate and need."""


class CalibratedFit:
    """Fits estimates that can be calibrated to the peaks, as between studies.

    A trial that ran out of memory has its memory limit as its peak, until a retry completes. The fit may treat it as
    an outlier, and does not cover all estimators. So there is also a floor: a trial gets no less than an
    out-of-memory trial whose estimate is not larger. The floor is 110 % of that trial's limit; once it completes,
    102 % of its peak.
    """

    def __init__(self, earlier: Sequence[Sample]) -> None:
        """Takes the samples of earlier studies."""
        self._earlier = list(earlier)
        self._samples: dict[str, Sample] = {}
        self._calibration: Calibration | None = None
        self._fitted = 0
        self._least: dict[str, tuple[int, int]] = {}  # id of an out-of-memory trial -> its estimate, and the floor

    def report(self, trial: Trial, raw: MemoryEstimate, report: EpochReport) -> bool:
        """A running trial's peak may still grow."""
        return False

    def learn(self, trial: Trial, raw: MemoryEstimate, result: AttemptResult) -> bool:
        """See ``FootprintFit.learn``."""
        ran_out = result.status == "out_of_memory" and result.limit_bytes > 0
        if ran_out:
            floor = math.ceil(result.limit_bytes * (1 + calibration.UNCALIBRATED_MARGIN))
            self._least[trial.trial_id] = raw.total_bytes, max(floor, result.peak_bytes or 0)
        elif trial.trial_id in self._least and result.peak_bytes and result.status in WHOLE:
            floor = math.ceil(result.peak_bytes * (1 + calibration.CALIBRATED_MARGIN))
            self._least[trial.trial_id] = raw.total_bytes, floor
        peak = max(result.limit_bytes * ran_out, result.peak_bytes or 0)  # with what the last allocation asked for
        if can_be_calibrated(raw) and peak and (ran_out or result.status in WHOLE):
            ran_out_before = trial.trial_id in self._samples
            self._samples[trial.trial_id] = calibration.to_sample(raw, peak)
            if ran_out or ran_out_before or len(self._samples) >= REFIT * self._fitted:
                self._fit()
                return True
        return ran_out

    def correct(self, request: Request, raw: MemoryEstimate) -> Request:
        """See ``FootprintFit.correct``."""
        if self._calibration and can_be_calibrated(raw):
            estimate = self._calibration.correct(raw)
            request = replace(request, estimate=estimate, need_bytes=need_bytes(estimate))
        floors = (floor for total, floor in self._least.values() if total <= raw.total_bytes)
        return replace(request, need_bytes=max([request.need_bytes, *floors]))

    def _fit(self) -> None:
        self._fitted = len(self._samples)
        samples = self._samples.values()  # an earlier process of the study may have recorded some of them
        listed = [*(sample for sample in self._earlier if sample not in samples), *samples]
        self._calibration = calibration.fit(listed[-calibration.KEPT_SAMPLES :])


def corrected(host_bytes: int, samples: Sequence[Sample]) -> int:
    """An estimate of RAM, corrected up or down by peaks of the workload's trials.

    It is off by as much as the one that was the furthest too low, and is no less than the smallest peak.
    """
    if not samples:
        return host_bytes
    return max(host_bytes + max(map(_too_low, samples)), min(sample.peak_bytes for sample in samples))


def _too_low(sample: Sample) -> int:
    """By how much an estimate of RAM was too low."""
    return sample.peak_bytes - sample.exact_bytes


def _extremes(samples: Sequence[Sample]) -> list[Sample]:
    """Those by which ``corrected`` corrects."""
    return [max(samples, key=_too_low), min(samples, key=lambda sample: sample.peak_bytes)] if samples else []


class HostFit:
    """Corrects the host RAM of trials on GPUs by peaks of others in the study.

    Completed trials correct it down as well as up, running ones up alone. One that ran out of RAM has what was
    reserved for it as its peak. As an attempt ends, its peak replaces what its reports taught.
    """

    def __init__(self, earlier: Sequence[Sample]) -> None:
        """Takes the samples of earlier studies."""
        self._samples = _extremes(earlier)
        self._least: dict[str, Sample] = {}  # of those that have not completed

    def report(self, trial: Trial, raw: MemoryEstimate, report: EpochReport) -> bool:
        """See ``FootprintFit.report``."""
        peak, before = report.host_peak_bytes or 0, self._least.get(trial.trial_id)
        return (before is None or peak > before.peak_bytes) and self._keep(trial, raw, peak, completed=False)

    def learn(self, trial: Trial, raw: MemoryEstimate, result: AttemptResult) -> bool:
        """See ``FootprintFit.learn``."""
        completed = result.status in WHOLE
        reserved = result.host_bytes if result.short_of == "RAM" and not completed else 0
        return self._keep(trial, raw, max(result.host_peak_bytes or 0, reserved), completed=completed)

    def correct(self, request: Request, raw: MemoryEstimate) -> Request:
        """See ``FootprintFit.correct``."""
        if not raw.host_bytes:
            return request
        measured = bool(self._samples or self._least)
        estimate = replace(request.estimate, host_bytes=self._corrected(raw.host_bytes), host_measured=measured)
        return replace(request, estimate=estimate, host_bytes=host_need_bytes(estimate))

    def _corrected(self, host_bytes: int) -> int:
        least = [host_bytes + _too_low(sample) for sample in self._least.values()]
        return max([corrected(host_bytes, self._samples), *least])

    def _keep(self, trial: Trial, raw: MemoryEstimate, peak: int, *, completed: bool) -> bool:
        """Replaces what was known of a trial by its peak."""
        if not peak or not raw.host_bytes:
            return False
        before, sample = self._corrected(raw.host_bytes), Sample(raw.host_bytes, 0, peak)
        self._least.pop(trial.trial_id, None)
        if completed:
            self._samples = _extremes([*self._samples, sample])
        else:
            self._least[trial.trial_id] = sample
        if len(self._least) > BOUNDS:
            del self._least[min(self._least, key=lambda trial_id: _too_low(self._least[trial_id]))]
        return abs(self._corrected(raw.host_bytes) - before) > CHANGED_BYTES


class StudyFeedback:
    """Decides which estimates of waiting trials were wrong: for each workload, of device memory and of host RAM."""

    def __init__(
        self,
        raw: Mapping[str, MemoryEstimate],
        samples: Mapping[str, Sequence[Sample]],
        samples_in_ram: Mapping[str, Sequence[Sample]] | None = None,
        of_ranks: Callable[[str], Sequence[Sample]] = lambda kind: (),
    ) -> None:
        """Takes uncorrected estimates by trial id, and the samples of earlier studies for every workload.

        ``of_ranks`` returns those of trials of several ranks, by ``kind_of``.
        """
        in_ram = samples_in_ram or {}
        self._raw, self._of_ranks = dict(raw), of_ranks
        self._calibrated = {workload: CalibratedFit(earlier) for workload, earlier in samples.items()}
        self._learned = {workload: LearnedFit() for workload in samples}
        self._in_ram = {workload: HostFit(in_ram.get(workload, ())) for workload in samples}
        self._changed = False  # whether something was learned since the last correction

    def hear(self, state: State, event: Event) -> None:
        """Learns from what trials report, and from the ends of attempts.

        A trial that had less than its total says nothing: its peak is what there was, and not what another trial like
        it would take.
        """
        if isinstance(event, Planned):
            self._raw |= event.raw
            if state.plan is not None:  # what was learned counts for a suggestion, too
                self._changed |= any(self.correct(request) != request for request in event.requests)
        elif isinstance(event, Retried) and event.raw:
            self._raw[event.request.trial.trial_id] = event.raw
            self._changed |= self.correct(event.request) != event.request
        elif isinstance(event, Reported):
            trial = state.requests[event.report.trial_id].trial
            self._take(trial, self.report(trial, event.report), state)
        elif isinstance(event, Ended):
            if not 0 < event.result.limit_bytes < event.estimated_bytes:
                self._take(event.trial, self.learn(event.trial, event.result), state)
        elif isinstance(event, (Opened, Corrected)):
            self._changed = False

    def decide(self, state: State, now: float) -> Decision | None:
        """The corrected requests of the trials that wait, if something was learned.

        Of many, none is corrected unless the need of one in a sample changes noticeably.
        """
        if not self._changed or not state.waiting or state.plan is None:
            return None
        ids = sorted(state.waiting)
        some = ids[:: max(1, len(ids) // SAMPLED)]
        new = {trial_id: self._for_all(state, trial_id) for trial_id in some}
        if len(some) < len(ids):
            changes = any(_changes(state.waiting[trial_id], request) for trial_id, request in new.items())
            new = {trial_id: self._for_all(state, trial_id) for trial_id in ids} if changes else {}
        return Corrected({name: request for name, request in new.items() if request != state.waiting[name]})

    def _for_all(self, state: State, trial_id: str) -> Request:
        """The corrected request. Ample room, which first trials keep, ends where it would leave a device unused."""
        request, plan = self.correct(state.waiting[trial_id]), state.plan
        least = need_bytes(request.estimate)
        if plan is None or not request.estimate.is_learned or request.history.out_of_memory:
            return request
        left = [size for one, size in zip(plan.devices, plan.budgets, strict=True) if one not in state.lost]
        return replace(request, need_bytes=min([request.need_bytes, *(size for size in left if size >= least)]))

    def _take(self, trial: Trial, changed: bool, state: State) -> None:
        """Fits at once what has changed, and not when it is needed, so that a resumed study has the same fits."""
        if changed:
            self._changed = True
            self.correct(replace(state.requests[trial.trial_id], history=History()))

    def begin(self, requests: Sequence[Request], own_bytes: int = 0) -> list[Request]:
        """The requests with corrected estimates, those that teach the most first.

        ``own_bytes`` is the size of this process if trials run in it, and else 0.
        """
        chosen: list[str] = []
        fresh = [
            one for one in requests if self._raw[one.trial.trial_id].is_learned and not one.history.out_of_memory
        ]
        for workload, fit in self._learned.items():
            chosen += fit.choose_first([one for one in fresh if one.trial.workload == workload], own_bytes)
        turn = {trial_id: number for number, trial_id in enumerate(chosen)}
        ordered = sorted(requests, key=lambda request: turn.get(request.trial.trial_id, len(turn)))
        return [self.correct(request) for request in ordered]

    def report(self, trial: Trial, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""
        changes = [fit.report(trial, self._raw[trial.trial_id], report) for fit in self._fits(trial)]
        return any(changes)

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns.

        That others held the memory tells nothing of the trial, and that RAM was short nothing of its device's memory.
        """
        if result.lost == "memory":
            return False
        fits = self._fits(trial) if result.short_of != "RAM" else [self._in_ram[trial.workload]]
        changes = [fit.learn(trial, self._raw[trial.trial_id], result) for fit in fits]
        return any(changes)

    def correct(self, request: Request) -> Request:
        """The request with the corrected estimate. A retry after running out of memory stays as it is."""
        trial = request.trial
        for fit in () if request.history.out_of_memory else self._fits(trial, learns=False):
            request = fit.correct(request, self._raw[trial.trial_id])
        return request

    def _fits(self, trial: Trial, *, learns: bool = True) -> list[FootprintFit]:
        """The fits of a trial's memory. From one in smaller parts only that of RAM learns."""
        workload, raw = trial.workload, self._raw[trial.trial_id]
        if raw.is_given or (learns and shrunk(trial.config)):
            return [self._in_ram[workload]]
        kind = calibration.kind_of(workload, trial.config)
        if kind not in self._calibrated:
            self._calibrated[kind] = CalibratedFit(self._of_ranks(kind))
        return [self._learned[workload] if raw.is_learned else self._calibrated[kind], self._in_ram[workload]]


def _changes(before: Request, now: Request) -> bool:
    """Whether a correction is noticeable."""
    needs = (before.need_bytes, now.need_bytes), (before.host_bytes, now.host_bytes)
    return any(abs(new - old) > CHANGED * old for old, new in needs)
