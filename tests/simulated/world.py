"""A world that a seed decides: what trials truly need and how they end, which devices die, and what others take.

The study in it is a real one: the loop, the state, the policies, the rows of the journal. Only time, processes and
memory are made up. A crash forgets everything but the journal.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from tuner.decisions.events import Bounds, Contended, DeviceLost, Event, Held, Joined, Reported
from tuner.decisions.plan import Plan, make_plan
from tuner.decisions.retry import RetryPolicy
from tuner.decisions.state import State
from tuner.execution.device_arbiter import DeviceArbiter, Wait
from tuner.execution.executor import ExecutorEvent, Happening, Weights
from tuner.execution.loop import Listener
from tuner.execution.simulation import SimulatedExecutor
from tuner.execution.stall_detector import StallDetector
from tuner.machine.holders import Memory
from tuner.objective import Objective
from tuner.records.attempts import Attempt, parse_attempt
from tuner.records.epochs import EpochLine
from tuner.trial import (
    GB,
    Began,
    Config,
    Device,
    EpochReport,
    MemoryEstimate,
    Outcome,
    Phase,
    Placement,
    Request,
    Status,
    Trial,
)

MOST_SECONDS = 20_000.0  # no study lasts so long
STEP = GB // 16
ODD = 60_000  # the bytes above a multiple of it, which four decimals of a GB would round up
OBJECTIVE = Objective("loss")
FATES: Sequence[tuple[float, Status, str]] = (
    (0.05, "failed", ""),
    (0.09, "failed", "worker"),
    (0.12, "stalled", ""),  # it hangs, until it is ended
    (0.15, "out_of_memory", "memory"),  # others held what it was promised
    (0.18, "diverged", ""),
)


class Crash(BaseException):
    """The study's process is killed."""


