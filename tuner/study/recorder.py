"""The study's listener: records and shows the events of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tuner.decisions.events import Allowed, Concluded, Dropped, Event, Planned, Reported, Retried, Started
from tuner.decisions.state import State
from tuner.errors import joined
from tuner.execution.executor import Weights
from tuner.execution.loop import Listener
from tuner.integrations.trackers.adapter import Trackers
from tuner.records.attempts import Attempt, Times
from tuner.records.epochs import EpochLog
from tuner.records.files import EPOCHS
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import Suggestion
from tuner.reporting.progress import StudyProgress
from tuner.reporting.texts import count_text
from tuner.search.optuna_names import FIFO, PBT
from tuner.study.sources import Objectives
from tuner.trial import Configuration, EpochReport, MemoryEstimate, Outcome, Placement, Question, Request, Trial
from tuner.values import label
from tuner.workloads.written_files import WrittenFiles, Wrote


@dataclass(eq=False)
class Recorder(Listener):
    """Records the events of the loop. In the end every trial has a row."""

    folder: StudyFolder
    known: int  # configurations; a search may add to them
    requests: Sequence[Request]  # the trials that are left of these
    progress: StudyProgress
    trackers: Trackers
    scheduler: str = FIFO
    objectives: Objectives | None = None  # those of a user's own Optuna study
    callbacks: Sequence[Callable[[Event], object]] = ()  # are called with every event
    weights: Callable[[Trial], bytes] = lambda _: b""  # of a trial that has not completed
    order: int = 0  # the last one on disk, of all that has happened in the study

    def __post_init__(self) -> None:
        self._written = WrittenFiles()
        self._unfinished = {request.trial.trial_id: request for request in self.requests}
        self._placements: dict[str, tuple[Placement, float, float]] = {}
        self._reports: dict[str, EpochReport] = {}
        self._bests: dict[str, dict[str, float]] = {}  # the metrics of the best report of each running trial
        self._stopped: dict[str, tuple[Outcome, float]] = {}  # and when; monotonic seconds
        self._ends: dict[str, tuple[Attempt, Outcome]] = {}  # of the attempts that have just ended
        self._epochs = EpochLog(self.folder.path / EPOCHS)

    def append(self, outcome: Outcome, weights: Weights) -> None:
        """Records an attempt that has ended. One that was interrupted has its row when it is known why."""
        trial_id = outcome.trial.trial_id
        if outcome.status == "interrupted":
            self._stopped[trial_id] = outcome, time.monotonic()
            return
        outcome = self._described(outcome)
        request = self._unfinished.pop(trial_id)
        estimate = outcome.placement.estimate if outcome.placement else request.estimate
        weights = weights if outcome.status == "completed" else partial(self.weights, outcome.trial)
        row = self._record(outcome, estimate, weights)
        if outcome.status == "paused":  # it is decided later what follows
            self.progress.paused(outcome, request)
        else:
            self._ends[trial_id] = row, outcome
        self._placements.pop(trial_id, None)
        self._reports.pop(trial_id, None)
        self._bests.pop(trial_id, None)

    def hear(self, state: State, event: Event) -> None:
        """Records and shows an event."""
        if self.objectives:
            self.objectives.hear(state, event)
        if isinstance(event, Planned):
            self._planned(event)
        elif isinstance(event, Started):
            self._started(event.placement)
        elif isinstance(event, Reported):
            self._reported(event.report)
        elif isinstance(event, Retried):
            self._unfinished[event.request.trial.trial_id] = event.request
            self._follows(event.request.trial, event)
            self._takes_over(event)
        elif isinstance(event, Concluded):
            self._follows(event.ended.trial, None)
        elif isinstance(event, Dropped):
            self._unfinished[event.request.trial.trial_id] = event.request
            self.append(event.outcome, bytes)
            self._follows(event.outcome.trial, None)
        elif isinstance(event, Allowed) and event.said:
            self.noted(f"{event.device.label}: {event.said}")
        for callback in self.callbacks:
            callback(event)

    def answer(self, question: Question) -> object:
        """What Optuna's trial answers; raises what it raises. Hears which files a script's trial has written."""
        if isinstance(question.content, Wrote):
            request = self._unfinished.get(question.trial_id)
            if request and (warning := self._written.shared(request.trial.name, question.content)):
                self.noted(warning)
            return None
        return self.objectives.answer(question) if self.objectives else None

    def noted(self, text: str) -> None:
        """Shows a line to the user."""
        self.progress.note(text)

    def tick(self) -> None:
        """Time has passed."""
        self.progress.tick()

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study ends: trials have some seconds to write checkpoints, or cannot be asked because of ``fault``."""
        self.progress.stopping(trials, seconds, fault)

    def close(self, cause: str) -> None:
        """Records every unfinished trial as ``interrupted``, and closes the folder."""
        try:
            for request in self._unfinished.values():
                outcome = self._unfinished_outcome(request, cause)
                weights = partial(self.weights, outcome.trial)
                self.trackers.ended(self._record(outcome, request.estimate, weights))
            self._unfinished.clear()
        finally:
            self._epochs.close()
            self.folder.close()
            self._say(self.trackers.close())

    def _planned(self, event: Planned) -> None:
        """Writes down what a search has suggested, before it runs, and after what it was told before."""
        suggestion = Suggestion(number=self.known + 1, order=self._next(), refused=event.refused)
        for request in event.requests:
            self._unfinished[request.trial.trial_id] = request
            self.known += 1
            configuration = Configuration(request.trial.name, request.trial.config)
            suggestion = replace(suggestion, configuration=configuration)
        self.folder.suggested(suggestion)

    def _started(self, placement: Placement) -> None:
        self._placements[placement.trial.trial_id] = placement, time.time(), time.monotonic()
        self.progress.started(placement)
        self.trackers.started(placement)

    def _reported(self, report: EpochReport) -> None:
        trial = self._placements[report.trial_id][0].trial
        self._reports[report.trial_id] = report
        self._compare(trial, report)
        self._epochs.add(report, trial.attempt, self._next())
        self.progress.reported(report)
        self.trackers.reported(report)
        self._say(self.trackers.faults())

    def _compare(self, trial: Trial, report: EpochReport) -> None:
        """Keeps what a trial reported at its best, also in earlier sessions: its weights are of that epoch."""
        objective = self.progress.objectives[trial.workload]
        best = self._bests.get(trial.trial_id) or self.folder.reported(trial.trial_id)[0]
        value = report.metrics.get(objective.metric)
        if value is not None and objective.better(value, than=best.get(objective.metric, objective.worst)):
            self._bests[trial.trial_id] = {**report.metrics, "best_epoch": report.epoch}

    def _follows(self, trial: Trial, retry: Retried | None) -> None:
        """It is known what follows an attempt: a retry, or nothing. One that was interrupted has no row yet."""
        if trial.trial_id in self._ends:
            row, outcome = self._ends.pop(trial.trial_id)
            self.progress.finished(outcome, retry)
            if not retry:
                self.trackers.ended(row)

    def _takes_over(self, event: Retried) -> None:
        """Says which member of a population takes over which one's checkpoint, and the values that it changes."""
        trial, before = event.request.trial, event.ended.trial
        source = trial.parent.partition("@")[0]
        if source and source != trial.trial_id:
            old, now = ({key: label(one) for key, one in each.config.items()} for each in (before, trial))
            changes = [f"{key}={text}" for key, text in now.items() if text != old.get(key)]
            with_values = f" with {', '.join(changes)}" if changes else ""
            self.noted(f"{trial.name} ({trial.trial_id}) takes over {source} after epoch {trial.begun}{with_values}")

    def _described(self, outcome: Outcome) -> Outcome:
        """The outcome with the reason why it was pruned, and with the parameters that an objective has asked for."""
        report = self._reports.get(outcome.trial.trial_id)
        if outcome.status == "pruned" and report:
            done = count_text(report.epochs or outcome.epochs, "epoch")
            done = f"{outcome.epochs} of {done}" if report.epochs else done
            by_itself = self.scheduler in (FIFO, PBT)  # which ends none, so an objective of Optuna's did
            reason = f"{'the objective pruned it' if by_itself else f'{self.scheduler} ended it'} after {done}"
            outcome = replace(outcome, error=joined(reason, outcome.error))
        return self.objectives.described(outcome) if self.objectives else outcome

    def _next(self) -> int:
        self.order += 1
        return self.order

    def _record(self, outcome: Outcome, estimate: MemoryEstimate, weights: Weights) -> Attempt:
        times = self._times(outcome.trial.trial_id)
        return self.folder.record(outcome, estimate, weights, times, self._next())

    def _say(self, faults: Sequence[str]) -> None:
        for fault in faults:
            self.progress.note(fault)

    def _times(self, trial_id: str) -> Times | None:
        """When the running attempt was placed, and now; never earlier, even if the system's clock is changed."""
        if trial_id not in self._placements:
            return None
        _, at, began = self._placements[trial_id]
        return at, at + self._ended(trial_id) - began

    def _ended(self, trial_id: str) -> float:
        """When the running attempt was stopped, or now; monotonic seconds."""
        return self._stopped[trial_id][1] if trial_id in self._stopped else time.monotonic()

    def _unfinished_outcome(self, request: Request, cause: str) -> Outcome:
        trial_id = request.trial.trial_id
        if trial_id not in self._placements:
            metrics, epochs = self.folder.reported(trial_id)
            return Outcome(request.trial, "interrupted", None, metrics, epochs, error=f"{cause} before it started")
        placement, _, began = self._placements[trial_id]
        report = self._reports.get(trial_id, EpochReport(trial_id, 0, 0))
        stopped, _ = self._stopped.get(trial_id, (Outcome(placement.trial, "interrupted", placement), 0.0))
        return replace(
            stopped,
            metrics=self._bests.get(trial_id) or self.folder.reported(trial_id)[0] or report.metrics,
            epochs=report.epoch,
            seconds=max(stopped.seconds, self._ended(trial_id) - began),
            error=joined(f"{cause} while it ran", stopped.error),
        )
