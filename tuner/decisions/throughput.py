"""How many trials a GPU runs at once, by their measured throughput.

Memory and CPU cores bound the number. Only a measurement shows whether one more is a gain: kernels of a small model
leave most of a GPU idle, and those of a large one fill it. Since trials differ, each is compared with itself: if n
trials become m, and the epochs of those that ran before and after become s times as long, the throughput is
m / (n · s) times as high. Trials that are too short for that, as they end while another worker starts, are counted:
how many of them end in a second.
"""

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from statistics import mean, median

from tuner.decisions.events import Allowed, Decision, Ended, Event, Opened, Replanned, Reported, Started
from tuner.decisions.state import State
from tuner.trial import Device

GAIN = 0.05  # the relative gain in throughput for which one more worker is kept
STEP = 4  # a step adds one worker for each 4: from 20 workers, a single one could not add ``GAIN`` in any case
EPOCHS = 2  # the epochs at a number of workers after which a trial counts
MISSED = 2  # the comparisons for which trials were too short, after which they are counted
ENDS = 6  # the trials of each worker after whose ends they are counted


@dataclass
class _Level:
    """The trials' epochs while a number of them ran at once."""

    workers: int
    since: float | None = None  # when that number was training; None before
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of epochs that began after that, by trial id
    ends: list[float] = field(default_factory=list)  # when trials ended after that
    is_over: bool = False  # whether another number has trained since

    @property
    def timed(self) -> Set[str]:
        """The ids of trials with enough epochs."""
        return {trial_id for trial_id, seconds in self.seconds.items() if len(seconds) >= EPOCHS}

    @property
    def rate(self) -> float | None:
        """How many trials ended in a second; None if too few have."""
        ends = self.ends if len(self.ends) > ENDS * self.workers else [0.0, 0.0]
        return (len(ends) - 1) / (ends[-1] - ends[0]) if ends[-1] > ends[0] else None


class WorkerCount:
    """The number of workers of one GPU, of which the last must add ``GAIN`` to the throughput.

    One more is tried, and kept if it does. One less is tried if one more is a loss, or at the beginning if no more
    can be added.
    """

    def __init__(self, first: int, most: int, cores: int) -> None:
        """Begins with ``first`` workers and never has more than ``most``; ``cores`` is 0 if they are unknown."""
        self._planned = self._first = first
        self._most, self._cores = most, cores
        self.waiting = math.inf  # how many trials are still to start
        self._training: dict[str, float] = {}  # since when, by trial id
        self._seconds: list[float] = []  # how long trials trained that have ended
        self._start = 0.0  # how long a worker takes to start, at most so far
        self._missed = 0  # how often all trials had ended before they could be compared
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

    def may_be(self, first: int, most: int) -> None:
        """A new plan has room for ``most``. It begins anew if that has more at first than before, and than now."""
        if first > max(self._planned, self.workers):
            self._first, self._before, self._here, self._settled = first, None, _Level(first), None
        self._planned, self._most = first, most

    def trains(self, trial_id: str, now: float, after: float = 0.0) -> None:
        """A trial begins to train, so many seconds ``after`` its start. ``now`` is by a monotonic clock."""
        self._training[trial_id] = now
        self._start = max(self._start, after)
        for level in filter(None, (self._here, self._before)):  # an earlier attempt may have had other epochs
            level.seconds.pop(trial_id, None)
        others = self._settled is not None and not self._settled & self._training.keys()
        if others and not self._short:  # they may use the GPU differently
            self._first, self._settled = self.workers, None
        self._note(now)

    def ends(self, trial_id: str, now: float) -> str:
        """A trial has ended; the result is as of ``reports``."""
        if trial_id in self._training:
            self._seconds.append(now - self._training.pop(trial_id))
        level = self._here if self._here.since is not None else self._before  # until another worker has started
        if level and not level.is_over:
            level.ends.append(now)
        comparison = self._decide(now) if self._settled is None and self._here.ends else ""
        self._warm.discard(trial_id)
        self._core_shares.pop(trial_id, None)
        self._note(now)
        return comparison

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
        return "" if self._settled is not None or self._here.since is None else self._decide(now)

    def _note(self, now: float) -> None:
        """Begins a level when as many trials are training as it has workers."""
        if self._here.since is None and len(self._training) == self.workers:
            self._here.since = now
            if self._before:
                self._before.is_over = True

    def _decide(self, now: float) -> str:
        here, before, training = self._here, self._before, self._training.keys()
        if before is None:
            timed = not self._short and 2 * len(here.timed & training) >= len(training) > 0
            if (timed or here.rate is not None) and (self._more() == self.workers or self._pays(now)):
                # Once in a study, if no more can be added: fewer may do as much.
                self._try(self._more() if self._begun or self._more() > self.workers else self._fewer())
                self._begun = True
            return ""
        both = here.timed & before.timed
        if (before.timed & training) - both:
            return ""  # some can still be compared
        if not both and before.rate is None:  # all of them have ended
            self._missed += 1
            self._settle(before.workers)
            self._settled = None if self._short else self._settled
            return ""
        if not both and here.rate is None:
            return ""  # more have to end
        self._missed = 0 if both else MISSED
        gain = self._gain(both, here, before)
        more = f"{abs(gain):.0%} {'less' if gain < 0 else 'more'}"
        comparison = f"{here.workers} trials at once do {more} than {before.workers}"
        if here.workers > before.workers and gain >= GAIN:
            self._try(self._more() if self._pays(now) else self.workers)
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

    @property
    def _short(self) -> bool:
        """Whether trials are counted, as they end before they can be compared."""
        return self._missed >= MISSED

    def _pays(self, now: float) -> bool:
        """Whether what waits lasts longer than another worker takes to start."""
        lasted = self._seconds or [now - began for began in self._training.values()]
        return self._start == 0 or self.waiting * mean(lasted) > self._start * self.workers

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
        """The relative gain in throughput from ``before`` to ``here``, by these trials or by how many ended."""
        if not trials:
            return here.rate / before.rate - 1 if here.rate and before.rate else 0.0
        slower = mean(math.log(median(here.seconds[trial]) / median(before.seconds[trial])) for trial in trials)
        return here.workers / before.workers / math.exp(slower) - 1


