"""Which trial gets which share of which device: decisions without side effects, the same in a study and in a plan.

All safety is added here and nowhere else: a device's budget leaves the buffer alone and is never more than what
is free, and a trial's need is its context and its tensors with the estimate's margin. Bytes are the account; the
fraction only mirrors them for Ray.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, count
from typing import Literal

from tuner.errors import InputError
from tuner.trial import GB, Device, MemoryEstimate, Placement, Request

Bound = Literal["memory", "CPU cores", "--max-workers", "number of trials"]
Packing = Literal["uniform", "per-trial"]
# Peaks correct the needs of waiting trials: with per-trial packing so many times more workers may find room by that.
ROOM = 2


@dataclass(frozen=True)
class Plan:
    """How trials share the devices.

    Attributes:
        devices: where trials run.
        buffer_bytes: what is left alone on each device.
        budgets: what each device's trials divide between them: min(total - buffer, free), in bytes.
        packing: "uniform" gives every trial the largest one's need, "per-trial" each its own.
        footprint_bytes: the largest trial's need.
        fits: how many of the largest footprint fit on each device: ⌊budget / footprint⌋.
        expected: the most trials that each device runs at once, if the needs are what they are taken to be.
        slots: the same, however small their needs turn out to be.
        threads: CPU threads of each trial.
        bound: what keeps the number of workers from being larger.
    """

    devices: tuple[Device, ...]
    buffer_bytes: int
    budgets: tuple[int, ...]
    packing: Packing
    footprint_bytes: int
    fits: tuple[int, ...]
    expected: tuple[int, ...]
    slots: tuple[int, ...]
    threads: int
    bound: Bound

    @property
    def workers(self) -> int:
        """The most trials that run at once, over all devices, if the needs are what they are taken to be."""
        return sum(self.expected)

    @property
    def guaranteed(self) -> int:
        """Trials that run at once whichever they are: as many of the largest footprint as fit, within the slots."""
        return sum(min(fit, most) for fit, most in zip(self.fits, self.expected, strict=True))

    @property
    def largest_budget(self) -> int:
        """What a trial can be given at most: the whole of the roomiest device that is used, in bytes."""
        return max(budget for budget, slots in zip(self.budgets, self.slots, strict=True) if slots)


def need_bytes(estimate: MemoryEstimate) -> int:
    """What a trial is given: context + headroom + reserved · (1 + margin). The only place where these are added."""
    fixed = estimate.context_bytes + estimate.headroom_bytes
    return fixed + math.ceil(estimate.reserved_bytes * (1 + estimate.margin))


def low_bytes(estimate: MemoryEstimate) -> int:
    """The other end of an estimate's interval: as far below its total as its need is above."""
    return 2 * estimate.total_bytes - need_bytes(estimate)


def budget_bytes(device: Device, buffer_bytes: int) -> int:
    """What a device's trials divide between them: min(total - buffer, free), in bytes; not below 0."""
    return max(0, min(device.total_bytes - buffer_bytes, device.free_bytes))


