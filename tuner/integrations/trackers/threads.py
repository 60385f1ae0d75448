"""Telling trackers what happens: each in a thread of its own, so that one that is slow or fails costs a line.

What is told is kept in order and waited for at the study's end, but no longer than ``CLOSE_SECONDS``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tuner.integrations.trackers.base import Figures, Run, Study, Tracker, epoch_figures, line_figures
from tuner.records.epochs import EPOCHS, histories, read_epochs
from tuner.records.rows import Row
from tuner.trial import EpochReport, Placement

CLOSE_SECONDS = 30.0
ID_KEYS = ("started", "command", "fingerprint")  # of study.json: they never change, wherever the folder is moved


class Trackers:
    """All trackers of a study, of which there may be none."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        """Tells nothing yet.

        Args:
            trackers: that the user has asked for.
        """
        self._feeds = [_Feed(tracker) for tracker in trackers]
        self._placements: dict[str, Placement] = {}
        self._begun: set[str] = set()
        self._told: dict[str, dict[int, Figures]] = {}

    def connect(self) -> None:
        """Makes sure that all can be used.

        Raises:
            InputError: one cannot.
        """
        for feed in self._feeds:
            feed.tracker.connect()

    def open(self, folder: Path, study: Mapping[str, Any]) -> None:
        """A study begins, or is gone on with.

        Args:
            folder: the study's.
            study: what its ``study.json`` says.
        """
        if not self._feeds:
            return
        for trial_id, lines in histories(read_epochs(folder / EPOCHS)).items():
            self._told[trial_id] = {epoch: line_figures(line) for epoch, line in lines.items()}
        about = Study(folder.resolve().name, study_id(study), folder)
        for feed in self._feeds:
            feed.start()
        self._tell(lambda tracker: tracker.open(about))

    def started(self, placement: Placement) -> None:
        """A trial has been given its place."""
        self._placements[placement.trial.trial_id] = placement
        self._begun.discard(placement.trial.trial_id)

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        trial_id = report.trial_id
        if trial_id not in self._begun:
            self._begin(trial_id, report.epoch)
        if not self._feeds or not report.metrics:
            return
        figures = epoch_figures(report, self._placements[trial_id].limit_bytes)
        self._told.setdefault(trial_id, {})[report.epoch] = figures
        self._tell(lambda tracker: tracker.log(trial_id, report.epoch, figures))

    def ended(self, row: Row) -> None:
        """A trial has ended for good, or for this time; one that was never placed has no run."""
        trial_id = row["trial_id"]
        if trial_id not in self._placements:
            return
        if trial_id not in self._begun:  # it failed before its first word
            self._begin(trial_id, max(self._told.get(trial_id, {}), default=0))
        self._told.pop(trial_id, None)
        del self._placements[trial_id]
        self._tell(lambda tracker: tracker.end(row))

    def faults(self) -> list[str]:
        """What has gone wrong since this was asked the last time, a line for each tracker."""
        return [feed.faults.get() for feed in self._feeds if not feed.faults.empty()]

    def close(self) -> list[str]:
        """Waits until everything has been told; returns what went wrong, a line each."""
        self._tell(lambda tracker: tracker.close())
        deadline = time.monotonic() + CLOSE_SECONDS
        late = [feed for feed in self._feeds if not feed.finish(deadline - time.monotonic())]
        said = [f"{feed.tracker.name}: did not take everything within {CLOSE_SECONDS:g} s" for feed in late]
        return [*self.faults(), *said]

    def _begin(self, trial_id: str, epoch: int) -> None:
        self._begun.add(trial_id)
        if not self._feeds:
            return
        placement = self._placements[trial_id]
        earlier = {each: told for each, told in self._told.get(trial_id, {}).items() if each <= epoch}
        self._told[trial_id] = dict(earlier)
        run = Run(placement.trial, placement.device.label, epoch, earlier)
        self._tell(lambda tracker: tracker.begin(run))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for feed in self._feeds:
            feed.put(what)


class _Feed:
    """A tracker with the thread that talks to it; after its first error it is told nothing more."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.faults: SimpleQueue[str] = SimpleQueue()
        self._queue: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        # Not waited for when the process ends: a server that does not answer must not keep it.
        self._thread = Thread(target=self._run, daemon=True, name=tracker.name)
        self._broken = False

    def start(self) -> None:
        self._thread.start()

    def put(self, what: Callable[[Tracker], None]) -> None:
        if not self._broken:
            self._queue.put(what)

    def finish(self, timeout_seconds: float) -> bool:
        """Whether everything has been told within so many seconds."""
        if self._thread.ident is None:
            return True
        self._queue.put(None)
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while what := self._queue.get():
            if self._broken:
                continue
            try:
                what(self.tracker)
            except Exception as error:
                self._broken = True
                said = " ".join(str(error).split()) or type(error).__name__
                self.faults.put(f"{self.tracker.name}: {said[:300]}; it is told nothing more, the study goes on")


def study_id(study: Mapping[str, Any]) -> str:
    """Twelve letters by which trackers know a study again when it is gone on with."""
    text = json.dumps([study.get(key) for key in ID_KEYS])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
