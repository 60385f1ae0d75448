"""How long a running study still takes, by what its epochs took so far.

An epoch of a trial takes what its own epochs took. Before that it takes what was expected of it, times how much
slower than expected the others are. Where nothing was expected, a trial's epochs are taken to grow with its
activations, as those of the same workload do. What is left is the time until the last worker is done, if each of them
takes the longest trial that waits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.trial import SUCCESSFUL, EpochReport, MemoryEstimate, Outcome, Placement, Request, Trial

MOST_BEGUN = 0.9  # of an epoch that is not reported yet counts as done
MANY = 2000  # more trials that wait are not scheduled one by one


@dataclass
class _Run:
    """A trial that runs, with seconds by the study's clock."""

    trial: Trial
    estimate: MemoryEstimate
    placed: float
    began: float | None = None  # when it said that training begins
    heard: float = 0.0  # when it last reported
    first: int = 0  # the epochs that were done when it began
    epoch: int = 0
    epochs: int = 0  # how many there will be; 0 if unknown

    @property
    def mean_seconds(self) -> float | None:
        """What its epochs took; None before the first has ended."""
        done = self.epoch - self.first
        return (self.heard - self.began) / done if done > 0 and self.began is not None else None


@dataclass
class _Pace:
    """What the epochs of one workload take, beside what was expected of them."""

    expected: float | None  # the seconds of an epoch for each unit of size, of trials that have both
    taken: float = 0.0  # the seconds of the epochs that were measured
    weight: float = 0.0  # what those weigh
    epochs: int = 0  # the most of any trial

    def weigh(self, estimate: MemoryEstimate) -> float:
        """What an epoch counts: its expected seconds, or its size on the same scale."""
        return estimate.epoch_seconds or _size(estimate) * (self.expected or 1.0)

    def with_running(self, runs: Iterable[_Run]) -> _Pace:
        """The same with the epochs of running trials."""
        pace = _Pace(self.expected, self.taken, self.weight, self.epochs)
        for run in runs:
            pace.add(run)
        return pace

    def add(self, run: _Run) -> None:
        """Adds the epochs of a trial."""
        self.epochs = max(self.epochs, run.epochs)
        if (mean := run.mean_seconds) is not None:
            self.taken += mean * (run.epoch - run.first)
            self.weight += self.weigh(run.estimate) * (run.epoch - run.first)

    def epoch_seconds(self, estimate: MemoryEstimate) -> float | None:
        """What an epoch of such a trial takes; None if that cannot be known yet."""
        if self.weight:
            return self.weigh(estimate) * self.taken / self.weight
        return self.weigh(estimate) if estimate.epoch_seconds else None


@dataclass
class _Mean:
    """The mean of what was added, which is asked for again and again."""

    total: float = 0.0
    number: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.number += 1

    @property
    def value(self) -> float | None:
        """None before the first one."""
        return self.total / self.number if self.number else None


