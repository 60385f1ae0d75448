"""Assigns memory shares of devices to trials. A study and a plan use the same pure decisions.

All safety margins are added here. A device's budget excludes the buffer and never exceeds its free memory. A trial's
need is its context plus its tensors with the estimate's margin. All accounts are in bytes; the fraction is for Ray.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Literal

from tuner.errors import InputError
from tuner.trial import GB, Device, MemoryEstimate, Placement, Request

Bound = Literal["memory", "CPU cores", "max_workers", "number of trials"]
Packing = Literal["uniform", "per-trial"]
# The maximum factor by which per-trial packing may add workers when measured peaks lower the needs of waiting trials.
SLOTS_PER_FIT = 2


@dataclass(frozen=True)
class Plan:
    """How trials share the devices."""

    devices: tuple[Device, ...]
    buffer_bytes: int
    budgets: tuple[int, ...]  # the bytes that trials divide on each device: min(total - buffer, free)
    packing: Packing  # "uniform" gives every trial the need of the largest one, "per-trial" each its own
    footprint_bytes: int
    fits: tuple[int, ...]  # how many of the largest footprint fit on each device: ⌊budget / footprint⌋
    expected: tuple[int, ...]  # the maximum number of trials at once on each device, if the estimated needs are right
    slots: tuple[int, ...]  # the same if the needs turn out to be smaller
    threads: int
    bound: Bound  # what limits the number of workers

    @property
    def workers(self) -> int:
        """The maximum number of trials at once on all devices, if the estimated needs are right."""
        return sum(self.expected)

    @property
    def guaranteed(self) -> int:
        """The number of trials that always run at once: the largest footprints that fit within ``expected``."""
        return sum(min(fit, most) for fit, most in zip(self.fits, self.expected, strict=True))

    @property
    def largest_budget(self) -> int:
        """The largest possible memory share of a trial: the largest budget of a device with slots."""
        return max(budget for budget, slots in zip(self.budgets, self.slots, strict=True) if slots)


def need_bytes(estimate: MemoryEstimate) -> int:
    """The bytes to reserve for a trial: context + headroom + reserved · (1 + margin)."""
    fixed = estimate.context_bytes + estimate.headroom_bytes
    return fixed + math.ceil(estimate.reserved_bytes * (1 + estimate.margin))


def is_tight(estimate: MemoryEstimate, given_bytes: int) -> bool:
    """Whether a trial has less than it would take, and runs as the allocator gives back what it caches."""
    return estimate.least_bytes <= given_bytes < estimate.total_bytes


def low_bytes(estimate: MemoryEstimate) -> int:
    """The lower end of an estimate's interval, as far below its total as its need is above."""
    return 2 * estimate.total_bytes - need_bytes(estimate)


