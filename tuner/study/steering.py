"""What the loop asks of a search and of a scheduler while trials run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tuner.estimation.feedback import StudyFeedback
from tuner.records.epochs import EpochLine
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import StudyRecord
from tuner.search.schedulers import Scheduler, make_scheduler
from tuner.study.live_search import fitting, misfit_text, suggested
from tuner.study.recorder import Recorder
from tuner.study.resume import listed
from tuner.study.stages import Placed
from tuner.trial import EpochReport, Objective, Outcome, Request, Status, Trial


class Pruning:
    """A scheduler for each workload's trials, whose metrics are compared with each other's alone."""

    def __init__(self, name: str, objectives: Mapping[str, Objective], trials: Iterable[Trial]) -> None:
        """Begins with nothing reported."""
        self._objectives = objectives
        self._schedulers: dict[str, Scheduler] = {
            workload: made for workload in objectives if (made := make_scheduler(name))
        }
        self._workloads: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
        self._stopped: dict[str, int] = {}  # after which epoch
        for trial in trials:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """A search has suggested another trial."""
        self._workloads[trial.trial_id] = trial.workload
        self._epochs[trial.trial_id] = trial.epochs

    def replay(self, epochs: Iterable[EpochLine]) -> None:
        """Takes note of what trials said before this process began."""
        for line in epochs:
            self._note(line.trial_id, line.epoch, line.metrics)

    def stops(self, report: EpochReport) -> bool:
        """Whether a trial is to be stopped; never after its last epoch.

        One that was to be, and whose attempt or study ended before that, is stopped when it has come as far again.
        """
        self._note(report.trial_id, report.epoch, report.metrics)
        after = self._stopped.get(report.trial_id)
        return after is not None and after <= report.epoch < (report.epochs or math.inf)

    def value(self, report: EpochReport) -> float | None:
        """What a report says of the metric that its trial is compared by."""
        return report.metrics.get(self._objectives[self._workloads[report.trial_id]].metric)

    def _note(self, trial_id: str, epoch: int, metrics: Mapping[str, float | None]) -> None:
        workload = self._workloads.get(trial_id, "")
        scheduler = self._schedulers.get(workload)
        if scheduler is None or epoch == 0 or self._objectives[workload].metric not in metrics:
            return
        value = metrics[self._objectives[workload].metric]
        loss = float("nan") if value is None else self._objectives[workload].loss(value)
        stops = scheduler.stops(trial_id, epoch, loss)
        if stops and epoch < (self._epochs[trial_id] or math.inf):
            self._stopped.setdefault(trial_id, epoch)


class Steering:
    """The search in a study that runs: its suggestions become requests, and it is told what comes of them."""

    def __init__(
        self,
        study: Placed,
        record: StudyRecord,
        folder: StudyFolder,
        recorder: Recorder,
        feedback: StudyFeedback,
        pruning: Pruning,
    ) -> None:
        """Begins with the trials that the study was planned by."""
        self._study = study
        self._live = study.live
        self._record = record
        self._folder = folder
        self._recorder = recorder
        self._feedback = feedback
        self._pruning = pruning
        self._least = min((request.need_bytes for request in study.requests), default=0)

    def suggest(self, room_bytes: int) -> Request | None:
        """The next suggestion that fits a device, where there is room for the smallest so far.

        Those before it that fit none have a row that says so.
        """
        live = self._live
        if live is None or room_bytes < max(1, self._least):
            return None
        while request := suggested(live, self._study.tasks, self._study.devices):
            self._feedback.add(request.trial, live.estimates.raw[request.trial.trial_id])
            self._pruning.add(request.trial)
            self._folder.describe(replace(self._record, configurations=listed(live.trials, several=False)))
            if fitting([request], self._study.whole, self._study.tasks, live.settings)[0]:
                request = self._feedback.correct(request)
                self._least = min(self._least, request.need_bytes)
                self._recorder.add(request)
                return request
            self.misfit(request)
        return None

    def misfit(self, request: Request) -> None:
        """A trial fits no device: writes that down, and tells the search, if it is one."""
        status: Status = "too_large" if self._study.settings.skip_too_large else "pruned"
        self._recorder.misfit(request, misfit_text(request, self._study.whole), status)
        if self._live:
            self._live.searcher.tell(request.trial.trial_id, "unfit", None)

    def reported(self, report: EpochReport) -> None:
        """A trial has finished an epoch."""
        value = self._pruning.value(report)
        if self._live and report.epoch and value is not None:
            self._live.searcher.report(report.trial_id, report.epoch, value)

    def ended(self, outcome: Outcome) -> None:
        """A trial has ended for good."""
        if self._live:
            value = outcome.metrics.get(self._live.objective.metric)
            self._live.tell(outcome.trial.trial_id, outcome.status, value)
