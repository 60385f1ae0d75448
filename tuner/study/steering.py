"""What the loop asks of a search and of a scheduler while trials run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType

from tuner.estimation.feedback import StudyFeedback
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import StudyRecord
from tuner.search.optuna_names import FIFO, make_pruner
from tuner.search.searchers import RaySearcher, Searcher, State
from tuner.spec.groups import SearchOptions
from tuner.study.live_search import STATES, fitting, misfit_text, replay, report, suggested
from tuner.study.recorder import Recorder
from tuner.study.resume import listed
from tuner.study.stages import Placed
from tuner.trial import EpochReport, Objective, Outcome, Request, Status, Trial


class Pruning:
    """Tells what judges a study's trials what they report: the search, and a pruner for each workload.

    Trials of different workloads are not compared. If a sampler of Optuna searches, the pruner is that of its study.
    """

    def __init__(
        self, objectives: Mapping[str, Objective], settings: SearchOptions, searcher: Searcher | None = None
    ) -> None:
        """Begins with no trials."""
        self._objectives = objectives
        self._judges: list[tuple[str, Searcher]] = []  # with the workload whose trials one judges
        self._workloads: dict[str, str] = {}
        if searcher is not None:
            self._judges += [(workload, searcher) for workload in objectives]
        of_tune = isinstance(searcher, RaySearcher)
        self._pruners = {}
        if settings.scheduler != FIFO and (searcher is None or of_tune):
            self._pruners = {workload: _pruner(settings, objective) for workload, objective in objectives.items()}
        self._judges += self._pruners.items()

    def begin(
        self,
        trials: Sequence[Trial],
        ended: Mapping[str, Attempt] = MappingProxyType({}),
        epochs: Sequence[EpochLine] = (),
    ) -> None:
        """Adds trials, with what those of an earlier process said, and how they ended."""
        self._workloads |= {trial.trial_id: trial.workload for trial in trials}
        for workload, pruner in self._pruners.items():
            own = [trial for trial in trials if trial.workload == workload]
            replay(pruner, own, ended, epochs, self._objectives[workload])

    def stops(self, said: EpochReport) -> bool:
        """Whether a trial is to be stopped; never after its last epoch."""
        workload = self._workloads[said.trial_id]
        stops = [
            report(judge, said.trial_id, said.epoch, said.metrics, self._objectives[workload])
            for judged, judge in self._judges
            if judged == workload
        ]
        return any(stops) and said.epoch < (said.epochs or math.inf)

    def ended(self, trial: Trial, state: State, metrics: Mapping[str, float | None]) -> None:
        """A trial has ended for good."""
        for workload, judge in self._judges:
            if workload == trial.workload:
                judge.tell(trial.trial_id, state, metrics.get(self._objectives[workload].metric))


def _pruner(settings: SearchOptions, objective: Objective) -> Searcher:
    """A study of Optuna's that suggests nothing, for its pruner."""
    from tuner.search.optuna_trials import OptunaTrials, new_study

    pruner = deepcopy(make_pruner(settings.scheduler, settings.scheduler_options))  # some keep what one study had
    return OptunaTrials(new_study(None, pruner, objective.direction))


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
            self._pruning.begin([request.trial])
            self._folder.describe(replace(self._record, configurations=listed(live.trials, several=False)))
            if fitting([request], self._study.whole, self._study.tasks, live.settings)[0]:
                request = self._feedback.correct(request)
                self._least = min(self._least, request.need_bytes)
                self._recorder.add(request)
                return request
            self.misfit(request)
        return None

    def misfit(self, request: Request) -> None:
        """A trial fits no device: writes that down, and tells those who judge trials."""
        status: Status = "too_large" if self._study.settings.skip_too_large else "pruned"
        self._recorder.misfit(request, misfit_text(request, self._study.whole), status)
        self._pruning.ended(request.trial, "unfit", {})

    def ended(self, outcome: Outcome) -> None:
        """A trial has ended for good."""
        self._pruning.ended(outcome.trial, STATES.get(outcome.status, "failed"), outcome.metrics)