def budget_bytes(device: Device, buffer_bytes: int) -> int:
    """The bytes that trials divide on a device: min(total - buffer, free), at least 0."""
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
    """Plans the number of trials that each device runs at once, and what limits it.

    ``needs`` are the bytes of each trial in any order; ``buffer_bytes`` are left unused on each device. By default
    the workers share the cores as ``threads``. Raises ``InputError`` if no device can hold the largest trial.
    """
    footprint = max(1, *needs)
    budgets = tuple(budget_bytes(device, buffer_bytes) for device in devices)
    fits = tuple(budget // footprint for budget in budgets)
    if not any(fits):
        raise InputError(_does_not_fit(devices, budgets, footprint, buffer_bytes))
    by_memory = fits if packing == "uniform" else _most_that_fit(budgets, needs)
    limits: list[tuple[int, Bound]] = [  # the first of equal limits is reported
        (len(needs), "number of trials"),
        (max_workers or len(needs), "max_workers"),
        (sum(by_memory), "memory"),
        (sum(_within_cores(by_memory, devices)), "CPU cores"),
    ]
    workers, bound = min(limits, key=lambda limit: limit[0])
    expected = _spread(workers, _within_cores(by_memory, devices), budgets)
    room = _within_cores([(1 if packing == "uniform" else SLOTS_PER_FIT) * fit for fit in by_memory], devices)
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
    """Keeps the memory accounts of a plan's devices and the queue of trials, and decides which trial starts where.

    It repeatedly places the largest trial that fits on the emptiest device. So trials spread over the devices, and
    small ones fill the gaps. Trials with a lower seed go first, so that a study that ends early has results of every
    configuration.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._free = list(plan.budgets)
        self._slots = list(plan.slots)
        self._bounds = [math.inf] * len(plan.devices)  # what may be reserved until the next ``limit``
        self._index = {device: index for index, device in enumerate(plan.devices)}
        self._lost: set[int] = set()
        self._emptiest = [(-free, index) for index, free in enumerate(self._free)]  # a heap, with stale entries
        heapq.heapify(self._emptiest)
        self._order = count()
        self._waiting: dict[int, list[tuple[int, int, Request]]] = {}  # for each seed: by need, then the latest first

    @property
    def waiting(self) -> int:
        """The number of trials in the queue."""
        return sum(map(len, self._waiting.values()))

    @property
    def largest_bytes(self) -> int:
        """The largest possible memory share of a trial: the largest budget of a remaining device; 0 without any."""
        budgets = enumerate(self._plan.budgets)
        return max((b for i, b in budgets if self._plan.slots[i] and i not in self._lost), default=0)

    @property
    def room_bytes(self) -> int:
        """The free bytes of the emptiest device with a free slot; 0 if there is none."""
        index = self._emptiest_device()
        return 0 if index is None else self._room(index)

    def limit(self, rooms: Mapping[Device, int]) -> None:
        """Bounds what may be reserved on these devices until the next call, as others use them, too.

        Devices that are not named have no bound. What is released does not raise a bound.
        """
        self._bounds = [max(0, rooms.get(device, math.inf)) for device in self._plan.devices]
        self._emptiest = [(-self._room(index), index) for index in range(len(self._bounds))]
        heapq.heapify(self._emptiest)

    def held_back(self) -> tuple[Request, Device] | None:
        """The next trial that only ``limit`` keeps from starting, and on which device; None without one."""
        free, index = max(
            ((free, i) for i, free in enumerate(self._free) if self._slots[i] > 0 and i not in self._lost),
            default=(0, 0),
        )
        fitting = self._position(free)
        if fitting is None:
            return None
        return self._waiting[fitting[0]][fitting[1]][2], self._plan.devices[index]

    def drop(self, trial_id: str) -> None:
        """Takes a trial out of the queue."""
        self._waiting = {
            seed: kept
            for seed, same_seed in self._waiting.items()
            if (kept := [entry for entry in same_seed if entry[2].trial.trial_id != trial_id])
        }

    def enqueue(self, requests: Iterable[Request]) -> None:
        """Adds trials to the queue. A trial that needs more than any device has will get a whole device."""
        largest = self.largest_bytes
        for request in requests:
            same_seed = self._waiting.setdefault(request.trial.seed, [])
            insort(same_seed, (min(self._need(request), largest), -next(self._order), request))

    def revise(self, correct: Callable[[Request], Request]) -> None:
        """Replaces every request in the queue by ``correct(request)``, which has a better known need."""
        waiting = [entry for same_seed in self._waiting.values() for entry in same_seed]
        requests = [request for _, _, request in sorted(waiting, key=lambda entry: -entry[1])]
        self._waiting = {}
        self.enqueue(correct(request) for request in requests)

    def place(self) -> list[tuple[Request, Placement]]:
        """Takes the trials that start now out of the queue, and reserves their memory."""
        placed = []
        while self._waiting and (index := self._emptiest_device()) is not None:
            fitting = self._take(self._room(index))
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
        """Frees the memory share of a trial that has ended."""
        self._change(self._index[placement.device], placement.limit_bytes, 1)

    def remove(self, device: Device) -> None:
        """Removes a device, so that nothing more is placed on it."""
        self._lost.add(self._index[device])
        self.revise(lambda request: request)

    def _take(self, room_bytes: int) -> tuple[int, Request] | None:
        """Takes the largest trial that fits, of the lowest seed with one, and its need; None if none fits."""
        fitting = self._position(room_bytes)
        if fitting is None:
            return None
        seed, position = fitting
        need, _, request = self._waiting[seed].pop(position)
        if not self._waiting[seed]:
            del self._waiting[seed]
        return need, request

    def _position(self, room_bytes: float) -> tuple[int, int] | None:
        """The seed and the position in its queue of the trial that ``_take`` would take."""
        for seed in sorted(self._waiting):
            position = bisect_right(self._waiting[seed], room_bytes, key=lambda entry: entry[0]) - 1
            if position >= 0:
                return seed, position
        return None

    def _need(self, request: Request) -> int:
        """The memory share of a trial. With uniform packing it is the same for all that never ran out of memory."""
        return max(request.need_bytes, self._plan.footprint_bytes if self._plan.packing == "uniform" else 0)

    def _fraction(self, index: int, need: int) -> float:
        if self._plan.packing == "uniform" and need == self._plan.footprint_bytes:
            return 1 / self._plan.fits[index]
        return need / self._plan.budgets[index]

    def _emptiest_device(self) -> int | None:
        """The device with the most free memory among those with a free slot."""
        while self._emptiest:
            free, index = self._emptiest[0]
            if -free == self._room(index) and self._slots[index] > 0 and index not in self._lost:
                return index
            heapq.heappop(self._emptiest)
        return None

    def _room(self, index: int) -> int:
        """What may be reserved on a device now: what is free of its budget, within its bound."""
        return int(min(self._free[index], self._bounds[index]))

    def _change(self, index: int, memory: int, slots: int) -> None:
        self._free[index] += memory
        self._bounds[index] += min(0, memory)
        self._slots[index] += slots
        heapq.heappush(self._emptiest, (-self._room(index), index))


def limited(device: Device, total_bytes: int) -> Device:
    """The device with its memory limited to ``total_bytes``."""
    total = min(device.total_bytes, total_bytes)
    return replace(device, total_bytes=total, free_bytes=min(device.free_bytes, total))


def _within_cores(trials: Sequence[int], devices: Sequence[Device]) -> list[int]:
    """The trials of each device, limited to its cores if these are known."""
    return [min(most, device.cores or most) for most, device in zip(trials, devices, strict=True)]


def _most_that_fit(budgets: Sequence[int], needs: Sequence[int]) -> tuple[int, ...]:
    """How many of the smallest trials fit on each device at once."""
    sums = list(accumulate(sorted(needs)))
    return tuple(bisect_right(sums, budget) for budget in budgets)


def _spread(
    workers: int, capacity: Sequence[int], budgets: Sequence[int], at_least: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Gives each worker to the device with the lowest used share of its capacity; larger devices go first.

    So a device that alone can hold the largest trials always has a worker. ``at_least`` are the workers that each
    device already has.
    """
    slots = list(at_least or [0] * len(capacity))
    used = [(slots[i] / most, -budgets[i], i) for i, most in enumerate(capacity) if slots[i] < most]
    heapq.heapify(used)
    for _ in range(workers - sum(slots)):
        _, budget, index = heapq.heappop(used)
        slots[index] += 1
        if slots[index] < capacity[index]:
            heapq.heappush(used, (slots[index] / capacity[index], budget, index))
    return tuple(slots)


def _threads(devices: Sequence[Device], slots: Sequence[int]) -> int:
    """The CPU threads of each trial: the smallest number of free cores per trial of any device.

    More than that would wait for each other: OpenMP's threads meet after every operation.
    """
    return max(1, min(device.free_cores // used for device, used in zip(devices, slots, strict=True) if used))


def _does_not_fit(devices: Sequence[Device], budgets: Sequence[int], footprint: int, buffer_bytes: int) -> str:
    index = max(range(len(devices)), key=lambda i: budgets[i])
    device = devices[index]
    return (
        f"a trial needs {footprint / GB:.2f} GB, but {device.label} has {budgets[index] / GB:.2f} GB for "
        f"trials ({device.total_bytes / GB:.2f} GB in all, {device.free_bytes / GB:.2f} GB free, buffer "
        f"{buffer_bytes / GB:.2f} GB)"
    )
