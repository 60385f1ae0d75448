"""How many trials a GPU runs at once, by their measured throughput.

Memory and CPU cores bound the number. Only a measurement shows whether one more is a gain: kernels of a small model
leave most of a GPU idle, and those of a large one fill it. Since trials differ, each is compared with itself: if n
trials become m, and the epochs of those that ran before and after become s times as long, the throughput is
m / (n · s) times as high.
"""

import math
from collections.abc import Set
from dataclasses import dataclass, field
from statistics import mean, median

from tuner.decisions.events import Allowed, Decision, Ended, Event, Joined, Opened, Reported
from tuner.decisions.state import State
from tuner.trial import Device

GAIN = 0.05  # the relative gain in throughput for which one more worker is kept
STEP = 4  # a step adds one worker for each 4: from 20 workers, a single one could not add ``GAIN`` in any case
EPOCHS = 2  # the epochs at a number of workers after which a trial counts


@dataclass
class _Level:
    """The trials' epochs while a number of them ran at once."""

    workers: int
    since: float | None = None  # when that number was training; None before
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of epochs that began after that, by trial id

    @property
    def timed(self) -> Set[str]:
        """The ids of trials with enough epochs."""
        return {trial_id for trial_id, seconds in self.seconds.items() if len(seconds) >= EPOCHS}