class ConcurrencyTuner:
    """Decides how many trials each GPU runs at once, by what a ``WorkerCount`` has measured there."""

    def __init__(self, *, on: bool = True, more: Callable[[], int] = lambda: 0) -> None:
        """Without ``on`` each device runs as many as fit. ``more`` is how many trials may still be suggested."""
        self._on, self._more = on, more
        self._now = 0.0  # of the study's clock, in seconds
        self._started: dict[str, float] = {}  # when trials started that do not train yet, by trial id
        self._counts: dict[Device, WorkerCount] = {}
        self._devices: dict[str, Device] = {}  # of the trials that train, by trial id
        self._pending: dict[Device, Allowed] = {}

    def hear(self, state: State, event: Event) -> None:
        """Measures by reports and ends of trials."""
        if isinstance(event, (Opened, Replanned)) and self._on:
            plan = event.plan
            for device, first, most in zip(plan.devices, plan.at_first, plan.slots, strict=True):
                if device.kind == "cuda" and device in self._counts:
                    self._counts[device].may_be(first, most)
                elif device.kind == "cuda" and most:
                    self._counts[device] = WorkerCount(first, most, device.cores)
        elif isinstance(event, Started) and self._counts:
            self._started[event.placement.trial.trial_id] = self._now
        elif isinstance(event, Reported) and self._counts:
            self._reported(state, event)
        elif isinstance(event, Ended) and event.trial.trial_id in self._devices:
            device = self._devices.pop(event.trial.trial_id)
            before = self._counted(device, state).workers
            self._allow(device, before, self._counts[device].ends(event.trial.trial_id, event.at))
        elif isinstance(event, Allowed):
            self._pending.pop(event.device, None)

    def decide(self, state: State, now: float) -> Decision | None:
        """Another number of trials at once, or a result of a comparison."""
        self._now = now
        return next(iter(self._pending.values()), None)

    def _reported(self, state: State, event: Reported) -> None:
        report, run = event.report, state.running.get(event.report.trial_id)
        if run is None or (device := run.placement.device) not in self._counts:
            return
        count = self._counted(device, state)
        if report.trial_id not in self._devices:
            self._devices[report.trial_id] = device
            count.trains(report.trial_id, event.at, event.at - self._started.pop(report.trial_id, event.at))
            return
        if not report.again:
            before = count.workers
            said = count.reports(report.trial_id, report.seconds, report.core_share, event.at)
            self._allow(device, before, said)

    def _counted(self, device: Device, state: State) -> WorkerCount:
        """The count of a device that knows how many trials are left for it to start."""
        count = self._counts[device]
        count.waiting = (len(state.waiting) + self._more()) / len(self._counts)
        return count

    def _allow(self, device: Device, before: int, said: str) -> None:
        workers = self._counts[device].workers
        if said or workers != before:
            self._pending[device] = Allowed(device, workers, said)
