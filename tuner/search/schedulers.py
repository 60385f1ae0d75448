"""Decides after every epoch whether to stop a trial; smaller values are better: ``Objective.loss`` makes them so.

The decisions are those of Ray Tune's AsyncHyperBandScheduler and MedianStoppingRule, without Tune's loop.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

SchedulerName = Literal["fifo", "asha", "median"]
SCHEDULERS: tuple[str, ...] = get_args(SchedulerName)
GRACE_EPOCHS = 1
REDUCTION = 4
MIN_OTHERS = 3


class Scheduler(Protocol):
    """Decides which trials are stopped."""

    def stops(self, trial_id: str, epoch: int, value: float) -> bool:
        """Records a trial's value after an epoch, and returns whether to stop the trial."""


class Asha:
    """Asynchronous successive halving (Li et al., MLSys 2020), in one bracket.

    Rungs are at ``grace``, ``grace * reduction``, … epochs. At a rung, a trial continues if it is among the best
    1 / ``reduction`` of the trials that reached it before.
    """

    def __init__(self, grace: int = GRACE_EPOCHS, reduction: int = REDUCTION) -> None:
        self._grace = grace
        self._reduction = reduction
        self._rungs: dict[int, dict[str, float]] = {}

    def stops(self, trial_id: str, epoch: int, value: float) -> bool:
        """Whether a trial is stopped. That happens only at a rung."""
        rung = self._rung(epoch)
        if rung is None or trial_id in self._rungs.setdefault(rung, {}):
            return False
        before = self._rungs[rung]
        cutoff = quantile([each for each in before.values() if math.isfinite(each)], 1 / self._reduction)
        before[trial_id] = value
        return not math.isfinite(value) or (cutoff is not None and value > cutoff)

    def _rung(self, epoch: int) -> int | None:
        """The highest rung reached after this number of epochs, or None."""
        if epoch < self._grace:
            return None
        rung = self._grace
        while rung * self._reduction <= epoch:
            rung *= self._reduction
        return rung


class Median:
    """The median stopping rule (Golovin et al., KDD 2017).

    A trial is stopped if its best value so far is worse than the median of the others' averages up to the same epoch.
    Only trials that have reached that epoch count, and there must be ``min_others`` of them.
    """

    def __init__(self, grace: int = GRACE_EPOCHS, min_others: int = MIN_OTHERS) -> None:
        self._grace = grace
        self._min_others = min_others
        self._values: dict[str, dict[int, float]] = {}
        self._last: dict[str, int] = {}
        self._means: dict[str, dict[int, float]] = {}

    def stops(self, trial_id: str, epoch: int, value: float) -> bool:
        """Whether a trial is stopped."""
        mine = self._values.setdefault(trial_id, {})
        mine[epoch] = value
        if epoch <= self._last.get(trial_id, 0):  # a retry repeats it
            self._means.pop(trial_id, None)
        self._last[trial_id] = max(epoch, self._last.get(trial_id, 0))
        if epoch < self._grace:
            return False
        means = [
            self._mean(other, epoch) for other, last in self._last.items() if other != trial_id and last >= epoch
        ]
        finite = [each for each in means if math.isfinite(each)]
        if len(finite) < self._min_others:
            return False
        best = min((each for each in mine.values() if math.isfinite(each)), default=math.inf)
        return best > statistics.median(finite)

    def _mean(self, trial_id: str, epoch: int) -> float:
        """A trial's average from the grace up to an epoch, cached for all other trials; infinite without reports."""
        means = self._means.setdefault(trial_id, {})
        if epoch not in means:
            values = [value for at, value in self._values[trial_id].items() if self._grace <= at <= epoch]
            means[epoch] = statistics.fmean(values) if values else math.inf
        return means[epoch]


def make_scheduler(name: str) -> Scheduler | None:
    """The scheduler of this name; None for "fifo", which stops nothing."""
    made: dict[str, type[Scheduler]] = {"asha": Asha, "median": Median}
    return made[name]() if name in made else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of the values lies, interpolated between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
