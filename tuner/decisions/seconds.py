"""How long epochs and studies take, by the epochs that were timed.

An epoch of a trial takes what its own epochs took. Before the first, it follows from other trials of its workload by
size: the seconds that were expected of an epoch, or the activations where nothing was expected of some trials.
"""

import heapq
import math
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tuner.trial import SUCCESSFUL, EpochReport, MemoryEstimate, Outcome, Placement, Request, Trial

MOST_BEGUN = 0.9  # of an epoch that is not reported yet counts as done
MANY = 2000  # more trials that wait are not scheduled one by one, and of those that ended only the latest count


class Pace:
    """The seconds of sizes that were timed, and of others: on a straight line of logarithms between the next two.

    Beyond all of them, seconds grow in proportion.
    """

    def __init__(self, timed: Iterable[tuple[float, float]]) -> None:
        """From pairs of a size and its seconds, both above 0."""
        by_size: dict[float, list[float]] = defaultdict(list)
        for size, seconds in timed:
            by_size[size].append(seconds)
        self.sizes = sorted(by_size)
        self._means = {size: fmean(seconds) for size, seconds in by_size.items()}

    def seconds(self, size: float) -> float | None:
        """The seconds of this size; None if nothing was timed."""
        if not self.sizes:
            return None
        place = bisect(self.sizes, size)
        low, high = self.sizes[max(place - 1, 0)], self.sizes[min(place, len(self.sizes) - 1)]
        if low == high:
            return self._means[low] * size / low
        share = math.log(size / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(self._means[low]) + share * math.log(self._means[high]))


@dataclass
class _Run:
    """A running trial, with seconds by the study's clock."""

    trial: Trial
    estimate: MemoryEstimate
    placed: float
    began: float | None = None  # when its first report said that training begins
    heard: float = 0.0  # when it last reported
    first: int = 0  # the epochs that were done when it began
    epoch: int = 0
    epochs: int = 0  # how many there will be; 0 if unknown

    @property
    def epoch_seconds(self) -> float | None:
        """The mean of its epochs; None before the first has ended."""
        done = self.epoch - self.first
        return (self.heard - self.began) / done if done > 0 and self.began is not None else None


class TimeLeft:
    """Estimates a study's remaining seconds from its trials' reports. All times are of the same clock.

    A display asks from a thread of its own, so methods that are asked go through copies.
    """

    def __init__(self, requests: Sequence[Request], trials: int) -> None:
        """Before the first trial; there may be more ``trials`` than requests, which a search will suggest."""
        self._waiting = {request.trial.trial_id: request for request in requests}
        self._running: dict[str, _Run] = {}
        self._trials, self._ended, self._most = trials, 0, 1
        # By workload: the sizes and seconds of epochs of ended trials, and the seconds of successful trials.
        self._timed: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=MANY))
        self._whole: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MANY))
        self._beside: deque[float] = deque(maxlen=MANY)  # the seconds of their starts and tests, beside their epochs
        self._epochs: dict[str, int] = defaultdict(int)  # the most that a trial of the workload has
        self._epochs_done = self._epochs_asked = 0  # of successful trials
        self._not_expected = {request.trial.workload for request in requests if not request.estimate.epoch_seconds}

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
        self._epochs[run.trial.workload] = max(self._epochs[run.trial.workload], run.epochs)

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
        workload, mean = run.trial.workload, run.epoch_seconds
        if mean:
            self._timed[workload].append((self._size(run.trial, run.estimate), mean))
        if outcome.status in SUCCESSFUL:  # where another ended tells nothing of the others
            self._whole[workload].append(now - run.placed)
            self._beside.append(now - run.placed - (mean or 0.0) * (run.epoch - run.first))
            self._epochs_done += run.epoch
            self._epochs_asked += run.epochs

    def seconds(self, now: float) -> float | None:
        """How long the study still takes; None as long as that cannot be known."""
        running, waiting = list(self._running.values()), list(self._waiting.values())
        paces = self._paces(running)
        ends = [self._of_running(run, paces, now) for run in running]
        stride = max(1, math.ceil(len(waiting) / MANY))
        lengths = [self._of_trial(request.trial, request.estimate, paces) for request in waiting[::stride]] * stride
        lasting = [seconds for seconds in (*ends, *lengths) if seconds is not None]
        if len(lasting) < len(ends) + len(lengths) or not (lasting or self._whole):
            return None
        whole = [*lasting[len(ends) :], *(seconds for ended in self._whole.values() for seconds in ended)]
        unseen = max(0, self._trials - self._ended - len(running) - len(waiting))
        return _until_the_last(
            lasting[: len(ends)], lasting[len(ends) :] + [fmean(whole or lasting)] * unseen, self._most
        )

    def _paces(self, running: Sequence[_Run]) -> dict[str, Pace]:
        """By workload: its ended trials, and its running ones so far."""
        timed = {workload: list(ended) for workload, ended in list(self._timed.items())}
        for run in running:
            if mean := run.epoch_seconds:
                timed.setdefault(run.trial.workload, []).append((self._size(run.trial, run.estimate), mean))
        return {workload: Pace(pairs) for workload, pairs in timed.items()}

    def _size(self, trial: Trial, estimate: MemoryEstimate) -> float:
        expected = None if trial.workload in self._not_expected else estimate.epoch_seconds
        return expected or estimate.activation_bytes or 1.0

    def _of_trial(self, trial: Trial, estimate: MemoryEstimate, paces: dict[str, Pace]) -> float | None:
        """A trial's seconds from its start, if it ends as early as those before it did."""
        pace, epochs = paces.get(trial.workload), trial.epochs or self._epochs.get(trial.workload, 0)
        epochs = max(0, epochs - trial.begun)
        an_epoch = pace.seconds(self._size(trial, estimate)) if pace else estimate.epoch_seconds
        if not epochs or an_epoch is None:
            ended = self._whole.get(trial.workload)
            return fmean(ended) if ended else None
        share = self._epochs_done / self._epochs_asked if self._epochs_asked else 1.0
        return epochs * an_epoch * share + self._beside_epochs()

    def _of_running(self, run: _Run, paces: dict[str, Pace], now: float) -> float | None:
        """The seconds that a running trial still takes."""
        an_epoch = run.epoch_seconds
        if an_epoch is None or not run.epochs:
            whole = self._of_trial(run.trial, run.estimate, paces)
            return None if whole is None else max(whole - (now - run.placed), (1 - MOST_BEGUN) * whole)
        begun = min(now - run.heard, MOST_BEGUN * an_epoch) if run.epoch < run.epochs else 0.0
        return (run.epochs - run.epoch) * an_epoch - begun

    def _beside_epochs(self) -> float:
        starts = [run.began - run.placed for run in list(self._running.values()) if run.began is not None]
        return fmean(self._beside or starts or [0.0])


def _until_the_last(ends: Sequence[float], lengths: Sequence[float], workers: int) -> float:
    """When the last worker is done: running trials end after ``ends``, and the longest waiting trial starts next."""
    if len(lengths) > MANY:
        return max([(sum(ends) + sum(lengths)) / workers, *ends])
    free = [*ends, *[0.0] * (workers - len(ends))]
    heapq.heapify(free)
    for length in sorted(lengths, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free, default=0.0)
