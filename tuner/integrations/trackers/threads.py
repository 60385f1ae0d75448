"""Runs each tracker in its own thread, so that a slow or failing tracker does not delay the study.

Events stay in order. The end of the study waits for them, at most ``CLOSE_SECONDS``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tuner.errors import one_line
from tuner.integrations.trackers.base import Figures, TrackedStudy, TrackedTrial, Tracker, epoch_figures, line_figures
from tuner.records.attempts import Attempt
from tuner.records.epochs import histories, read_epochs
from tuner.records.files import EPOCHS
from tuner.records.study_record import StudyRecord
from tuner.trial import EpochReport, Placement

CLOSE_SECONDS = 30.0


class Trackers:
    """All trackers of a study; there may be none."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._threads = [_TrackerThread(tracker) for tracker in trackers]
        self._placements: dict[str, Placement] = {}
        self._begun: set[str] = set()
        self._figures: dict[str, dict[int, Figures]] = {}  # by trial id and epoch

    def connect(self) -> None:
        """Checks that all can be used; raises ``InputError`` if not."""
        for thread in self._threads:
            thread.tracker.connect()

    def open(self, folder: Path, study: StudyRecord) -> None:
        """A study begins or is resumed; ``study`` is the content of its ``study.json``."""
        if not self._threads:
            return
        for trial_id, lines in histories(read_epochs(folder / EPOCHS)).items():
            self._figures[trial_id] = {epoch: line_figures(line) for epoch, line in lines.items()}
        about = TrackedStudy(folder.resolve().name, study_id(study), folder)
        for thread in self._threads:
            thread.start()
        self._send(lambda tracker: tracker.open(about))

    def started(self, placement: Placement) -> None:
        """A trial has been placed and started."""
        self._placements[placement.trial.trial_id] = placement
        self._begun.discard(placement.trial.trial_id)

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        trial_id = report.trial_id
        if trial_id not in self._begun:
            self._begin(trial_id, report.epoch)
        if not self._threads or not report.metrics:
            return
        figures = epoch_figures(report, self._placements[trial_id].limit_bytes)
        self._figures.setdefault(trial_id, {})[report.epoch] = figures
        self._send(lambda tracker: tracker.log(trial_id, report.epoch, figures))

    def ended(self, row: Attempt) -> None:
        """A trial has ended or was interrupted. A trial that was never placed has no run."""
        trial_id = row.trial_id
        if trial_id not in self._placements:
            return
        if trial_id not in self._begun:  # it failed before its first report
            self._begin(trial_id, max(self._figures.get(trial_id, {}), default=0))
        self._figures.pop(trial_id, None)
        del self._placements[trial_id]
        self._send(lambda tracker: tracker.end(row))

    def faults(self) -> list[str]:
        """The trackers' errors since the last call, a line each."""
        return [thread.faults.get() for thread in self._threads if not thread.faults.empty()]

    def close(self) -> list[str]:
        """Waits until everything has been sent; returns the trackers' errors, a line each."""
        self._send(lambda tracker: tracker.close())
        deadline = time.monotonic() + CLOSE_SECONDS
        late = [thread for thread in self._threads if not thread.finish(deadline - time.monotonic())]
        faults = [f"{thread.tracker.name}: did not take everything within {CLOSE_SECONDS:g} s" for thread in late]
        return [*self.faults(), *faults]

    def _begin(self, trial_id: str, epoch: int) -> None:
        self._begun.add(trial_id)
        if not self._threads:
            return
        placement = self._placements[trial_id]
        earlier = {each: figures for each, figures in self._figures.get(trial_id, {}).items() if each <= epoch}
        self._figures[trial_id] = dict(earlier)
        tracked = TrackedTrial(placement.trial, placement.device.label, epoch, earlier)
        self._send(lambda tracker: tracker.begin(tracked))

    def _send(self, event: Callable[[Tracker], None]) -> None:
        for thread in self._threads:
            thread.put(event)


class _TrackerThread:
    """The thread of a tracker; after the first error the tracker gets nothing more."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.faults: SimpleQueue[str] = SimpleQueue()
        self._queue: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        # A daemon, so that the process can end while a server does not answer.
        self._thread = Thread(target=self._run, daemon=True, name=tracker.name)
        self._broken = False

    def start(self) -> None:
        self._thread.start()

    def put(self, event: Callable[[Tracker], None]) -> None:
        if not self._broken:
            self._queue.put(event)

    def finish(self, timeout_seconds: float) -> bool:
        """Whether everything has been sent within this time."""
        if self._thread.ident is None:
            return True
        self._queue.put(None)
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while event := self._queue.get():
            if self._broken:
                continue
            try:
                event(self.tracker)
            except Exception as error:
                self._broken = True
                text = one_line(error) or type(error).__name__
                self.faults.put(f"{self.tracker.name}: {text[:300]}; it gets nothing more, the study continues")


def study_id(study: StudyRecord) -> str:
    """Twelve letters that identify a study to trackers, also after it is resumed."""
    text = json.dumps([study.started, study.command, study.fingerprint])  # they never change
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
