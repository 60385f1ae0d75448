"""Feedback during a study: peaks of finished trials correct the estimates of waiting ones, down as well as up."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tuner.decisions.events import Corrected, Decision, Ended, Event, Opened, Planned, Reported, Retried
from tuner.decisions.state import State
from tuner.estimation import calibration
from tuner.estimation.calibration import Calibration, Sample
from tuner.estimation.estimators import can_be_calibrated
from tuner.estimation.learned_footprints import LearnedFeedback
from tuner.hyperparameters import shrunk
from tuner.trial import MB, AttemptResult, EpochReport, History, MemoryEstimate, Request, Trial

REFIT = 1.1  # refit only after this growth in samples, as a fit's time is quadratic in their number
CHANGED_BYTES = 16 * MB  # smaller corrections are not worth another look at the queue
SAMPLED, CHANGED = 256, 0.05  # of more waiting trials, all are corrected if needs of this many change by this share
BOUNDS = (
    64  # the most trials that did not complete whose host RAM is remembered: those that were the furthest too low
)
WHOLE = ("completed", "paused")  # of trials whose peak is what they take
Need = Callable[[MemoryEstimate], int]


class Feedback:
    """Learns from the peaks of one workload's trials and from samples of earlier studies.

    Estimates that can be calibrated are fitted to the peaks, as between studies. A trial that ran out of memory has
    its memory limit as its peak, until a retry completes. The fit may treat it as an outlier, and does not cover all
    estimators. So there is also a floor: a trial gets no less than an out-of-memory trial whose estimate is not
    larger. The floor is 110 % of that trial's limit; once it completes, 102 % of its peak. Footprints that the user
    sets are not corrected. Those that are learned from the first trials are ``LearnedFeedback``'s.
    """

    def __init__(self, raw: Mapping[str, MemoryEstimate], known: Sequence[Sample], need: Need) -> None:
        """Takes uncalibrated estimates by trial id, earlier samples, and the bytes to reserve for an estimate."""
        self._raw = dict(raw)
        self._known = list(known)
        self._need = need
        self._samples: dict[str, Sample] = {}
        self._calibration: Calibration | None = None
        self._fitted = 0
        self._learned = LearnedFeedback()
        self._least: dict[str, tuple[int, int]] = {}  # id of an out-of-memory trial -> its estimate, and the floor

    def add(self, trial: Trial, raw: MemoryEstimate) -> None:
        """Adds a trial that a search suggested, with its uncalibrated estimate."""
        self._raw[trial.trial_id] = raw

    def choose_first(self, requests: Sequence[Request], own_bytes: int) -> list[str]:
        """The ids of the trials to begin with: those from which most is to be learned."""
        learned = [request for request in requests if self._raw[request.trial.trial_id].is_learned]
        fresh = [request for request in learned if not request.history.out_of_memory]
        return self._learned.choose_first(fresh, own_bytes)

    def report(self, trial: Trial, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""
        learned = self._raw[trial.trial_id].is_learned and not shrunk(trial.config)
        return learned and self._learned.report(trial, report)

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns."""
        estimate = self._raw[trial.trial_id]
        ran_out = result.status == "out_of_memory" and result.limit_bytes > 0
        if shrunk(trial.config) or estimate.is_given:
            return False
        if estimate.is_learned:
            return self._learned.learn(trial, result)
        if ran_out:
            enough = math.ceil(result.limit_bytes * (1 + calibration.UNCALIBRATED_MARGIN))
            self._least[trial.trial_id] = estimate.total_bytes, max(enough, result.peak_bytes or 0)
        elif trial.trial_id in self._least and result.peak_bytes and result.status in WHOLE:
            enough = math.ceil(result.peak_bytes * (1 + calibration.CALIBRATED_MARGIN))
            self._least[trial.trial_id] = estimate.total_bytes, enough
        peak = max(result.limit_bytes * ran_out, result.peak_bytes or 0)  # with what the last allocation asked for
        if can_be_calibrated(estimate) and peak and (ran_out or result.status in WHOLE):
            known_better = trial.trial_id in self._samples  # it ran out of memory before
            self._samples[trial.trial_id] = calibration.to_sample(estimate, peak)
            if ran_out or known_better or len(self._samples) >= REFIT * self._fitted:
                self._fit()
                return True
        return ran_out

    def correct(self, request: Request) -> Request:
        """The request with the corrected estimate. A retry after running out of memory stays as it is."""
        raw = self._raw[request.trial.trial_id]
        if request.history.out_of_memory or raw.is_given:
            return request
        if raw.is_learned:
            return self._learned.correct(request, raw, self._need)
        if self._calibration and can_be_calibrated(raw):
            estimate = calibration.apply(raw, self._calibration)
            request = replace(request, estimate=estimate, need_bytes=self._need(estimate))
        floors = (enough for total, enough in self._least.values() if total <= raw.total_bytes)
        return replace(request, need_bytes=max([request.need_bytes, *floors]))

    def _fit(self) -> None:
        self._fitted = len(self._samples)
        own = self._samples.values()  # an earlier process of the study may have recorded some of them
        samples = [*(sample for sample in self._known if sample not in own), *own]
        self._calibration = calibration.fit(samples[-calibration.KEPT_SAMPLES :])


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


