"""Which trials are not worth their epochs: asked after every epoch of every trial; smaller values are better.

Like Ray Tune's AsyncHyperBandScheduler and MedianStoppingRule, whose decisions these make, but without its loop.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

Name = Literal["fifo", "asha", "median"]
NAMES: tuple[str, ...] = get_args(Name)
GRACE_EPOCHS = 1
REDUCTION = 4
LEAST_OTHERS = 3


class Scheduler(Protocol):
    """Decides which trials are stopped."""

    def stops(self, trial_id: str, epoch: int, value: float) -> bool:
        """Takes note of a trial's value after an epoch, and says whether it is to be stopped."""


class Asha:
    """Asynchronous successive halving (Li et al., MLSys 2020), in one bracket.

    A trial that comes to a rung, at ``grace``, ``grace * reduction``, … epochs, goes on if it is among the best
    1 / ``reduction`` of those that came there before.
    """

    def __init__(self, grace: int = GRACE_EPOCHS, reduction: int = REDUCTION) -> None:
        """Begins with no trial.

        Args:
            grace: epochs before a trial may be stopped.
            reduction: of so many trials one goes on.
        """
        self._grace = grace
        self._reduction = reduction
        self._rungs: dict[int, dict[str, float]] = {}

    def stops(self, trial_id: str, epoch: int, value: float) -> bool:
        """Whether a trial is stopped: only ever as it comes to a rung; the last epoch stops nothing either way."""
        rung = self._rung(epoch)
        if rung is None or trial_id in self._rungs.setdefault(rung, {}):
            return False
        before = self._rungs[rung]
        cutoff = quantile([each for each in before.values() if math.isfinite(each)], 1 / self._reduction)
        before[trial_id] = value
        return not math.isfinite(value) or (cutoff is not None and value > cutoff)

    def _rung(self, epoch: int) -> int | None:
        """The highest rung that so many epochs come to; None for none."""
        if epoch < self._grace:
            return None
        rung = self._grace
        while rung * self._reduction <= epoch:
            rung *= self._reduction
        return rung


class Median:
    """The median stopping rule (Golovin et al., KDD 2017).

    A trial is stopped if its best value so far is worse than the median of what the others had on average up to the
    same epoch; only those count that have come as far, and there must be three of them.
    """

    def __init__(self, grace: int = GRACE_EPOCHS, least_others: int = LEAST_OTHERS) -> None:
        """Begins with no trial.

        Args:
            grace: epochs before a trial may be stopped.
            least_others: so many trials must have come as far before one is stopped.
        """
        self._grace = grace
        self._least_others = least_others
        self._values: dict[str, dict[int, float]] = {}
        self._last: dict[str, int] = {}
        self._means: dict[str, dict[int, float]] = {}

    def stops(self, trial_id: str, epoch: int, value: float) -> bool:
        """Whether a trial is stopped."""
        mine = self._values.setdefault(trial_id, {})
        mine[epoch] = value
        if epoch <= self._last.get(trial_id, 0):  # an attempt repeats it
            self._means.pop(trial_id, None)
        self._last[trial_id] = max(epoch, self._last.get(trial_id, 0))
        if epoch < self._grace:
            return False
        means = [
            self._mean(other, epoch) for other, last in self._last.items() if other != trial_id and last >= epoch
        ]
        finite = [each for each in means if math.isfinite(each)]
        if len(finite) < self._least_others:
            return False
        best = min((each for each in mine.values() if math.isfinite(each)), default=math.inf)
        return best > statistics.median(finite)

    def _mean(self, trial_id: str, epoch: int) -> float:
        """A trial's average from the grace on up to an epoch; not finite where it has told nothing of that.

        It is asked for by every other trial that comes there.
        """
        means = self._means.setdefault(trial_id, {})
        if epoch not in means:
            told = [value for at, value in self._values[trial_id].items() if self._grace <= at <= epoch]
            means[epoch] = statistics.fmean(told) if told else math.inf
        return means[epoch]


def make_scheduler(name: str) -> Scheduler | None:
    """The scheduler of this name; None for "fifo", which stops nothing."""
    made: dict[str, type[Scheduler]] = {"asha": Asha, "median": Median}
    return made[name]() if name in made else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which so large a share of them lies, interpolated between neighbours; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