class TimeLeft:
    """Follows the trials of a study; every time is in seconds by the same clock.

    A display asks from a thread of its own, so it goes through copies.
    """

    def __init__(self, requests: Sequence[Request], trials: int) -> None:
        """Before the first trial; there may be more ``trials`` than requests, which a search will suggest."""
        self._waiting = {request.trial.trial_id: request for request in requests}
        self._running: dict[str, _Run] = {}
        self._trials, self._ended, self._most = trials, 0, 1
        self._beside = _Mean()  # what ended trials took beside their epochs: their start, and their test
        self._whole: dict[str, _Mean] = {}  # what ended trials took in all, by workload
        self._epochs_done = self._epochs_asked = 0  # of trials that have ended
        self._paces = {name: _Pace(_expected(requests, name)) for name in {each.trial.workload for each in requests}}

    def started(self, placement: Placement, now: float) -> None:
        """A trial has been placed."""
        trial = placement.trial
        self._waiting.pop(trial.trial_id, None)
        self._running[trial.trial_id] = _Run(trial, placement.estimate, now, heard=now, epochs=trial.epochs)
        self._most = max(self._most, len(self._running))

    def reported(self, report: EpochReport, now: float) -> None:
        """A trial has begun to train, or finished an epoch."""
        run = self._running[report.trial_id]
        if run.began is None:
            run.began, run.first = now, report.epoch
        run.epoch, run.heard, run.epochs = report.epoch, now, report.epochs or run.epochs

    def finished(self, outcome: Outcome, again: Request | None, now: float) -> None:
        """An attempt has ended, with another to follow or for good."""
        run = self._running.pop(outcome.trial.trial_id, None)
        self._waiting.pop(outcome.trial.trial_id, None)
        if again:
            self._waiting[again.trial.trial_id] = again
            return
        self._ended += 1
        if run is None:
            return
        self._pace(run.trial.workload).add(run)
        if outcome.status not in SUCCESSFUL:  # where it ended tells nothing of the others
            return
        self._whole.setdefault(run.trial.workload, _Mean()).add(now - run.placed)
        if (mean := run.mean_seconds) is not None:
            self._beside.add(now - run.placed - mean * (run.epoch - run.first))
        if run.epochs:
            self._epochs_done += run.epoch
            self._epochs_asked += run.epochs

    def seconds(self, now: float) -> float | None:
        """How long the study still takes; None as long as that cannot be known."""
        running = list(self._running.values())
        paces = {name: self._pace(name).with_running(_of(running, name)) for name in self._names(running)}
        busy = [self._of_running(run, paces[run.trial.workload], now) for run in running]
        stride = math.ceil(len(self._waiting) / MANY)
        some = list(self._waiting.values())[:: stride or 1]
        waiting = [self._of_trial(each.trial, each.estimate, paces[each.trial.workload]) for each in some] * stride
        if None in busy or None in waiting or not (busy or waiting or self._whole):
            return None
        ends, lengths = [each or 0.0 for each in busy], [each or 0.0 for each in waiting]
        unseen = max(0, self._trials - self._ended - len(busy) - len(self._waiting))
        if unseen:
            ended = list(self._whole.values())
            known = len(lengths) + sum(each.number for each in ended)
            total = sum(lengths) + sum(each.total for each in ended)
            lengths += [total / known if known else sum(ends) / len(ends)] * unseen
        return _until_the_last(ends, lengths, self._most)

    def _names(self, running: Sequence[_Run]) -> set[str]:
        return {*self._paces, *(run.trial.workload for run in running)}

    def _pace(self, workload: str) -> _Pace:
        return self._paces.setdefault(workload, _Pace(None))

    def _of_trial(self, trial: Trial, estimate: MemoryEstimate, pace: _Pace) -> float | None:
        """What a trial will take from its start, if it ends as early as those before it did."""
        epochs, an_epoch = trial.epochs or pace.epochs, pace.epoch_seconds(estimate)
        if not epochs or an_epoch is None:
            return self._whole.get(trial.workload, _Mean()).value
        share = self._epochs_done / self._epochs_asked if self._epochs_asked else 1.0
        return epochs * an_epoch * share + self._beside_epochs()

    def _of_running(self, run: _Run, pace: _Pace, now: float) -> float | None:
        """What a trial that runs still takes."""
        an_epoch = run.mean_seconds
        if an_epoch is None or not run.epochs:
            whole = self._of_trial(run.trial, run.estimate, pace)
            return None if whole is None else max(whole - (now - run.placed), (1 - MOST_BEGUN) * whole)
        begun = min(now - run.heard, MOST_BEGUN * an_epoch) if run.epoch < run.epochs else 0.0
        return (run.epochs - run.epoch) * an_epoch - begun

    def _beside_epochs(self) -> float:
        """What a trial takes beside its epochs."""
        if (mean := self._beside.value) is not None:
            return mean
        starts = [run.began - run.placed for run in list(self._running.values()) if run.began is not None]
        return sum(starts) / len(starts) if starts else 0.0


def _size(estimate: MemoryEstimate) -> float:
    """What an epoch's time is taken to grow with."""
    return float(estimate.activation_bytes) or 1.0


def _expected(requests: Sequence[Request], workload: str) -> float | None:
    """The expected seconds of an epoch for each unit of size; None if none are expected."""
    known = [each.estimate for each in requests if each.trial.workload == workload and each.estimate.epoch_seconds]
    return sum(each.epoch_seconds or 0.0 for each in known) / sum(map(_size, known)) if known else None


def _of(running: Iterable[_Run], workload: str) -> list[_Run]:
    return [run for run in running if run.trial.workload == workload]


def _until_the_last(ends: Sequence[float], lengths: Sequence[float], workers: int) -> float:
    """When the last of the workers is done: ``ends`` are those of running trials, ``lengths`` of those that wait."""
    if len(lengths) > MANY:
        return max([(sum(ends) + sum(lengths)) / workers, *ends])
    free = [*ends, *[0.0] * (workers - len(ends))]
    heapq.heapify(free)
    for length in sorted(lengths, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free, default=0.0)
