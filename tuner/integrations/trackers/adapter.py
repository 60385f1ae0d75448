"""Tells trackers what happens in a study. Figures have the names that they have in the CSV.

Each tracker is a thread, so that a slow or failing one does not delay the study. Events stay in order. The end of the
study waits for them, at most ``CLOSE_SECONDS``.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tuner.errors import one_line
from tuner.records.attempts import AFTER_METRICS, Attempt
from tuner.records.epochs import histories, read_epochs
from tuner.records.files import EPOCHS
from tuner.records.study_record import StudyRecord
from tuner.trial import GB, ConfigValue, EpochReport, Placement, Trial

CLOSE_SECONDS = 30.0
EPOCH = "epoch/"  # the prefix of figures after an epoch; the plain name is the CSV's final figure
TEXTS = ("workload", "name", "status", "device", "error")
Figures = dict[str, float]


@dataclass(frozen=True)
class TrackedTrial:
    """A trial at the start of an attempt. All attempts of a trial are one run of the tracker."""

    trial: Trial
    epoch: int  # the last epoch that is not trained again; 0 for a new trial
    earlier: Mapping[int, Figures]  # the figures of the epochs up to that one

    @property
    def title(self) -> str:
        """The name of its run: trial id and configuration."""
        return f"{self.trial.trial_id} {self.trial.name}"

    @property
    def hyperparameters(self) -> dict[str, ConfigValue]:
        """Its configuration and its seed."""
        return {**self.trial.config, "seed": self.trial.seed}


class Tracker(Thread):
    """The thread of a tracker, which overrides what it wants to know. An error ends it, and not the study."""

    package = ""  # the one that must be installed

    def __init__(self, name: str) -> None:
        # A daemon, so that the process can end while a server does not answer.
        super().__init__(daemon=True, name=name)
        self.queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.faults: SimpleQueue[str] = SimpleQueue()

    def send(self, event: Callable[[], None]) -> None:
        """Queues an event, unless an error has ended the thread."""
        if self.is_alive():
            self.queue.put(event)

    def run(self) -> None:
        """Handles what is queued, until that is None."""
        try:
            while event := self.queue.get():
                event()
        except Exception as error:
            text = one_line(error, 300) or type(error).__name__
            self.faults.put(f"{self.name}: {text}; it gets nothing more, the study continues")

    def connect(self) -> None:
        """Raises ``InputError`` if it cannot be used; nothing is written yet."""

    def open(self, name: str, study_id: str, folder: Path) -> None:
        """A study begins or is resumed. It has its folder's name, and an id that never changes."""

    def begin(self, tracked: TrackedTrial) -> None:
        """An attempt has begun: creates the trial's run or continues it."""

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """An epoch has ended."""

    def end(self, row: Attempt) -> None:
        """A trial has ended, with this row of the CSV."""


def epoch_figures(metrics: Mapping[str, float | None], memory_gb: float | None) -> Figures:
    """An epoch's metrics as in ``epochs.jsonl``, and the memory that the trial has taken."""
    finite = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
    figures = {EPOCH + name: round(float(value), 6) for name, value in finite.items()}
    return figures if memory_gb is None else {**figures, "memory/taken_gb": round(memory_gb, 4)}


def row_figures(row: Attempt) -> Figures:
    """The numbers in a row of the CSV without the configuration: metrics, epochs, seconds, shares and memory."""
    names = ("attempts", *row.metrics, *AFTER_METRICS)
    return {name: float(value) for name in names if isinstance(value := row.value(name), (int, float))}


def row_texts(row: Attempt) -> dict[str, str]:
    """The texts in a row: workload, name, status, device and error."""
    return {key: str(value) for key in TEXTS if (value := row.value(key))}


class Trackers:
    """The trackers of a study, of which there may be none."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = trackers
        self._placements: dict[str, Placement] = {}
        self._begun: set[str] = set()
        self._figures: dict[str, dict[int, Figures]] = {}  # by trial id and epoch

    def connect(self) -> None:
        """Checks that all can be used; raises ``InputError`` if not."""
        for tracker in self._trackers:
            tracker.connect()

    def open(self, folder: Path, study: StudyRecord) -> None:
        """A study begins or is resumed; ``study`` is the content of its ``study.json``."""
        for trial_id, lines in histories(read_epochs(folder / EPOCHS)).items() if self._trackers else ():
            self._figures[trial_id] = {n: epoch_figures(line.metrics, line.memory_gb) for n, line in lines.items()}
        text = json.dumps([study.started, study.command, study.fingerprint])  # they never change
        study_id = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        for tracker in self._trackers:
            tracker.start()
            tracker.send(partial(tracker.open, folder.resolve().name, study_id, folder))

    def started(self, placement: Placement) -> None:
        """A trial has been placed and started."""
        self._placements[placement.trial.trial_id] = placement
        self._begun.discard(placement.trial.trial_id)

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        placement = self._placements[report.trial_id]
        self._begin(placement.trial, report.epoch)
        if report.metrics:
            figures = epoch_figures(report.metrics, report.memory_bytes and report.memory_bytes / GB)
            figures["memory/share_gb"] = round(placement.limit_bytes / GB, 4)
            self._figures[report.trial_id][report.epoch] = figures
            for tracker in self._trackers:
                tracker.send(partial(tracker.log, report.trial_id, report.epoch, figures))

    def ended(self, row: Attempt) -> None:
        """A trial has ended or was interrupted. A trial that was never placed has no run."""
        if placement := self._placements.pop(row.trial_id, None):
            self._begin(placement.trial, max(self._figures.get(row.trial_id, {}), default=0))
            del self._figures[row.trial_id]
            for tracker in self._trackers:
                tracker.send(partial(tracker.end, row))

    def faults(self) -> list[str]:
        """The trackers' errors since the last call, a line each."""
        return [tracker.faults.get() for tracker in self._trackers if not tracker.faults.empty()]

    def close(self) -> list[str]:
        """Waits until everything has been sent; returns the trackers' errors, a line each."""
        deadline = time.monotonic() + CLOSE_SECONDS
        running = [tracker for tracker in self._trackers if tracker.is_alive()]
        for tracker in running:
            tracker.queue.put(None)
            tracker.join(max(0.0, deadline - time.monotonic()))
        late = [tracker for tracker in running if tracker.is_alive()]
        return [
            *self.faults(),
            *(f"{tracker.name}: did not take everything within {CLOSE_SECONDS:g} s" for tracker in late),
        ]

    def _begin(self, trial: Trial, epoch: int) -> None:
        """At the first report of an attempt, which says where it goes on, or at its end if there was none."""
        if trial.trial_id in self._begun:
            return
        self._begun.add(trial.trial_id)
        known = self._figures.get(trial.trial_id, {})
        earlier = {number: known[number] for number in sorted(known) if number <= epoch}
        self._figures[trial.trial_id] = earlier
        for tracker in self._trackers:
            tracker.send(partial(tracker.begin, TrackedTrial(trial, epoch, dict(earlier))))
