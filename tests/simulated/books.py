"""What must hold in every whole study, over all its processes. Nothing here asks the code that decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import le
from pathlib import Path

from tuner.decisions.events import Dropped, Ended, Event, Planned, Reported, Retried, Started
from tuner.decisions.state import State
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.files import ATTEMPTS, BEST
from tuner.records.journal import read_attempts
from tuner.records.study_record import read_suggestions
from tuner.study.prepare import Steering, Study
from tuner.trial import Config, Trial


class Books:
    """Keeps what a study has done, and checks it; raises AssertionError."""

    def __init__(self, kind: str, objectives: Sequence[Objective], most: int, most_gb: float, *, once: bool) -> None:
        """Of at most so many trials, none has a larger ``w``, its GB, than ``most_gb``; with ``once`` all differ."""
        self.kind, self.objectives, self.once = kind, objectives, once
        self.most, self.most_gb = most, most_gb
        self.ran: set[str] = set()
        self.seen: set[type] = set()
        self.completed: dict[str, Attempt] = {}  # the rows of completed trials, by id
        self.configs: dict[str, Config] = {}  # of trials whose values are suggested or drawn
        self.ended: dict[str, tuple[object, ...]] = {}  # how each trial has ended
        self._stopped: dict[str, tuple[Trial, int]] = {}  # trials that ended with a checkpoint, and their epochs
        self._paused: set[str] = set()  # members of which nobody has decided yet how they go on
        self._attempts: dict[str, int] = {}  # the number of each trial's last attempt that has a row
        self._pauses: dict[str, float] = {}  # the losses of members as they paused
        self._last: set[str] = set()  # the running trials that have done all their epochs
        self._suggested: dict[str, Config] = {}  # what the process knows of them
        self._asked: set[str] = set()  # the ids of those that are written down
        self._most: int | None = None

    def planned(self, steering: Steering, study: Study) -> None:
        """A process begins."""
        self._most = study.settings.max_workers
        again = {request.trial.trial_id for request in study.requests} & set(self.completed)
        assert not again, "a completed trial is planned again"
        assert self._paused <= {*steering.engine.state.undecided}, "it is decided too early how a member goes on"
        self.suggested(steering)

    def suggested(self, steering: Steering) -> None:
        """What a process knows of the search's suggestions."""
        if steering.source.searcher is None:
            return
        configs = {one.trial.trial_id: one.trial.config for one in steering.source.estimates.requests}
        changed = [name for name, config in self.configs.items() if configs.get(name, config) != config]
        assert not changed, "a suggestion is another one after a resume"
        self._suggested = configs
        texts = [json.dumps(config, sort_keys=True) for config in configs.values()]
        assert not self.once or len({*texts}) == len(texts), "a configuration is suggested twice"

    def check(self, state: State, event: Event) -> None:
        """An event has led to a state."""
        self.seen.add(type(event))
        if isinstance(event, Started):
            self._started(state, event)
        elif isinstance(event, Planned):
            new = {one.trial.trial_id for one in event.requests}
            assert not new & self._asked, "a trial is suggested twice"
            self._asked |= new
        elif isinstance(event, Reported) and event.report.is_last:
            self._last.add(event.report.trial_id)
        elif isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, Dropped):
            assert event.request.trial.trial_id not in self.completed, "a completed trial is dropped"
        elif isinstance(event, Retried) and self.kind == "pbt":
            self._follows(event)

    def _started(self, state: State, event: Started) -> None:
        trial = event.request.trial
        assert trial.trial_id not in self.completed, "a completed trial runs again"
        assert trial.attempt > self._attempts.get(trial.trial_id, 0), "two attempts have the same number"
        assert float(trial.config.get("w", 0)) <= self.most_gb, "a trial runs that is known to break a constraint"
        assert self._most is None or len(state.running) <= self._most, "more trials run at once than may"
        self._last.discard(trial.trial_id)
        self.ran.add(trial.trial_id)
        assert len(self.ran) <= self.most, "more trials run than were asked for"
        until = trial.begun + 2 if self.kind == "pbt" and trial.begun < 4 else 0
        assert trial.until == until, "a member trains through its next pause"

    def _ended(self, event: Ended) -> None:
        name, status = event.trial.trial_id, event.result.status
        if status == "paused":
            self._pauses[event.trial.pause] = event.metrics["loss"] or 0.0
        assert name not in self.completed, "a completed trial ends again"
        assert status != "pruned" or name not in self._last, "a trial that has done all its epochs is pruned"

    def _follows(self, event: Retried) -> None:
        """A member goes on from the epoch that it had, wherever the checkpoint is from."""
        before, after = event.ended, event.request.trial
        if before.result.status == "paused":
            pause, source = self._pauses[before.trial.pause], self._pauses[after.parent]
            assert after.begun == before.epochs, "a member goes on from another epoch"
            assert source <= pause, "a member takes over a worse one"
        else:
            same = (after.parent, after.begun, after.until) == (
                *(before.trial.parent, before.trial.begun, before.trial.until),
            )
            assert same, "a member begins its interval with something else"

    def takes_over(self, trial: Trial, folder: Path | None) -> None:
        """An attempt begins, which may take over a checkpoint."""
        if trial.parent and folder and not (folder / trial.trial_id).is_dir():
            assert (folder / trial.parent).is_dir(), "a checkpoint is taken over that was removed"

    def begins(self, trial: Trial, epoch: int) -> None:
        """An attempt begins with a checkpoint after this epoch."""
        assert epoch >= trial.begun, "a member begins with less than it takes over"
        before, reached = self._stopped.pop(trial.trial_id, (trial, 0))
        same = (before.parent, before.config) == (trial.parent, trial.config)
        assert same, "an interrupted member gives up what it has"
        assert epoch >= reached, "a trial does not go on with what it has"

    def stopped(self, trial: Trial, epoch: int) -> None:
        """An attempt was asked to stop, and has its checkpoint after this epoch."""
        self._stopped[trial.trial_id] = trial, epoch

    def audit(self, folder: Path) -> None:
        """A process has ended, and left this."""
        rows, _ = read_attempts(folder / ATTEMPTS)
        self._asked = {f"t{line.number:03d}" for line in read_suggestions(folder) if line.configuration}
        self.configs = {name: self._suggested[name] for name in sorted(self._asked)}
        found = [row for row in rows if row.status == "completed"]
        assert len(found) == len({row.trial_id for row in found}), "a trial is completed twice"
        now = {row.trial_id: row for row in found}
        assert all(now.get(name) == row for name, row in self.completed.items()), "a completed trial has changed"
        latest = {row.trial_id: row for row in rows}
        self.completed = now
        self._paused = {row.trial_id for row in latest.values() if row.status == "paused"}
        self._attempts = {row.trial_id: row.attempts for row in rows if row.device}
        assert all(latest[name] == row for name, row in now.items()), "something follows on a completion"
        self.ended = {name: (row.status, row.epochs, row.metrics) for name, row in sorted(latest.items())}
        if found:
            self._best(found, folder)

    def _best(self, found: Sequence[Attempt], folder: Path) -> None:
        """The kept weights are of the trial that no other one is better than; of equal ones, of the first."""
        (mine,) = (row for row in found if row.trial_id == (folder / BEST).read_text())
        values = {row.trial_id: [row.metrics[one.metric] or 0.0 for one in self.objectives] for row in found}
        own = values[mine.trial_id]
        better = [value for value in values.values() if value != own and all(map(le, value, own))]
        first = len(own) > 1 or min(name for name, value in values.items() if value == own) == mine.trial_id
        assert first and not better, "the kept weights are not the best trial's"
