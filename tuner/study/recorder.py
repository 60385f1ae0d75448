"""The study's listener: records and shows the events of the loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tuner.decisions.events import Allowed, Concluded, Dropped, Event, Planned, Reported, Retried, Started
from tuner.decisions.state import State
from tuner.errors import joined, printable, spelled
from tuner.execution.executor import Weights
from tuner.execution.loop import Listener
from tuner.execution.weights import weights_so_far
from tuner.integrations.trackers.adapter import Trackers
from tuner.records.attempts import Attempt, Times
from tuner.records.epochs import EpochLog
from tuner.records.files import CHECKPOINTS, EPOCHS
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import Suggestion
from tuner.reporting.progress import StudyProgress
from tuner.reporting.texts import count_text
from tuner.search.optuna_names import FIFO, PBT
from tuner.study.prepare import Steering, Study
from tuner.trial import Configuration, EpochReport, MemoryEstimate, Outcome, Placement, Question, Request, Trial
from tuner.values import label
from tuner.workloads.script import WrittenFiles, Wrote


@dataclass
class _Running:
    """A running attempt, as far as it is known."""

    placement: Placement
    at: float  # when it was placed, in seconds since 1970
    began: float  # the same; monotonic seconds
    report: EpochReport | None = None  # the last one
    best: Mapping[str, float] = field(default_factory=dict)  # the metrics of its best report, or those that count
    last: list[Mapping[str, float]] = field(default_factory=list)  # its last reports, if these count
    stopped: Outcome | None = None  # how it was interrupted
    ended: float | None = None  # and when; monotonic seconds

    @property
    def seconds(self) -> float:
        """How long it has run, or did until it was stopped."""
        return (time.monotonic() if self.ended is None else self.ended) - self.began


class Recorder(Listener):
    """Records the events of the loop. In the end every trial has a row."""

    def __init__(
        self,
        study: Study,
        steering: Steering,
        requests: Sequence[Request],
        folder: StudyFolder,
        progress: StudyProgress,
        trackers: Trackers,
    ) -> None:
        """Begins with what a study has tried before; ``requests`` are the trials that are left of what is known."""
        self._study, self._source, self._folder = study, steering.source, folder
        self._progress, self._trackers = progress, trackers
        self._objectives = steering.source.objectives
        self._scheduler = study.settings.scheduler_name
        self._known = len(study.trials)  # configurations; a search may add to them
        self._order = steering.order  # the last one on disk, of all that has happened in the study
        self._written = WrittenFiles()
        self._remarks: dict[str, str] = {}  # on files that trials share, by id
        self._unfinished = {request.trial.trial_id: request for request in requests}
        self._running: dict[str, _Running] = {}
        self._ends: dict[str, tuple[Attempt, Outcome]] = {}  # of the attempts that have just ended
        self._epochs = EpochLog(folder.path / EPOCHS)

    def append(self, outcome: Outcome, weights: Weights) -> None:
        """Records an attempt that has ended. One that was interrupted has its row when it is known why."""
        trial_id = outcome.trial.trial_id
        if outcome.status == "interrupted":
            self._running[trial_id].stopped, self._running[trial_id].ended = outcome, time.monotonic()
            return
        outcome = self._described(outcome)
        request = self._unfinished.pop(trial_id)
        estimate = outcome.placement.estimate if outcome.placement else request.estimate
        weights = weights if outcome.status == "completed" else self._weights_so_far(outcome.trial)
        row = self._record(outcome, estimate, weights)
        if outcome.status == "paused":  # it is decided later what follows
            self._progress.paused(outcome, request)
        else:
            self._ends[trial_id] = row, outcome
        self._running.pop(trial_id, None)

    def hear(self, state: State, event: Event) -> None:
        """Records and shows an event."""
        if self._objectives:
            self._objectives.hear(state, event)
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
        for callback in self._study.settings.callbacks or ():
            callback(event)
        if isinstance(event, (Retried, Concluded)) and (pauses := self._source.kept(state)) is not None:
            self._folder.keep_pauses(pauses)

    def answer(self, question: Question) -> object:
        """What Optuna's trial answers; raises what it raises. Hears which files a script's trial has written."""
        if isinstance(question.content, Wrote):
            request = self._unfinished.get(question.trial_id)
            if request and (remark := self._written.remark(request.trial.name, question.content)):
                if not self._remarks:
                    self.noted(remark)
                self._remarks[question.trial_id] = f"shared file: {spelled(remark)}"
            return None
        return self._objectives.answer(question) if self._objectives else None

    def noted(self, text: str) -> None:
        """Shows a line to the user."""
        self._progress.note(text)

    def tick(self) -> None:
        """Time has passed."""
        self._progress.tick()

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study ends: trials have some seconds to write checkpoints, or cannot be asked because of ``fault``."""
        self._progress.stopping(trials, seconds, fault)

    def close(self, cause: str) -> None:
        """Records every unfinished trial as ``interrupted``, and closes the folder."""
        try:
            waiting: list[tuple[Outcome, MemoryEstimate, int]] = []
            for request in self._unfinished.values():
                outcome = self._unfinished_outcome(request, cause)
                if outcome.placement or outcome.metrics:
                    weights = self._weights_so_far(outcome.trial)
                    self._trackers.ended(self._record(outcome, request.estimate, weights))
                else:
                    waiting.append((outcome, request.estimate, self._next()))
            for row in self._folder.record_waiting(waiting):
                self._trackers.ended(row)
            self._unfinished.clear()
        finally:
            self._epochs.close()
            self._folder.close()
            self._say(self._trackers.close())

    def _planned(self, event: Planned) -> None:
        """Writes down what a search has suggested, before it runs, and after what it was told before."""
        suggestion = Suggestion(number=self._known + 1, order=self._next(), refused=event.refused)
        for request in event.requests:
            self._unfinished[request.trial.trial_id] = request
            self._known += 1
            configuration = Configuration(request.trial.name, request.trial.config)
            suggestion = replace(suggestion, configuration=configuration)
        self._folder.suggested(suggestion)

    def _started(self, placement: Placement) -> None:
        self._running[placement.trial.trial_id] = _Running(placement, time.time(), time.monotonic())
        self._progress.started(placement)
        self._trackers.started(placement)

    def _reported(self, report: EpochReport) -> None:
        attempt = self._running[report.trial_id]
        trial, attempt.report = attempt.placement.trial, report
        self._compare(attempt, report)
        self._epochs.add(report, trial.attempt, self._next(), attempt.placement)
        self._progress.reported(report)
        self._trackers.reported(report)
        self._say(self._trackers.faults())

    def _compare(self, attempt: _Running, report: EpochReport) -> None:
        """Keeps what a trial reported at its best, also in earlier sessions: its weights are of that epoch."""
        objective = self._progress.objectives[attempt.placement.trial.workload]
        best = attempt.best or self._folder.reported(report.trial_id)[0]
        value = report.metrics.get(objective.metric)
        if objective.last:
            attempt.last = [*attempt.last, report.metrics][-objective.last :]
            attempt.best = {**objective.mean(attempt.last), "best_epoch": report.epoch}
        elif value is not None and objective.better(value, than=best.get(objective.metric, objective.worst)):
            attempt.best = {**report.metrics, "best_epoch": report.epoch}

    def _follows(self, trial: Trial, retry: Retried | None) -> None:
        """It is known what follows an attempt: a retry, or nothing. One that was interrupted has no row yet."""
        if trial.trial_id in self._ends:
            row, outcome = self._ends.pop(trial.trial_id)
            self._progress.finished(outcome, retry)
            if not retry:
                self._trackers.ended(row)

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
        attempt = self._running.get(outcome.trial.trial_id)
        report = attempt.report if attempt else None
        outcome = replace(outcome, error=joined(outcome.error, self._remarks.get(outcome.trial.trial_id)))
        if outcome.status == "pruned" and report:
            done = count_text(report.epochs or outcome.epochs, "epoch")
            done = f"{outcome.epochs} of {done}" if report.epochs else done
            by_itself = self._scheduler in (FIFO, PBT)  # which ends none, so an objective of Optuna's did
            reason = f"{'the objective pruned it' if by_itself else f'{self._scheduler} ended it'} after {done}"
            outcome = replace(outcome, error=joined(reason, outcome.error))
        return self._objectives.described(outcome) if self._objectives else outcome

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _record(self, outcome: Outcome, estimate: MemoryEstimate, weights: Weights) -> Attempt:
        times = self._times(outcome.trial.trial_id)
        error, traceback = printable(outcome.error), printable(outcome.traceback)  # which files keep
        outcome = replace(outcome, error=error, traceback=traceback)
        return self._folder.record(outcome, estimate, weights, times, self._next())

    def _say(self, faults: Sequence[str]) -> None:
        for fault in faults:
            self._progress.note(fault)

    def _times(self, trial_id: str) -> Times | None:
        """When the running attempt was placed, and now; never earlier, even if the system's clock is changed."""
        attempt = self._running.get(trial_id)
        return (attempt.at, attempt.at + attempt.seconds) if attempt else None

    def _weights_so_far(self, trial: Trial) -> Weights:
        """Fetches the weights of a trial that has not completed."""
        return partial(weights_so_far, self._study.tasks[trial.workload], trial, self._folder.path / CHECKPOINTS)

    def _unfinished_outcome(self, request: Request, cause: str) -> Outcome:
        attempt = self._running.get(request.trial.trial_id)
        metrics, epochs = self._folder.reported(request.trial.trial_id)
        if attempt is None:
            error = f"{printable(cause)} before it started"
            return Outcome(request.trial, "interrupted", None, metrics, epochs, error=error)
        stopped = attempt.stopped or Outcome(attempt.placement.trial, "interrupted", attempt.placement)
        return replace(
            stopped,
            metrics=attempt.best or metrics or (attempt.report.metrics if attempt.report else {}),
            epochs=attempt.report.epoch if attempt.report else 0,
            seconds=max(stopped.seconds, attempt.seconds),
            error=joined(f"{cause} while it ran", stopped.error),
        )
