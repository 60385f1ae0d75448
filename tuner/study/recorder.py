"""The study's listener: records and shows the events of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.execution.loop import Weights
from tuner.integrations.trackers.adapter import Trackers
from tuner.placement.retry import Retry
from tuner.records.attempts import Times
from tuner.records.epochs import EpochLog
from tuner.records.files import EPOCHS
from tuner.records.study_folder import StudyFolder
from tuner.reporting.progress import StudyProgress
from tuner.reporting.texts import count_text
from tuner.trial import DeviceLost, EpochReport, Outcome, Placement, Request, Status, Trial


class Recorder:
    """Records the events of the loop. In the end every trial has a row."""

    def __init__(
        self,
        folder: StudyFolder,
        progress: StudyProgress,
        requests: Sequence[Request],
        trackers: Trackers | None = None,
        scheduler: str = "",
        described: Callable[[Trial], Trial] | None = None,
    ) -> None:
        """All ``requests`` are unfinished. ``described`` adds parameters that were chosen while a trial ran."""
        self._folder = folder
        self._progress = progress
        self._unfinished = {request.trial.trial_id: request for request in requests}
        self._placements: dict[str, tuple[Placement, float, float]] = {}
        self._reports: dict[str, EpochReport] = {}
        self._stopped: dict[str, tuple[Outcome, float]] = {}  # and when; monotonic seconds
        self._epochs = EpochLog(folder.path / EPOCHS)
        self._trackers = trackers or Trackers()
        self._scheduler = scheduler
        self._described = described

    def add(self, request: Request) -> None:
        """Adds a trial that a search has suggested."""
        self._unfinished[request.trial.trial_id] = request

    def misfit(self, request: Request, reason: str, status: Status) -> None:
        """Records a trial that fits no device."""
        outcome = Outcome(request.trial, status, error=reason)
        self._folder.record(outcome, request.estimate, bytes)
        self._progress.finished(outcome, None)

    def started(self, placement: Placement) -> None:
        """A trial has been placed."""
        self._placements[placement.trial.trial_id] = placement, time.time(), time.monotonic()
        self._progress.started(placement)
        self._trackers.started(placement)

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        self._reports[report.trial_id] = report
        attempt = self._placements[report.trial_id][0].trial.attempt
        self._epochs.add(report, attempt)
        self._progress.reported(report)
        self._trackers.reported(report)
        self._say(self._trackers.faults())

    def finished(self, outcome: Outcome, weights: Weights, retry: Retry | None) -> None:
        """An attempt has ended; ``retry`` follows if it is not None."""
        trial_id = outcome.trial.trial_id
        if outcome.status == "interrupted":  # its row is written when it is known why the study has ended
            self._stopped[trial_id] = outcome, time.monotonic()
            return
        if outcome.status == "pruned" and trial_id in self._reports:
            epochs = self._reports[trial_id].epochs
            done = (
                f"{outcome.epochs} of {count_text(epochs, 'epoch')}"
                if epochs
                else count_text(outcome.epochs, "epoch")
            )
            by_itself = self._scheduler in ("", "fifo")  # which ends none, so an objective of Optuna's did
            said = f"{'the objective pruned it' if by_itself else f'{self._scheduler} ended it'} after {done}"
            outcome = replace(outcome, error="; ".join(filter(None, [said, outcome.error])))
        if self._described:
            outcome = replace(outcome, trial=self._described(outcome.trial))
        request = self._unfinished.pop(trial_id)
        times = self._times(trial_id)
        self._placements.pop(trial_id, None)
        self._reports.pop(trial_id, None)
        if retry:
            self._unfinished[trial_id] = retry.request
        estimate = outcome.placement.estimate if outcome.placement else request.estimate
        row = self._folder.record(outcome, estimate, weights, times)
        self._progress.finished(outcome, retry)
        if not retry:
            self._trackers.ended(row)

    def device_lost(self, event: DeviceLost) -> None:
        """A device is gone; its trials wait again."""
        self._progress.device_lost(event)

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
            for request in self._unfinished.values():
                outcome, times = self._unfinished_outcome(request, cause), self._times(request.trial.trial_id)
                self._trackers.ended(self._folder.record(outcome, request.estimate, bytes, times))
            self._unfinished.clear()
        finally:
            self._epochs.flush()
            self._folder.close()
            self._say(self._trackers.close())

    def _say(self, faults: Sequence[str]) -> None:
        for fault in faults:
            self._progress.note(fault)

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
            return Outcome(request.trial, "interrupted", error=f"{cause} before it started")
        placement, _, began = self._placements[trial_id]
        report = self._reports.get(trial_id, EpochReport(trial_id, 0, 0))
        stopped, _ = self._stopped.get(trial_id, (Outcome(placement.trial, "interrupted", placement), 0.0))
        return replace(
            stopped,
            metrics=report.metrics,
            epochs=report.epoch,
            seconds=self._ended(trial_id) - began,
            error="; ".join(filter(None, [f"{cause} while it ran", stopped.error])),
        )