class WorkerCount:
    """The number of workers of one GPU, of which the last must add ``GAIN`` to the throughput.

    One more is tried, and kept if it does. One less is tried if one more is a loss, or at the beginning if no more
    can be added.
    """

    def __init__(self, first: int, most: int, cores: int) -> None:
        """Begins with ``first`` workers and never has more than ``most``; ``cores`` is 0 if they are unknown."""
        self._first, self._most, self._cores = first, most, cores
        self._training: set[str] = set()
        self._warm: set[str] = set()  # those that have finished their first epoch, which takes longer
        self._core_shares: dict[str, float] = {}
        self._here = _Level(first)
        self._before: _Level | None = None  # what is compared with ``_here``
        self._settled: set[str] | None = None  # the trials that were training when the number was found
        self._begun = False  # whether anything has been tried

    @property
    def workers(self) -> int:
        """How many trials may run at once now."""
        return self._here.workers

    def trains(self, trial_id: str, now: float) -> None:
        """A trial begins to train. ``now`` is in seconds by a monotonic clock."""
        self._training.add(trial_id)
        for level in filter(None, (self._here, self._before)):  # an earlier attempt may have had other epochs
            level.seconds.pop(trial_id, None)
        if (
            self._settled is not None and not self._settled & self._training
        ):  # other trials may use the GPU differently
            self._first, self._settled = self.workers, None
        self._note(now)

    def ends(self, trial_id: str, now: float) -> None:
        """A trial has ended."""
        self._training.discard(trial_id)
        self._warm.discard(trial_id)
        self._core_shares.pop(trial_id, None)
        self._note(now)

    def reports(self, trial_id: str, seconds: float | None, core_share: float | None, now: float) -> str:
        """A trial has trained an epoch.

        Args:
            trial_id: the trial.
            seconds: how long the epoch took; None if that is unknown.
            core_share: the share of a CPU core that it kept busy; None if that is unknown.
            now: when it ended.

        Returns:
            A result about the number of workers as text; mostly empty.
        """
        if core_share is not None:
            self._core_shares[trial_id] = core_share
        if trial_id not in self._warm:
            self._warm.add(trial_id)
        elif seconds is not None and self._here.since is not None and now - seconds >= self._here.since:
            self._here.seconds.setdefault(trial_id, []).append(seconds)
        return "" if self._settled is not None or self._here.since is None else self._decide()

    def _note(self, now: float) -> None:
        """Begins a level when as many trials are training as it has workers."""
        if self._here.since is None and len(self._training) == self.workers:
            self._here.since = now

    def _decide(self) -> str:
        here, before = self._here, self._before
        if before is None:
            if 2 * len(here.timed & self._training) >= len(self._training):
                # Once in a study, if no more can be added: fewer may do as much.
                self._try(self._more() if self._begun or self._more() > self.workers else self._fewer())
                self._begun = True
            return ""
        both = here.timed & before.timed
        if (before.timed & self._training) - both:
            return ""  # some can still be compared
        if not both:  # all of them have ended
            self._settle(before.workers)
            return ""
        gain = self._gain(both, here, before)
        more = f"{abs(gain):.0%} {'less' if gain < 0 else 'more'}"
        comparison = f"{here.workers} trials at once do {more} than {before.workers}"
        if here.workers > before.workers and gain >= GAIN:
            self._try(self._more())
        elif here.workers < before.workers and gain > -GAIN:
            self._try(self._fewer())
        elif here.workers > before.workers == self._first and gain < 0:
            self._here = before
            self._try(self._fewer())  # where one more is a loss, one less may be a gain
        else:
            self._settle(before.workers)
        return comparison

    def _try(self, workers: int) -> None:
        if workers == self.workers:
            self._settle(workers)
        else:
            self._before, self._here = self._here, _Level(workers)

    def _settle(self, workers: int) -> None:
        self._settled, self._before, self._here = set(self._training), None, _Level(workers)

    def _more(self) -> int:
        return max(self.workers, min(self.workers + max(1, self.workers // STEP), self._most, self._most_by_cores()))

    def _fewer(self) -> int:
        return max(1, self.workers - max(1, self.workers // STEP))

    def _most_by_cores(self) -> int:
        """How many trials the cores can serve, by the mean core share of those that train."""
        if not self._cores:
            return self._most
        share = mean(self._core_shares.values()) if self._core_shares else 0.0
        return math.floor(self._cores / share) if share else self.workers

    @staticmethod
    def _gain(trials: Set[str], here: _Level, before: _Level) -> float:
        """The relative gain in throughput from ``before`` to ``here``."""
        slower = mean(math.log(median(here.seconds[trial]) / median(before.seconds[trial])) for trial in trials)
        return here.workers / before.workers / math.exp(slower) - 1


class ConcurrencyTuner:
    """Decides how many trials each GPU runs at once, by what a ``WorkerCount`` has measured there."""

    def __init__(self, *, on: bool = True) -> None:
        """Without ``on`` each device runs as many as fit."""
        self._on = on
        self._counts: dict[Device, WorkerCount] = {}
        self._devices: dict[str, Device] = {}  # of the trials that train, by trial id
        self._pending: dict[Device, Allowed] = {}

    def hear(self, state: State, event: Event) -> None:
        """Measures by reports and ends of trials."""
        if isinstance(event, (Opened, Joined)) and self._on:
            plan = event.plan
            for device, first, most in zip(plan.devices, plan.at_first, plan.slots, strict=True):
                if device.kind == "cuda" and most:
                    self._counts[device] = WorkerCount(first, most, device.cores)
        elif isinstance(event, Reported) and self._counts:
            self._reported(state, event)
        elif isinstance(event, Ended) and event.trial.trial_id in self._devices:
            self._counts[self._devices.pop(event.trial.trial_id)].ends(event.trial.trial_id, event.at)
        elif isinstance(event, Allowed):
            self._pending.pop(event.device, None)

    def decide(self, state: State, now: float) -> Decision | None:
        """Another number of trials at once, or a result of a comparison."""
        return next(iter(self._pending.values()), None)

    def _reported(self, state: State, event: Reported) -> None:
        report, run = event.report, state.running.get(event.report.trial_id)
        if run is None or (count := self._counts.get(run.placement.device)) is None:
            return
        device = run.placement.device
        if report.trial_id not in self._devices:
            self._devices[report.trial_id] = device
            count.trains(report.trial_id, event.at)
            return
        if report.again:
            return
        before = count.workers
        comparison = count.reports(report.trial_id, report.seconds, report.core_share, event.at)
        if comparison or count.workers != before:
            self._pending[device] = Allowed(device, count.workers, comparison)