def make_plan(
    devices: Sequence[Device],
    needs: Sequence[int],
    *,
    packing: Packing,
    buffer_bytes: int,
    max_workers: int | None = None,
    threads: int | None = None,
) -> Plan:
    """Plans a study: how many trials each device runs at once, at least and at most, and what bounds that.

    Args:
        devices: where trials can run.
        needs: what each trial needs, in bytes, in any order.
        packing: "uniform" gives every trial the largest need, "per-trial" each its own.
        buffer_bytes: what to leave alone on each device.
        max_workers: an upper bound by the user.
        threads: CPU threads for each trial; by default the cores are divided between the workers.

    Raises:
        InputError: no device can hold the largest trial.
    """
    footprint = max(1, *needs)
    budgets = tuple(budget_bytes(device, buffer_bytes) for device in devices)
    fits = tuple(budget // footprint for budget in budgets)
    if not any(fits):
        raise InputError(_does_not_fit(devices, budgets, footprint, buffer_bytes))
    by_memory = fits if packing == "uniform" else _most_that_fit(budgets, needs)
    limits: list[tuple[int, Bound]] = [  # of two that bound alike, the first is told
        (len(needs), "number of trials"),
        (max_workers or len(needs), "--max-workers"),
        (sum(by_memory), "memory"),
        (sum(_within_cores(by_memory, devices)), "CPU cores"),
    ]
    workers, bound = min(limits, key=lambda limit: limit[0])
    expected = _spread(workers, _within_cores(by_memory, devices), budgets)
    room = _within_cores([(1 if packing == "uniform" else ROOM) * fit for fit in by_memory], devices)
    slots = _spread(min(max_workers or len(needs), len(needs), sum(room)), room, budgets, expected)
    return Plan(
        devices=tuple(devices),
        buffer_bytes=buffer_bytes,
        budgets=budgets,
        packing=packing,
        footprint_bytes=footprint,
        fits=fits,
        expected=expected,
        slots=slots,
        threads=threads or _threads(devices, slots),
        bound=bound,
    )


class Packer:
    """The accounts of a plan's devices, and the trials that wait: says which of them start where, largest first.

    The largest trial that the emptiest device has room for goes there, again and again: so trials spread over the
    devices and are never packed more densely than their number takes, and small ones fill what large ones leave.
    Where configurations are trained with several seeds, trials of a lower seed go first, so that a study which ends
    early has something of every configuration.
    """

    def __init__(self, plan: Plan) -> None:
        """Begins with every device empty and nothing waiting."""
        self._plan = plan
        self._free = list(plan.budgets)
        self._slots = list(plan.slots)
        self._index = {device: index for index, device in enumerate(plan.devices)}
        self._lost: set[int] = set()
        self._emptiest = [
            (-free, index) for index, free in enumerate(self._free)
        ]  # a heap; stale entries are skipped
        heapq.heapify(self._emptiest)
        self._order = count()
        self._waiting: dict[int, list[tuple[int, int, Request]]] = {}  # by seed; by need, and then the latest first

    @property
    def waiting(self) -> int:
        """How many trials wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def largest_bytes(self) -> int:
        """What a trial can be given at most: the whole of the roomiest device that is left; 0 without any."""
        budgets = enumerate(self._plan.budgets)
        return max((b for i, b in budgets if self._plan.slots[i] and i not in self._lost), default=0)

    @property
    def room_bytes(self) -> int:
        """What the emptiest device with a slot left has free; 0 where none has."""
        index = self._emptiest_device()
        return 0 if index is None else self._free[index]

    def wait(self, requests: Iterable[Request]) -> None:
        """Puts trials into the queue; one that needs more than any device has waits for a whole one."""
        largest = self.largest_bytes
        for request in requests:
            alike = self._waiting.setdefault(request.trial.seed, [])
            insort(alike, (min(self._need(request), largest), -next(self._order), request))

    def revise(self, correct: Callable[[Request], Request]) -> None:
        """Replaces the trials that wait by what ``correct`` makes of them: their needs are known better now."""
        waiting = [entry for alike in self._waiting.values() for entry in alike]
        requests = [request for _, _, request in sorted(waiting, key=lambda entry: -entry[1])]
        self._waiting = {}
        self.wait(correct(request) for request in requests)

    def place(self) -> list[tuple[Request, Placement]]:
        """The trials that start now, each with its place; they leave the queue, and their memory is taken."""
        placed = []
        while self._waiting and (index := self._emptiest_device()) is not None:
            fitting = self._take(self._free[index])
            if fitting is None:
                break
            need, request = fitting
            self._change(index, -need, -1)
            placement = Placement(
                trial=request.trial,
                estimate=request.estimate,
                device=self._plan.devices[index],
                fraction=self._fraction(index, need),
                limit_bytes=need,
                threads=self._plan.threads,
            )
            placed.append((request, placement))
        return placed

    def release(self, placement: Placement) -> None:
        """Takes back the place of a trial that has ended."""
        self._change(self._index[placement.device], placement.limit_bytes, 1)

    def remove(self, device: Device) -> None:
        """Takes a device out: nothing is placed on it any more."""
        self._lost.add(self._index[device])
        self.revise(lambda request: request)

    def _take(self, room_bytes: int) -> tuple[int, Request] | None:
        """Of the lowest seed of which any trial fits, the largest that does, with its need; None where none does."""
        for seed in sorted(self._waiting):
            alike = self._waiting[seed]
            position = bisect_right(alike, room_bytes, key=lambda entry: entry[0]) - 1
            if position >= 0:
                need, _, request = alike.pop(position)
                if not alike:
                    del self._waiting[seed]
                return need, request
        return None

    def _need(self, request: Request) -> int:
        """What a trial is given. Uniform packing gives all the same, but more to one that ran out of it."""
        return max(request.need_bytes, self._plan.footprint_bytes if self._plan.packing == "uniform" else 0)

    def _fraction(self, index: int, need: int) -> float:
        if self._plan.packing == "uniform" and need == self._plan.footprint_bytes:
            return 1 / self._plan.fits[index]
        return need / self._plan.budgets[index]

    def _emptiest_device(self) -> int | None:
        """The device with the most room among those with a slot left."""
        while self._emptiest:
            free, index = self._emptiest[0]
            if -free == self._free[index] and self._slots[index] > 0 and index not in self._lost:
                return index
            heapq.heappop(self._emptiest)
        return None

    def _change(self, index: int, memory: int, slots: int) -> None:
        self._free[index] += memory
        self._slots[index] += slots
        heapq.heappush(self._emptiest, (-self._free[index], index))


@dataclass(frozen=True)
class Schedule:
    """A study as it would run.

    Attributes:
        placements: each trial's place with the seconds at which it starts and ends, in the order of the starts.
        seconds: when the last one ends.
    """

    placements: tuple[tuple[Placement, float, float], ...]
    seconds: float

    @cached_property
    def by_device(self) -> dict[Device, list[tuple[Placement, float, float]]]:
        """The placements on each device."""
        found: dict[Device, list[tuple[Placement, float, float]]] = defaultdict(list)
        for entry in self.placements:
            found[entry[0].device].append(entry)
        return found

    def trials_on(self, device: Device) -> int:
        """How many trials the device runs in all."""
        return len(self.by_device[device])

    def most_at_once(self, device: Device) -> int:
        """The most trials that the device runs at once."""
        here = self.by_device[device]
        changes = [(start, 1) for _, start, _ in here] + [(end, -1) for _, _, end in here]
        return max(accumulate(step for _, step in sorted(changes)), default=0)

    def busy(self, device: Device, budget_bytes: int) -> float:
        """The share of the device's memory and of the study's time that trials take, from 0 to 1."""
        taken = sum(placement.limit_bytes * (end - start) for placement, start, end in self.by_device[device])
        return taken / (budget_bytes * self.seconds) if budget_bytes else 0.0


def simulate(requests: Sequence[Request], plan: Plan, seconds: Callable[[Request], float]) -> Schedule:
    """Runs a study on paper, with the same decisions as a real one.

    Args:
        requests: all trials.
        plan: the devices and what they may hold.
        seconds: how long each trial takes; above 0.
    """
    packer = Packer(plan)
    packer.wait(requests)
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


def shortest_possible(requests: Sequence[Request], plan: Plan, seconds: Callable[[Request], float]) -> float:
    """A time that no schedule of these trials can beat: memory · time over all memory, or the longest trial."""
    area = sum(request.need_bytes * seconds(request) for request in requests)
    return max(area / sum(plan.budgets), max(seconds(request) for request in requests))


def limited(device: Device, total_bytes: int) -> Device:
    """The device as if it had no more memory than this, in bytes."""
    total = min(device.total_bytes, total_bytes)
    return replace(device, total_bytes=total, free_bytes=min(device.free_bytes, total))


def _within_cores(trials: Sequence[int], devices: Sequence[Device]) -> list[int]:
    """So many trials on each device, but no more than it has cores; where these are not known they are enough."""
    return [min(most, device.cores or most) for most, device in zip(trials, devices, strict=True)]


def _most_that_fit(budgets: Sequence[int], needs: Sequence[int]) -> tuple[int, ...]:
    """How many of the smallest trials fit on each device at once."""
    sums = list(accumulate(sorted(needs)))
    return tuple(bisect_right(sums, budget) for budget in budgets)


def _spread(
    workers: int, capacity: Sequence[int], budgets: Sequence[int], dealt: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Deals workers out to devices, each time to the one that is used the least of its capacity; the roomiest first.

    So the device that alone can hold the largest trials always has a worker. Those that are ``dealt`` already stay.
    """
    slots = list(dealt or [0] * len(capacity))
    used = [(slots[i] / most, -budgets[i], i) for i, most in enumerate(capacity) if slots[i] < most]
    heapq.heapify(used)
    for _ in range(workers - sum(slots)):
        _, budget, index = heapq.heappop(used)
        slots[index] += 1
        if slots[index] < capacity[index]:
            heapq.heappush(used, (slots[index] / capacity[index], budget, index))
    return tuple(slots)


def _threads(devices: Sequence[Device], slots: Sequence[int]) -> int:
    """CPU threads for each trial: the fewest that any used device has for each of its trials."""
    return max(1, min(device.cores // used for device, used in zip(devices, slots, strict=True) if used))


def _does_not_fit(devices: Sequence[Device], budgets: Sequence[int], footprint: int, buffer_bytes: int) -> str:
    index = max(range(len(devices)), key=lambda i: budgets[i])
    device = devices[index]
    return (
        f"a trial needs {footprint / GB:.2f} GB, but {device.label} has {budgets[index] / GB:.2f} GB for "
        f"trials ({device.total_bytes / GB:.2f} GB in all, {device.free_bytes / GB:.2f} GB free, buffer "
        f"{buffer_bytes / GB:.2f} GB)"
    )