class HostFeedback:
    """Corrects the host RAM of one workload's trials by peaks of others in the study.

    Completed trials correct it down as well as up, running ones up alone. One that ran out of RAM has what was
    reserved for it as its peak. As an attempt ends, its peak replaces what its reports taught.
    """

    def __init__(self, raw: Mapping[str, MemoryEstimate], known: Sequence[Sample], need: Need) -> None:
        """Takes uncorrected estimates by trial id, earlier samples, and the RAM to reserve for an estimate."""
        self._raw = raw
        self._samples = _extremes(known)
        self._need = need
        self._least: dict[str, Sample] = {}  # of those that have not completed

    def report(self, trial: Trial, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""
        peak, before = report.host_peak_bytes or 0, self._least.get(trial.trial_id)
        return (before is None or peak > before.peak_bytes) and self._keep(trial, peak, completed=False)

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns."""
        peak = result.host_peak_bytes or 0
        completed = result.status in WHOLE
        had = result.host_bytes if result.short_of == "RAM" and not completed else 0
        return self._keep(trial, max(peak, had), completed=completed)

    def correct(self, request: Request) -> Request:
        """The request with the corrected need. A retry after running out of memory stays as it is."""
        raw = self._raw[request.trial.trial_id]
        if request.history.out_of_memory or not raw.host_bytes:
            return request
        measured = bool(self._samples or self._least)
        estimate = replace(request.estimate, host_bytes=self._corrected(raw.host_bytes), host_measured=measured)
        return replace(request, estimate=estimate, host_bytes=self._need(estimate))

    def _corrected(self, host_bytes: int) -> int:
        least = [host_bytes + _too_low(sample) for sample in self._least.values()]
        return max([corrected(host_bytes, self._samples), *least])

    def _keep(self, trial: Trial, peak: int, *, completed: bool) -> bool:
        """Replaces what was known of a trial by its peak."""
        raw = self._raw[trial.trial_id]
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
        known: Mapping[str, Sequence[Sample]],
        need: Need,
        known_in_ram: Mapping[str, Sequence[Sample]] | None = None,
        host_need: Need = lambda _: 0,
    ) -> None:
        """Like ``Feedback`` and ``HostFeedback``. ``known`` has an entry for every workload."""
        in_ram = known_in_ram or {}
        self._raw = dict(raw)
        self._of = {workload: Feedback(raw, samples, need) for workload, samples in known.items()}
        self._in_ram = {workload: HostFeedback(self._raw, in_ram.get(workload, ()), host_need) for workload in known}
        self._changed = False  # whether something was learned since the last correction

    def hear(self, state: State, event: Event) -> None:
        """Learns from what trials report, and from the ends of attempts.

        A trial that had less than its total says nothing: its peak is what there was, and not what another trial like
        it would take.
        """
        if isinstance(event, Planned):
            for request in event.requests:
                self.add(request.trial, event.raw[request.trial.trial_id])
            if state.plan is not None:  # what was learned counts for a suggestion, too
                self._changed |= any(self.correct(request) != request for request in event.requests)
        elif isinstance(event, Retried) and event.raw:
            self.add(event.request.trial, event.raw)
            self._changed |= self.correct(event.request) != event.request
        elif isinstance(event, Reported):
            trial = state.requests[event.report.trial_id].trial
            self._learned(trial, self.report(trial, event.report), state)
        elif isinstance(event, Ended):
            if not 0 < event.result.limit_bytes < event.estimated_bytes:
                self._learned(event.trial, self.learn(event.trial, event.result), state)
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
        new = {trial_id: self.correct(state.waiting[trial_id]) for trial_id in some}
        if len(some) < len(ids):
            changes = any(_changes(state.waiting[trial_id], request) for trial_id, request in new.items())
            new = {trial_id: self.correct(state.waiting[trial_id]) for trial_id in ids} if changes else {}
        return Corrected({name: request for name, request in new.items() if request != state.waiting[name]})

    def _learned(self, trial: Trial, changed: bool, state: State) -> None:
        """Fits at once what has changed, and not when it is needed, so that a resumed study has the same fits."""
        if changed:
            self._changed = True
            self.correct(replace(state.requests[trial.trial_id], history=History()))

    def add(self, trial: Trial, raw: MemoryEstimate) -> None:
        """Adds a trial that a search suggested, with its uncalibrated estimate."""
        self._raw[trial.trial_id] = raw
        self._of[trial.workload].add(trial, raw)

    def begin(self, requests: Sequence[Request], own_bytes: int = 0) -> list[Request]:
        """The requests with corrected estimates, first those from which most is to be learned.

        ``own_bytes`` is the size of this process if trials run in it, and else 0.
        """
        chosen: list[str] = []
        for workload, feedback in self._of.items():
            mine = [request for request in requests if request.trial.workload == workload]
            chosen += feedback.choose_first(mine, own_bytes)
        turn = {trial_id: number for number, trial_id in enumerate(chosen)}
        ordered = sorted(requests, key=lambda request: turn.get(request.trial.trial_id, len(turn)))
        return [self.correct(request) for request in ordered]

    def report(self, trial: Trial, report: EpochReport) -> bool:
        """Adds the report of a running trial; returns whether it changes what ``correct`` returns."""
        in_ram = self._in_ram[trial.workload].report(trial, report)
        return self._of[trial.workload].report(trial, report) or in_ram

    def learn(self, trial: Trial, result: AttemptResult) -> bool:
        """Adds an attempt's result; returns whether it changes what ``correct`` returns.

        That others held the memory tells nothing of the trial.
        """
        if result.lost == "memory":
            return False
        in_ram = self._in_ram[trial.workload].learn(trial, result)
        if result.short_of == "RAM":  # it says nothing of its device's memory
            return in_ram
        return self._of[trial.workload].learn(trial, result) or in_ram

    def correct(self, request: Request) -> Request:
        """The request with the corrected estimate."""
        workload = request.trial.workload
        return self._in_ram[workload].correct(self._of[workload].correct(request))


def _changes(before: Request, now: Request) -> bool:
    """Whether a correction is noticeable."""
    needs = (before.need_bytes, now.need_bytes), (before.host_bytes, now.host_bytes)
    return any(abs(new - old) > CHANGED * old for old, new in needs)
