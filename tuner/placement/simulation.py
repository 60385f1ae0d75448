"""Simulates a study with the decisions of a real one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tuner.placement.packing import Packer, Plan
from tuner.trial import Device, Placement, Request


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
            placements[entry[0].device].append(entry)
        return placements

    def trials_on(self, device: Device) -> int:
        """The total number of trials that the device runs."""
        return len(self.by_device[device])

    def most_at_once(self, device: Device) -> int:
        """The maximum number of trials that the device runs at once."""
        here = self.by_device[device]
        changes = [(start, 1) for _, start, _ in here] + [(end, -1) for _, _, end in here]
        return max(accumulate(step for _, step in sorted(changes)), default=0)

    def busy(self, device: Device, budget_bytes: int) -> float:
        """The share of the device's memory · time that trials take, from 0 to 1."""
        taken = sum(placement.limit_bytes * (end - start) for placement, start, end in self.by_device[device])
        return taken / (budget_bytes * self.seconds) if budget_bytes else 0.0


def simulate(requests: Sequence[Request], plan: Plan, seconds: Callable[[Request], float]) -> Schedule:
    """Simulates a study with the decisions of a real one. Each trial takes ``seconds(request)``, above 0."""
    packer = Packer(plan)
    packer.enqueue(requests)
    duration = {request.trial.trial_id: seconds(request) for request in requests}
    running: list[tuple[float, int, Placement]] = []
    placements: list[tuple[Placement, float, float]] = []
    now = 0.0
    while packer.waiting or running:
        for _, placement in packer.place():
            end = now + duration[placement.trial.trial_id]
            placements.append((placement, now, end))
            heapq.heappush(running, (end, len(placements), placement))
        now, _, ended = heapq.heappop(running)
        packer.release(ended)
        while running and running[0][0] <= now:
            packer.release(heapq.heappop(running)[2])
    return Schedule(tuple(placements), now)


def expected_seconds(requests: Sequence[Request], plan: Plan, trials: int) -> float | None:
    """The duration of a study of so many trials like these, if its workers do not slow each other.

    None if the duration of any trial is unknown.
    """
    known = {request.trial.trial_id: request.seconds for request in requests}
    if not requests or None in known.values():
        return None
    took = simulate(requests, plan, lambda request: known[request.trial.trial_id] or 0.0).seconds
    return took * max(trials, len(requests)) / len(requests)


def shortest_possible(requests: Sequence[Request], plan: Plan, seconds: Callable[[Request], float]) -> float:
    """A lower bound of any schedule's seconds: memory · time of all trials over all memory, or the longest trial."""
    area = sum(request.need_bytes * seconds(request) for request in requests)
    return max(area / sum(plan.budgets), max(seconds(request) for request in requests))
