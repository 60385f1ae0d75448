"""Tells trackers what happens in a study. Figures have the names that they have in the CSV.

Each tracker is a thread, so that a slow or failing one does not delay the study. Events stay in order. The end of the
study waits for them, at most ``CLOSE_SECONDS``. An epoch is sent once: a trial that trains it again, after a retry or
a resume, keeps its first figures.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tuner.errors import one_line
from tuner.records.attempts import AFTER_METRICS, Attempt
from tuner.records.study_record import StudyRecord
from tuner.trial import GB, ConfigValue, EpochReport, Placement, Trial
from tuner.values import in_table

CLOSE_SECONDS = 30.0
EPOCH = "epoch/"  # the prefix of figures after an epoch; the plain name is the CSV's final figure
TEXTS = ("workload", "name", "status", "device", "error")
Figures = dict[str, float]
Event = Callable[["Tracker"], None]


class Tracker(Thread):
    """The thread of a tracker, which overrides what it wants to know. An error ends it, and not the study."""

    package = ""  # the one that must be installed

    def __init__(self, name: str) -> None:
        # A daemon, so that the process can end while a server does not answer.
        super().__init__(daemon=True, name=name)
        self.queue: SimpleQueue[Event | None] = SimpleQueue()
        self.faults: SimpleQueue[str] = SimpleQueue()

    def run(self) -> None:
        """Handles what is queued, until that is None."""
        try:
            while event := self.queue.get():
                event(self)
        except Exception as error:
            text = one_line(error, 300) or type(error).__name__
            self.faults.put(f"{self.name}: {text}; it gets no more data; the study continues")

    def connect(self) -> None:
        """Raises ``InputError`` if it cannot be used; nothing is written yet."""

    def open(self, name: str, study_id: str, folder: Path) -> None:
        """A study begins or is resumed. It has its folder's name, and an id that never changes."""

    def begin(self, trial: Trial) -> None:
        """A trial is placed for the first time, or after a resume. All attempts of a trial are one run."""

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """An epoch has ended."""

    def end(self, row: Attempt) -> None:
        """A trial has ended, with this row of the CSV."""


def epoch_figures(report: EpochReport, share_bytes: int) -> Figures:
    """An epoch's metrics as in ``epochs.jsonl``, and the memory that the trial has and has taken."""
    finite = {name: value for name, value in report.metrics.items() if math.isfinite(value)}
    figures = {EPOCH + name: float(value) for name, value in finite.items()}
    figures["memory/share_gb"] = round(share_bytes / GB, 4)
    return figures if report.memory_bytes is None else {**figures, "memory/taken_gb": report.memory_bytes / GB}


def row_figures(row: Attempt) -> Figures:
    """The numbers in a row of the CSV without the configuration: metrics, epochs, seconds, shares and memory."""
    names = ("attempts", *row.metrics, *AFTER_METRICS)
    return {name: float(value) for name in names if isinstance(value := row.value(name), (int, float))}


def config_of(one: Trial | Attempt) -> dict[str, ConfigValue]:
    """The hyperparameters of a trial as people read them, and its seed."""
    return {**{key: in_table(value) for key, value in one.config.items()}, "seed": one.seed}


def row_texts(row: Attempt) -> dict[str, str]:
    """The texts in a row: workload, name, status, device and error."""
    return {key: str(value) for key in TEXTS if (value := row.value(key))}


class Trackers:
    """The trackers of a study, of which there may be none."""

    def __init__(self, trackers: Sequence[Tracker] = (), close_seconds: float = CLOSE_SECONDS) -> None:
        self._trackers, self._close_seconds = trackers, close_seconds
        self._placements: dict[str, Placement] = {}  # of trials that have not ended, by their ids
        self._sent: dict[str, int] = {}  # the last epoch of each trial that was sent

    def connect(self) -> None:
        """Checks that all can be used; raises ``InputError`` if not."""
        for tracker in self._trackers:
            tracker.connect()

    def open(self, folder: Path, study: StudyRecord, reported: Mapping[str, int]) -> None:
        """A study begins or is resumed.

        ``study`` is the content of its ``study.json``, ``reported`` the last epoch that each trial reported before.
        """
        self._sent = dict(reported)
        text = json.dumps([study.started, study.command, study.fingerprint])  # they never change
        study_id = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        for tracker in self._trackers:
            tracker.start()
        self._send(lambda tracker: tracker.open(folder.resolve().name, study_id, folder))

    def started(self, placement: Placement) -> None:
        """A trial has been placed and started."""
        if placement.trial.trial_id not in self._placements:
            self._send(lambda tracker: tracker.begin(placement.trial))
        self._placements[placement.trial.trial_id] = placement

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        if report.metrics and report.epoch > self._sent.get(report.trial_id, 0):
            self._sent[report.trial_id] = report.epoch
            figures = epoch_figures(report, self._placements[report.trial_id].limit_bytes)
            self._send(lambda tracker: tracker.log(report.trial_id, report.epoch, figures))

    def ended(self, row: Attempt) -> None:
        """A trial has ended or was interrupted. A trial that was never placed has no run."""
        if self._placements.pop(row.trial_id, None):
            self._send(lambda tracker: tracker.end(row))

    def faults(self) -> list[str]:
        """The trackers' errors since the last call, a line each."""
        return [tracker.faults.get() for tracker in self._trackers if not tracker.faults.empty()]

    def close(self) -> list[str]:
        """Waits until everything has been sent; returns the trackers' errors, a line each."""
        deadline = time.monotonic() + self._close_seconds
        running = [tracker for tracker in self._trackers if tracker.is_alive()]
        for tracker in running:
            tracker.queue.put(None)
            tracker.join(max(0.0, deadline - time.monotonic()))
        late = [tracker for tracker in running if tracker.is_alive()]
        return [
            *self.faults(),
            *(f"{tracker.name}: did not accept everything within {self._close_seconds:g} s" for tracker in late),
        ]

    def _send(self, event: Event) -> None:
        """Queues an event for each tracker that no error has ended."""
        for tracker in self._trackers:
            if tracker.is_alive():
                tracker.queue.put(event)
