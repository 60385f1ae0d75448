"""What must hold in every study, after every event. Nothing here asks the code that decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulated.world import World
from tuner.decisions.events import (
    CapacityObserved,
    Concluded,
    Contended,
    Ended,
    Event,
    PruneAsked,
    Retried,
    RetryReady,
    Started,
)
from tuner.decisions.state import State
from tuner.records.attempts import Attempt
from tuner.trial import Device, Placement, Request

LONGEST_UNUSED = 11.0  # the seconds for which a study may hold a cluster's device without a trial


@dataclass
class Rules:
    """Checks each event against the one before; raises AssertionError."""

    world: World
    completed: Counter[str] = field(default_factory=Counter)  # by trial id, over all processes
    now: float = 0.0
    seen: set[type] = field(default_factory=set)  # the kinds of events that there were
    devices_are_back: bool = False  # since a crash, so that what was given up may run again
    before: State = field(default_factory=State)
    unused: dict[Device, float] = field(default_factory=dict)  # since when a cluster's device is held and unused
    since: list[Placement] = field(default_factory=list)  # what has started since the last look at the devices
    ran_out_with: dict[str, int] = field(default_factory=dict)  # by trial id, of the last attempt
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)  # by trial id and way of ending

    def recall(self, rows: Sequence[Attempt]) -> None:
        """A process begins with these rows on disk."""
        self.completed = Counter(row.trial_id for row in rows if row.status == "completed")
        self.failures = Counter((row.trial_id, row.lost or row.status) for row in rows)
        assert max(self.completed.values(), default=0) <= 1, "a trial is completed twice"

    def check(self, state: State, event: Event) -> None:
        """An event has led to a state."""
        self.seen.add(type(event))
        if isinstance(event, Started):
            self._started(state, event)
        elif isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, (Retried, Concluded)):
            self._follows(event)
        elif isinstance(event, RetryReady):
            self._woken(event)
        elif isinstance(event, CapacityObserved) and event.bounds is None and state.plan:
            self._nothing_waits_for_nothing(state)
        elif isinstance(event, PruneAsked):
            self._pruned(event)
        if isinstance(event, CapacityObserved):
            self.since = []
        self._every_trial_is_in_one_place(state)
        self._no_device_is_kept_from_others(state)
        self.before = state

    def _no_device_is_kept_from_others(self, state: State) -> None:
        for device in state.plan.devices if state.plan and not state.stopping else ():
            away = state.released | state.wanted | state.lost
            if self._on(state, device) or not device.node_id or device in away:
                self.unused.pop(device, None)
            else:
                since = self.unused.setdefault(device, self.now)
                assert self.now - since <= LONGEST_UNUSED, "a device is held, and unused"
            given = Contended not in self.seen and device in away - state.lost
            assert not (self._on(state, device) and given), "a device is given back under a trial"

    def _every_trial_is_in_one_place(self, state: State) -> None:
        number = sum(map(len, (state.waiting, state.delayed, state.running, state.undecided, state.ended)))
        assert number == len(state.requests), "a trial is lost, or is there twice"

    def free(self, state: State, device: Device) -> int:
        assert state.plan
        given = sum(run.placement.limit_bytes for run in state.running.values() if run.placement.device == device)
        return int(state.plan.budgets[state.plan.devices.index(device)] - given)

    def _started(self, state: State, event: Started) -> None:
        device, trial = event.placement.device, event.placement.trial
        assert device not in state.lost, "a trial starts on a lost device"
        assert device not in state.released | state.wanted, "a trial starts on a device that is not held"
        assert trial.trial_id in self.before.waiting, "a trial starts that does not wait"
        assert self.free(state, device) >= 0, "a device's budget is exceeded"
        bounds = self.before.bounds
        assert bounds is not None, "a trial starts without a look at the devices"
        assert event.placement.limit_bytes <= self._room(device), "others' memory is promised"
        assert bounds.most is None or len(self.since) < bounds.most, "more trials start than others leave cores for"
        for node, budget in (state.plan.ram_budgets if state.plan else {}).items():
            here = [run.placement for run in state.running.values() if run.placement.device.node_id == node]
            assert sum(placement.host_bytes for placement in here) <= budget, "a host's RAM is exceeded"
        assert self._on(state, device) <= self._slots(state, device), "more trials run at once than may"
        self._is_enough(event)
        self._order(event)
        self.since.append(event.placement)

    def _is_enough(self, event: Started) -> None:
        """A learned need is known, and a retry needs more than it ran out with."""
        estimate, given, largest = (
            event.request.estimate,
            event.placement.limit_bytes,
            self.before.limits.device_bytes,
        )
        had = self.ran_out_with.pop(event.placement.trial.trial_id, 0)
        assert given > had or given >= largest or "accumulation" in event.placement.trial.config, "it runs out again"
        if estimate.method == "learned" and estimate.margin and not had:
            known = estimate.context_bytes + estimate.headroom_bytes
            known += math.ceil((estimate.total_bytes - estimate.context_bytes) * (1 + estimate.margin))
            assert given >= min(known, largest), "a trial has less than it is known to need"

    def _on(self, state: State, device: Device) -> int:
        return sum(run.placement.device == device for run in state.running.values())

    def _slots(self, state: State, device: Device) -> int:
        assert state.plan
        return state.plan.at_first[state.plan.devices.index(device)]

    def _order(self, event: Started) -> None:
        """Of the trials that fit there, none of a lower seed waits, and none that is larger if memory binds."""
        plan = self.before.plan
        assert plan
        binds = plan.bound in ("memory", "RAM") or plan.guaranteed < plan.workers
        for other in self.before.waiting.values():
            if self._fits(other, event.placement.device):
                assert other.trial.seed >= event.request.trial.seed, "a higher seed goes first"
                same = other.trial.seed == event.request.trial.seed
                assert not (binds and same and self._need(other) > event.placement.limit_bytes), "a smaller one first"

    def _need(self, request: Request) -> int:
        plan = self.before.plan
        assert plan
        uniform = plan.footprint_bytes if plan.packing == "uniform" else 0
        return min(max(request.need_bytes, uniform), self.before.limits.device_bytes)

    def _fits(self, request: Request, device: Device) -> bool:
        """Whether the trial could have started on the device before the event."""
        state, bounds = self.before, self.before.bounds
        if bounds is None or state.plan is None:
            return False
        room = min(self.free(state, device), self._room(device))
        return self._need(request) <= room and self._ram_left(state, device) >= request.host_bytes

    def _room(self, device: Device) -> float:
        """What others left of a device, less what has started since."""
        assert self.before.bounds
        promised = sum(placement.limit_bytes for placement in self.since if placement.device == device)
        return self.before.bounds.rooms.get(device, math.inf) - promised

    def _ram_left(self, state: State, device: Device) -> float:
        assert state.plan
        budget = state.plan.ram_budgets.get(device.node_id, math.inf)
        here = [run.placement for run in state.running.values() if run.placement.device.node_id == device.node_id]
        free = budget - sum(placement.host_bytes for placement in here)
        bound = state.bounds.ram_bytes if state.bounds else None
        if bound is None or device.node_id or budget == math.inf:
            return free
        return min(free, bound - sum(place.host_bytes for place in self.since if not place.device.node_id))

    def _nothing_waits_for_nothing(self, state: State) -> None:
        """No trial waits while a device has room and a slot for it, unless others hold more than is free."""
        bounds = self.before.bounds
        if (
            bounds is None
            or bounds.rooms
            or bounds.most is not None
            or bounds.ram_bytes is not None
            or state.stopping
        ):
            return
        for request in state.waiting.values():
            for device in state.plan.devices if state.plan else ():
                if Contended not in self.seen and device in state.released and self._slots(state, device):
                    assert state.wanted or not self._fits(request, device), "a device is not asked for"
                away = state.lost | state.released | state.wanted
                if device in away or self._on(state, device) >= self._slots(state, device):
                    continue
                assert not self._fits(request, device), f"{request.trial.trial_id} waits beside free memory"

    def _ended(self, event: Ended) -> None:
        self.completed[event.trial.trial_id] += event.result.status == "completed"
        assert self.completed[event.trial.trial_id] <= 1, "a trial is completed twice"
        way = event.result.lost or event.result.status
        if way == "out_of_memory":
            self.ran_out_with[event.trial.trial_id] = event.result.limit_bytes
        self.failures[event.trial.trial_id, way] += 1

    def _times(self, event: Retried | Concluded, way: str) -> int:
        return self.failures[event.ended.trial.trial_id, way]

    def _follows(self, event: Retried | Concluded) -> None:
        """The documented rule of retries, in other words than the code's."""
        ended, policy = event.ended, self.world.policy
        status, lost = ended.result.status, ended.result.lost
        again = isinstance(event, Retried)
        if status in ("completed", "pruned", "diverged"):
            assert not again, f"{status} is tried again"
        elif lost == "node":
            assert again, "a trial of a lost node is not tried again"
        elif lost == "memory":
            assert again == (self._times(event, "memory") <= 10), "an attempt that does not count was counted"
        elif status == "out_of_memory":
            right = again == self._grows(event) or self.devices_are_back
            assert right, "out of memory, and the wrong thing follows"
            if again:
                self._grown(event)
        elif status == "stalled":
            assert again == (self._times(event, "stalled") <= 1), "a stalled trial is tried again once"
        elif lost == "worker":
            assert again == (self._times(event, "worker") <= 1), "a lost worker is tried again once"
        else:
            assert again == (self._times(event, "failed") <= policy.max_failures), "max_failures is not kept"

    def _grows(self, event: Retried | Concluded) -> bool:
        policy, ended = self.world.policy, event.ended
        if policy.on_oom == "fail" or self._times(event, "out_of_memory") >= policy.max_attempts:
            return False
        at_most = ended.result.limit_bytes >= self.before.limits.device_bytes
        may_halve = policy.on_oom == "accumulate" and int(ended.trial.config.get("accumulation", 1)) < 4
        return not at_most or may_halve

    def _grown(self, event: Retried | Concluded) -> None:
        assert isinstance(event, Retried)
        result = event.ended.result
        growth = max(self.world.policy.growth, 2.0 if event.request.estimate.is_learned else 0.0)
        wanted = math.ceil(max(result.limit_bytes, result.peak_bytes or 0) * growth)
        policy, largest = self.world.policy, self.before.limits.device_bytes
        attempts_left = policy.max_attempts - self._times(event, "out_of_memory") - (policy.on_oom == "accumulate")
        right = min(wanted, largest) if attempts_left > 1 else largest
        assert event.request.need_bytes == right, "a retry has the wrong memory"
        least = min(self.world.policy.backoff_max_seconds, self.world.policy.backoff_seconds) / 2
        assert event.delay_seconds >= least, "a retry does not wait"

    def _woken(self, event: RetryReady) -> None:
        first = next(retry for retry in self.before.delayed.values() if retry.request is event.request)
        idle = not (self.before.running or self.before.waiting)
        assert first.due <= self.now or (idle and not first.always), "a retry does not wait for its time"

    def _pruned(self, event: PruneAsked) -> None:
        best = min(self.world.losses, key=lambda trial_id: self.world.losses[trial_id])
        assert event.trial_id != best, "the best trial is pruned"
