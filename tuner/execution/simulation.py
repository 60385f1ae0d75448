"""Simulates a study: the loop and the policies of a real one, with trials that only take their time."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from tuner.decisions.claims import Claims
from tuner.decisions.events import Opened
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan
from tuner.decisions.policies import Engine
from tuner.decisions.retry import Retrying, RetryPolicy
from tuner.decisions.state import State
from tuner.execution.executor import Executor, ExecutorEvent
from tuner.execution.loop import Listener, StudyLoop
from tuner.trial import Device, Outcome, Placement, Request

MOST = 500  # the most trials to simulate; of a larger study, these are spread over all of them


@dataclass(frozen=True)
class Schedule:
    """A simulated study: its placements with their start and end in seconds, in the order of their starts."""

    placements: tuple[tuple[Placement, float, float], ...]
    seconds: float

    @cached_property
    def by_device(self) -> dict[Device, list[tuple[Placement, float, float]]]:
        """The placements of each device."""
        placements: dict[Device, list[tuple[Placement, float, float]]] = defaultdict(list)
        for entry in self.placements:
            for place in entry[0].all:
                placements[place.device].append((place, *entry[1:]))
        return placements

    def most_at_once(self, device: Device) -> int:
        """The maximum number of trials that the device runs at once, whose ranks may share it."""
        here = {placement.trial.trial_id: times for placement, *times in self.by_device[device]}.values()
        changes = [(start, 1) for start, _ in here] + [(end, -1) for _, end in here]
        return max(accumulate(step for _, step in sorted(changes)), default=0)

    def busy(self, device: Device, budget_bytes: int) -> float:
        """The share of the device's memory · time that trials take, from 0 to 1."""
        taken = sum(placement.limit_bytes * (end - start) for placement, start, end in self.by_device[device])
        return taken / (budget_bytes * self.seconds) if budget_bytes else 0.0


@dataclass
class SimulatedExecutor(Executor):
    """Completes each trial after its seconds, by a clock that jumps from one end to the next."""

    seconds: Callable[[Placement], float]
    now: float = 0.0
    placements: list[tuple[Placement, float, float]] = field(default_factory=list)
    running: list[tuple[float, int, Placement]] = field(default_factory=list)  # a heap, by their ends

    def clock(self) -> float:
        """The simulated time in seconds."""
        return self.now

    def submit(self, placement: Placement) -> None:
        """Starts a trial."""
        end = self.now + self.seconds(placement)
        self.placements.append((placement, self.now, end))
        heapq.heappush(self.running, (end, len(self.placements), placement))

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        """The trials that end next."""
        if not self.running:
            self.now += timeout_seconds
            return []
        self.now, ended = self.running[0][0], list[ExecutorEvent]()
        while self.running and self.running[0][0] <= self.now:
            placement = heapq.heappop(self.running)[2]
            ended.append((Outcome(placement.trial, "completed", placement), bytes))
        return ended


def simulate(requests: Sequence[Request], plan: Plan, seconds: Callable[[Request], float]) -> Schedule:
    """Simulates a study in which each trial takes ``seconds(request)``, above 0, and what it was estimated to."""
    took = {request.trial.trial_id: seconds(request) for request in requests}
    executor, packer = SimulatedExecutor(lambda placement: took[placement.trial.trial_id]), Packer()
    engine = Engine(State(), [Retrying(RetryPolicy(), lambda *_: None), Claims(packer), packer])
    loop = StudyLoop(engine, packer, executor, Listener(), clock=executor.clock)
    loop.take(Opened(plan, tuple(requests)))
    loop.run()
    return Schedule(tuple(executor.placements), executor.now)


def expected_seconds(requests: Sequence[Request], plan: Plan, trials: int) -> float | None:
    """The duration of a study of ``trials`` trials like these, if its workers do not slow each other.

    None if the duration of any trial is unknown.
    """
    seconds_of = {request.trial.trial_id: request.seconds for request in requests}
    if not requests or None in seconds_of.values():
        return None
    some = requests[:: -(-len(requests) // MOST)]
    took = simulate(some, plan, lambda request: seconds_of[request.trial.trial_id] or 0.0).seconds
    return took * max(trials, len(requests)) / len(some)