@dataclass(frozen=True)
class World:
    """What is true, whatever the study believes."""

    seed: int
    devices: tuple[Device, ...]
    requests: tuple[Request, ...]
    needs: dict[str, int]  # what each trial truly takes, in bytes
    losses: dict[str, float]  # what each trial's metric tends to
    epochs: dict[str, int]
    policy: RetryPolicy
    plan: Plan
    deaths: tuple[tuple[float, Device], ...]  # when devices are lost; never the last one
    method: str  # of the estimates: "given", "traced" and corrected by peaks, or "learned" from each other

    @classmethod
    def of(cls, seed: int) -> World:
        """The world of a seed."""
        draw = Random(seed)
        devices = tuple(_device(index, draw) for index in range(draw.choice([1, 1, 2, 3])))
        number = draw.choice([1, 2, 3, 5, 8, 12, 20, 50] if seed % 10 == 0 else [1, 2, 3, 5, 8, 12])
        method, seeds = {7: "learned", 8: "traced"}.get(seed % 25, "given"), draw.choice([1, 1, 2])
        requests = [_request(index, index % seeds, method, draw) for index in range(number)]
        whole = max(device.total_bytes for device in devices) - GB
        requests = [replace(each, need_bytes=min(each.need_bytes, whole)) for each in requests]
        ids = [request.trial.trial_id for request in requests]
        plan = make_plan(
            devices,
            [request.need_bytes for request in requests],
            packing=draw.choice(["per-trial", "per-trial", "uniform"]),
            buffer_bytes=GB,
            max_workers=draw.choice([None, None, 2]),
            host_needs=[request.host_bytes for request in requests],
        )
        used = [device for device, slots in zip(devices, plan.slots, strict=True) if slots]
        deaths = tuple((draw.uniform(1, 40), device) for device in used[1:] if draw.random() < 0.3)
        return cls(
            seed,
            devices,
            tuple(requests),
            {
                key: max(STEP, int(request.need_bytes * draw.choice([0.5, 0.9, 1.0, 1.3, 2.5])) // STEP * STEP)
                for key, request in zip(ids, requests, strict=True)
            },
            {key: draw.random() for key in ids},
            {key: draw.choice([1, 2, 4]) for key in ids},
            RetryPolicy(
                max_attempts=draw.choice([1, 2, 4]),
                growth=draw.choice([1.25, 1.5, 2.0]),
                backoff_seconds=draw.choice([0.0, 5.0, 60.0]),
                on_oom=draw.choice(["grow", "grow", "accumulate", "fail"]),
                max_failures=draw.choice([0, 0, 2]),
            ),
            plan,
            deaths,
            method,
        )

    def smaller(self, trial: Trial, phase: Phase) -> Config | None:
        """Half of a trial's micro-batch, twice at most."""
        parts = int(trial.config.get("accumulation", 1))
        return {**trial.config, "accumulation": 2 * parts} if parts < 4 else None

    def happenings(self, placement: Placement, now: float) -> list[tuple[float, Happening]]:
        """What a placed trial does from now on."""
        trial, draw = placement.trial, Random(f"{self.seed}/{placement.trial.trial_id}/{placement.trial.attempt}")
        needs = self.needs[trial.trial_id] // int(trial.config.get("accumulation", 1))
        peak = min(needs, placement.limit_bytes)
        timed: list[tuple[float, Happening]] = [(now, Began(trial.trial_id, 1, 0.0))]
        epochs, fate = self.epochs[trial.trial_id], draw.random()
        status, lost = next(((status, lost) for chance, status, lost in FATES if fate < chance), ("completed", ""))
        if needs > placement.limit_bytes:
            status, lost = "out_of_memory", ""
        last = epochs if status == "completed" else draw.randrange(epochs + 1)
        for epoch in range(last + 1):
            now += draw.choice([0.5, 1.0, 7.0])
            metrics = {} if epoch == 0 else {"loss": self.losses[trial.trial_id] + 1 / epoch}
            now = max(timed[-1][0], now + draw.choice([0.0, 0.0, 3.0]))  # late: others' reports may overtake it
            timed.append((now, EpochReport(trial.trial_id, epoch, epochs, metrics, peak if epoch else peak // 2)))
        if status != "stalled":
            metrics = metrics if status == "completed" else {}
            phase: Phase = "training" if status == "out_of_memory" else ""
            outcome = Outcome(
                trial, status, placement, metrics, last, now, peak, phase=phase, lost=lost, error=status
            )
            timed.append((now + 0.25, outcome))
        return timed


def _device(index: int, draw: Random) -> Device:
    size, ram = draw.choice([4, 8, 16]) * GB, draw.choice([0, 6, 24]) * GB
    node = "" if index < 2 else "other"
    return Device(node, "cuda", index, "card", size, size, draw.choice([1, 2, 4]), ram_bytes=ram, free_ram_bytes=ram)


def _request(index: int, seed: int, method: str, draw: Random) -> Request:
    trial = Trial(f"t{index + 1:03d}", "toy", f"c{index}", {"width": draw.choice([8, 16, 32])}, seed)
    need = draw.randrange(4, 64) * STEP + ODD
    above = need // 2 if method == "traced" else 0
    estimate = MemoryEstimate(method, activation_bytes=above, context_bytes=need - above)
    return Request(trial, estimate, need, host_bytes=draw.choice([0, 0, 1, 4]) * GB)


@dataclass
class Machines(SimulatedExecutor):
    """Runs trials as the world has them, and loses devices."""

    world: World = None  # type: ignore[assignment]
    alive: dict[str, Placement] = field(default_factory=dict)  # running trials, by id
    due: list[tuple[float, int, Happening]] = field(default_factory=list)
    number: int = 0
    claimed: set[Device] = field(default_factory=set)  # a cluster's devices that are asked for

    def add(self, at: float, happening: Happening) -> None:
        self.number += 1
        heapq.heappush(self.due, (at, self.number, happening))

    def submit(self, placement: Placement) -> None:
        self.alive[placement.trial.trial_id] = placement
        for at, happening in self.world.happenings(placement, self.now):
            self.add(at, happening)

    def claim(self, device: Device) -> bool:
        delay = Random(f"{self.world.seed} {device.label} {self.now}").choice([0.0, 0.0, 3.0, 40.0])
        if delay:
            self.claimed.add(device)
            self.add(self.now + delay, Held(device))
        return not delay

    def release(self, device: Device) -> None:
        self.claimed.discard(device)

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        assert self.now < MOST_SECONDS, "the study does not end"
        if not self.due or self.due[0][0] > self.now + max(timeout_seconds, 0.01):
            self.now += max(timeout_seconds, 0.01)
            return []
        happenings: list[Happening] = []
        self.now = max(self.now, self.due[0][0])
        while self.due and self.due[0][0] <= self.now:
            happenings += self._happens(heapq.heappop(self.due)[2])
        return [(happening, bytes) for happening in happenings]

    def _happens(self, happening: Happening) -> Iterator[Happening]:
        if isinstance(happening, (Joined, Contended)):
            yield happening
        elif isinstance(happening, Held):
            if happening.device in self.claimed:  # it was not withdrawn
                self.claimed.remove(happening.device)
                yield happening
        elif isinstance(happening, DeviceLost):
            self.claimed.discard(happening.device)
            for trial_id, placement in list(self.alive.items()):
                if placement.device == happening.device:
                    yield Outcome(placement.trial, "failed", placement, lost="node", error="its node died")
                    del self.alive[trial_id]
            yield happening
        elif isinstance(happening, Outcome):
            if self.alive.get(happening.trial.trial_id) is happening.placement:
                del self.alive[happening.trial.trial_id]
                yield happening
        elif happening.trial_id in self.alive:  # type: ignore[union-attr]
            yield happening

    def stop(self) -> None:
        for placement in self.alive.values():
            self.add(self.now + 0.1, Outcome(placement.trial, "interrupted", placement))

    def prune(self, trial_id: str) -> None:
        placement = self.alive[trial_id]
        self.add(self.now + 0.1, Outcome(placement.trial, "pruned", placement, {"loss": math.pi}, 1))

    def end(self, trial_id: str, error: str) -> None:
        if placement := self.alive.get(trial_id):
            self.add(self.now + 0.1, Outcome(placement.trial, "stalled", placement, error=error))


class Others(DeviceArbiter):
    """Other programs, which take memory for a while, and leave."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        super().__init__("", world.plan if world.method == "learned" else None)
        self._world, self._now, self._draw = world, clock, Random(world.seed)
        self.greedy = self._draw.random() < 0.3
        self._left_of: dict[Device, int] = {}

    def _memory(self, device: Device) -> Memory:
        return Memory(device.total_bytes, self._room(device), (0,))

    def _room(self, device: Device) -> int:
        return self._left_of.get(device, self._budgets[device])

    @contextmanager
    def placing(self, running: Any) -> Iterator[Bounds]:
        self.reserve(running)
        self._left_of = {}
        if not self.greedy or self._now() > 200 or self._draw.random() < 0.5:
            yield Bounds({})
            return
        rooms = {device: self._draw.randrange(0, 64) * STEP for device in self._world.devices}
        most, ram = self._draw.choice([None, 1, 0]), self._draw.choice([None, 3 * GB])
        most = 1 if most == 0 and self._devices and not running else most  # one may always run
        self._left_of = {**rooms, **({self._ram: ram} if self._ram and ram else {})}
        yield Bounds(rooms, most, ram)

    def wait(self, held: Any, *, placed: bool) -> Wait:
        return Wait()

    def short(self, device: Device, short_of: str = "") -> str:
        return ""


class Stalls(StallDetector):
    """Ends a trial that has said nothing for 30 s, by the simulated clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(30.0, clock)


class Journal(Listener):
    """What is on disk: rows as they were recorded, and lines of reports."""

    def __init__(self, check: Callable[[State, Event], None]) -> None:
        self.rows: list[Attempt] = []
        self.lines: list[EpochLine] = []
        self.orders = count(1)
        self.end: Callable[[State], None] = lambda _: None  # ends the process at some moment
        self.kill: Callable[[], None] = lambda: None  # ends it between a row and all that follows from it
        self.now: Callable[[], float] = lambda: 0.0
        self._check = check

    def append(self, outcome: Outcome, weights: Weights) -> None:
        assert outcome.placement is None or outcome.trial == outcome.placement.trial
        estimate = outcome.placement.estimate if outcome.placement else MemoryEstimate("given")
        row = replace(Attempt.of(outcome, estimate, (self.now(), self.now())), order=next(self.orders))
        line = json.dumps(row.to_line(exact=True))
        self.rows.append(parse_attempt(json.loads(line), "line"))
        self.kill()

    def hear(self, state: State, event: Event) -> None:
        if isinstance(event, Reported):
            report, run = event.report, state.running[event.report.trial_id]
            line = EpochLine(
                trial_id=report.trial_id,
                attempt=run.placement.trial.attempt,
                epoch=report.epoch,
                order=next(self.orders),
                at=self.now(),
                metrics=report.metrics,
                memory_bytes=report.memory_bytes or 0,
            )
            self.lines.append(line)
        self._check(state, event)
        self.end(state)
