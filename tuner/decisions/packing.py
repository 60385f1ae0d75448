"""Assigns memory shares of devices to trials, by the same pure decisions for a study and for a plan.

All safety margins are added here. A device's budget excludes the buffer and never exceeds its free memory. A trial's
need is its context plus its tensors with the estimate's margin. All accounts are in bytes. A trial on a GPU starts
only if its host has RAM for it, too.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tuner.decisions.capacity import (
    MOST_PER_CORE,
    UNBOUNDED,
    does_not_fit,
    does_not_fit_ram,
    largest_ram,
    most_in_ram,
    most_that_fit,
    ram_budgets,
    spread,
    threads_each,
    within_cores,
    within_ram,
)
from tuner.decisions.queue import Queue
from tuner.errors import InputError
from tuner.trial import Device, MemoryEstimate, Placement, Request

Bound = Literal["memory", "RAM", "CPU cores", "max_workers", "number of trials"]
Packing = Literal["uniform", "per-trial"]
# The maximum factor by which per-trial packing may add workers when measured peaks lower the needs of waiting trials.
SLOTS_PER_FIT = 2
HOST_MARGIN = 0.10  # the relative margin of a trial's need of RAM


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
    slots: tuple[int, ...]  # the same if the needs turn out to be smaller, and a core to be enough for several trials
    threads: int
    bound: Bound  # what limits the number of workers
    # By node id, the bytes of RAM that the trials on a host's GPUs divide; hosts with unknown RAM are left out.
    ram_budgets: Mapping[str, int] = field(default_factory=dict)
    ram_footprint_bytes: int = 0  # the largest need of RAM

    @property
    def workers(self) -> int:
        """The maximum number of trials at once on all devices, if the estimated needs are right."""
        return sum(self.expected)

    @property
    def at_first(self) -> tuple[int, ...]:
        """The slots of each device until the trials' use of the CPU is known."""
        return tuple(map(max, within_cores(self.slots, self.devices), self.expected))

    @property
    def may_grow(self) -> bool:
        """Whether more trials than at first may run at once later."""
        return sum(self.slots) > sum(self.at_first)

    @property
    def guaranteed(self) -> int:
        """The number of trials that always run at once: the largest footprints that fit within ``expected``."""
        by_memory = [min(fit, most) for fit, most in zip(self.fits, self.expected, strict=True)]
        return sum(within_ram(by_memory, self.devices, self.ram_fits))

    @property
    def largest_budget(self) -> int:
        """The largest possible memory share of a trial: the largest budget of a device with slots."""
        return self.largest_without(())

    def largest_without(self, lost: Collection[Device]) -> int:
        """The same of the devices that are not lost; 0 if none remains."""
        parts = zip(self.devices, self.budgets, self.slots, strict=True)
        return max((budget for device, budget, slots in parts if slots and device not in lost), default=0)

    @property
    def largest_ram_budget(self) -> int:
        """The largest possible share of a host's RAM for a trial."""
        return largest_ram(self.devices, self.ram_budgets)

    @property
    def ram_fits(self) -> Mapping[str, int]:
        """By node id, how many trials with the largest need of RAM each host has room for."""
        return most_in_ram(self.ram_budgets, [self.ram_footprint_bytes])


def need_bytes(estimate: MemoryEstimate) -> int:
    """The bytes to reserve for a trial: context + headroom + reserved · (1 + margin)."""
    fixed = estimate.context_bytes + estimate.headroom_bytes
    return fixed + math.ceil(estimate.reserved_bytes * (1 + estimate.margin))


def host_need_bytes(estimate: MemoryEstimate) -> int:
    """The bytes of its host's RAM to reserve for a trial on a GPU."""
    return math.ceil(estimate.host_bytes * (1 + HOST_MARGIN))


def is_tight(estimate: MemoryEstimate, given_bytes: int) -> bool:
    """Whether a trial has less than its total, and runs because the allocator frees its cache."""
    return estimate.least_bytes <= given_bytes < estimate.total_bytes


def low_bytes(estimate: MemoryEstimate) -> int:
    """The lower end of an estimate's interval, which is symmetric around its total."""
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
    host_needs: Sequence[int] = (),
    adaptive: bool = False,
) -> Plan:
    """Plans the number of trials that each device runs at once, and what limits it.

    ``needs`` are the bytes of each trial in any order, ``host_needs`` those of its host's RAM; ``buffer_bytes`` are
    left unused on each device. By default the workers share the cores as ``threads``. With ``adaptive`` a GPU has
    slots for more trials than cores. Raises ``InputError`` if no device or no host can hold the largest trial.
    """
    footprint = max(1, *needs)
    budgets = tuple(budget_bytes(device, buffer_bytes) for device in devices)
    fits = tuple(budget // footprint for budget in budgets)
    if not any(fits):
        raise InputError(does_not_fit(devices, budgets, footprint, buffer_bytes))
    rams, ram_footprint = ram_budgets(devices, buffer_bytes), max(host_needs, default=0)
    if ram_footprint > largest_ram(devices, rams):
        raise InputError(does_not_fit_ram(devices, rams, ram_footprint, buffer_bytes))
    by_memory = fits if packing == "uniform" else most_that_fit(budgets, needs)
    in_ram = most_in_ram(rams, [ram_footprint] if packing == "uniform" else host_needs)
    capacity = within_ram(within_cores(by_memory, devices), devices, in_ram)
    limits: list[tuple[int, Bound]] = [  # the first of equal limits is reported
        (len(needs), "number of trials"),
        (max_workers or len(needs), "max_workers"),
        (sum(by_memory), "memory"),
        (sum(within_ram(by_memory, devices, in_ram)), "RAM"),
        (sum(capacity), "CPU cores"),
    ]
    workers, bound = min(limits, key=lambda limit: limit[0])
    expected = spread(workers, capacity, budgets)
    more = 1 if packing == "uniform" else SLOTS_PER_FIT
    room = within_cores([more * fit for fit in by_memory], devices, MOST_PER_CORE if adaptive else 1)
    room = within_ram(room, devices, {node: more * most for node, most in in_ram.items()})
    room = list(map(max, room, expected))
    slots = spread(min(max_workers or len(needs), len(needs), sum(room)), room, budgets, expected)
    return Plan(
        devices=tuple(devices),
        buffer_bytes=buffer_bytes,
        budgets=budgets,
        packing=packing,
        footprint_bytes=footprint,
        fits=fits,
        expected=expected,
        slots=slots,
        threads=threads or threads_each(devices, slots),
        bound=bound,
        ram_budgets=rams,
        ram_footprint_bytes=ram_footprint,
    )


class Packer:
    """Keeps the memory accounts of a plan's devices and the queue of trials, and decides which trial starts where.

    The first trial of the queue that fits goes to the emptiest device. So trials spread over the devices, and small
    ones fill the gaps.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._free = list(plan.budgets)
        self._slots = list(plan.at_first)  # those that are free; below 0 where fewer are allowed than trials run
        self._allowed = list(plan.at_first)
        self._bounds = [math.inf] * len(plan.devices)  # what may be reserved until the next ``limit``
        self._most = math.inf  # how many trials may be placed at once until then
        self._index = {device: index for index, device in enumerate(plan.devices)}
        self._lost: set[int] = set()
        self._emptiest = sorted((-free, index) for index, free in enumerate(self._free))  # a heap, with stale entries
        self._queue = Queue(memory_binds=plan.bound in ("memory", "RAM") or plan.guaranteed < plan.workers)
        self._free_ram = dict(plan.ram_budgets)
        self._ram_bound = math.inf  # what may be reserved of this machine's RAM until the next ``limit``
        self._aside: dict[str, set[int]] = {}  # by node id, devices that wait for its RAM and are not in the heap

    @property
    def largest_bytes(self) -> int:
        """The largest possible memory share of a trial: the largest budget of a remaining device; 0 without any."""
        return self._plan.largest_without([self._plan.devices[index] for index in self._lost])

    @property
    def room_bytes(self) -> int:
        """The free bytes of the emptiest device with a free slot, without bounds; 0 if there is none."""
        return next((free for free, _ in self._freest()), 0)

    def limit(self, rooms: Mapping[Device, int], most: int | None = None, ram_bytes: int | None = None) -> None:
        """Bounds the reservations on these devices until the next call, since others use them, too.

        Other devices have no bound, and releases raise none. ``most`` bounds the number of placed trials, and
        ``ram_bytes`` this machine's RAM beside its GPUs.
        """
        self._ram_bound = math.inf if ram_bytes is None else max(0, ram_bytes)
        self._most = math.inf if most is None else most
        self._bounds = [max(0, rooms.get(device, math.inf)) for device in self._plan.devices]
        self._emptiest = sorted((-self._room(index), index) for index in range(len(self._bounds)))
        self._aside = {}

    def allow(self, device: Device, workers: int) -> None:
        """Sets how many trials may run on a device at once. Running trials are left alone."""
        index = self._index[device]
        more, self._allowed[index] = workers - self._allowed[index], workers
        self._change(index, 0, more, 0)

    def held_back(self) -> tuple[Request, Device] | None:
        """The next trial that fits without bounds, with the share that it would get, and its device."""
        for free, index in self._freest() if self._queue else ():
            if fitting := self._queue.first(free, self._own_ram(index)):
                need, request = self._queue.look(fitting)
                return replace(request, need_bytes=need), self._plan.devices[index]
        return None

    def placement(self, request: Request, device: Device) -> Placement:
        """The placement of a request on a device, with what it asks for; nothing is reserved yet."""
        index, need = self._index[device], request.need_bytes
        trial, estimate, threads = request.trial, request.estimate, self._plan.threads
        return Placement(trial, estimate, device, self._fraction(index, need), need, threads, request.host_bytes)

    def start(self, placement: Placement) -> None:
        """Takes a trial out of the queue, and reserves its share, regardless of bounds."""
        self.drop(placement.trial.trial_id)
        self._change(self._index[placement.device], -placement.limit_bytes, -1, -placement.host_bytes)
        self._most -= 1

    def drop(self, trial_id: str) -> None:
        """Takes a trial out of the queue, if it waits."""
        if at := self._queue.find(trial_id):
            self._queue.pop(at)

    def enqueue(self, requests: Iterable[Request]) -> None:
        """Adds trials to the queue. A trial that needs more than any device has will get a whole device."""
        largest = self.largest_bytes
        smallest_ram = min(
            (self._plan.ram_budgets.get(device.node_id, UNBOUNDED) for device in self._left()), default=0
        )
        for request in requests:
            need = min(self._need(request), largest)
            if request.host_bytes > smallest_ram:
                request = self._within_host(request, need)
            self._queue.add(request, need)
        for node in list(self._aside):
            self._bring_back(node)

    def revise(self, correct: Callable[[Request], Request]) -> None:
        """Replaces every request in the queue by ``correct(request)``, with a better estimate."""
        self.enqueue([correct(request) for request in self._queue.pop_all()])

    def next(self) -> tuple[Request, Placement] | None:
        """The trial that starts next, and where; None if none fits now. ``start`` reserves its share."""
        while self._queue and self._most > 0 and (index := self._emptiest_device()) is not None:
            room, ram = self._room(index), self._ram(index)
            fitting = self._queue.first(room, ram)
            if fitting is not None:
                need, request = self._queue.look(fitting)
                return request, self.placement(replace(request, need_bytes=need), self._plan.devices[index])
            if ram == UNBOUNDED or self._queue.first(room, UNBOUNDED) is None:
                return None
            self._set_aside()
        return None

    def release(self, placement: Placement) -> None:
        """Frees the memory share of a trial that has ended."""
        self._change(self._index[placement.device], placement.limit_bytes, 1, placement.host_bytes)

    def remove(self, device: Device) -> None:
        """Removes a device, so that nothing more is placed on it."""
        self._lost.add(self._index[device])
        self.revise(lambda request: request)

    def _need(self, request: Request) -> int:
        """The memory share of a trial. With uniform packing it is the same, unless the trial ran out of memory."""
        return max(request.need_bytes, self._plan.footprint_bytes if self._plan.packing == "uniform" else 0)

    def _fraction(self, index: int, need: int) -> float:
        if self._plan.packing == "uniform" and need == self._plan.footprint_bytes:
            return 1 / self._plan.fits[index]
        return need / self._plan.budgets[index]

    def _emptiest_device(self) -> int | None:
        """The device with the most free memory among those with a free slot, and with RAM for a trial."""
        while self._emptiest:
            free, index = self._emptiest[0]
            if -free != self._room(index) or not self._is_open(index):
                heapq.heappop(self._emptiest)
            elif self._free_ram and self._ram(index) < self._queue.least_ram:
                self._set_aside()
            else:
                return index
        return None

    def _is_open(self, index: int) -> bool:
        return self._slots[index] > 0 and index not in self._lost

    def _left(self) -> list[Device]:
        """The remaining devices that the plan uses."""
        return [device for i, device in enumerate(self._plan.devices) if self._plan.slots[i] and i not in self._lost]

    def _within_host(self, request: Request, need: int) -> Request:
        """The request, limited to the largest RAM of the hosts with a device that can hold it."""
        budgets, rams = self._plan.budgets, self._plan.ram_budgets
        holding = [device for device in self._left() if budgets[self._index[device]] >= need]
        return replace(request, host_bytes=min(request.host_bytes, largest_ram(holding, rams)))

    def _ram(self, index: int) -> int:
        """The bytes of its host's RAM that can be reserved for a device now: free, and within the bound."""
        if not self._free_ram or self._plan.devices[index].node_id:
            return self._own_ram(index)
        return int(min(self._own_ram(index), self._ram_bound))

    def _own_ram(self, index: int) -> int:
        """The free bytes of the budget of a device's host's RAM."""
        return self._free_ram.get(self._plan.devices[index].node_id, UNBOUNDED) if self._free_ram else UNBOUNDED

    def _set_aside(self) -> None:
        """Takes the emptiest device out of the heap until its host has more RAM, or the queue gets other trials."""
        _, index = heapq.heappop(self._emptiest)
        self._aside.setdefault(self._plan.devices[index].node_id, set()).add(index)

    def _bring_back(self, node: str) -> None:
        for index in self._aside.pop(node, ()):
            heapq.heappush(self._emptiest, (-self._room(index), index))

    def _freest(self) -> list[tuple[int, int]]:
        """Free bytes and index of the emptiest open device of each host with RAM for a trial, the most first."""
        found: dict[str, tuple[int, int]] = {}
        for index, (device, free) in enumerate(zip(self._plan.devices, self._free, strict=True)):
            if self._is_open(index) and self._own_ram(index) >= self._queue.least_ram:
                found[device.node_id] = max(found.get(device.node_id, (0, 0)), (free, index))
        return sorted(found.values(), reverse=True)

    def _room(self, index: int) -> int:
        """The bytes that can be reserved on a device now: free, and within the bound."""
        return int(min(self._free[index], self._bounds[index]))

    def _change(self, index: int, memory: int, slots: int, ram: int) -> None:
        self._free[index] += memory
        self._bounds[index] += min(0, memory)
        self._slots[index] += slots
        heapq.heappush(self._emptiest, (-self._room(index), index))
        node = self._plan.devices[index].node_id
        if node in self._free_ram:
            self._free_ram[node] += ram
        self._ram_bound += 0 if node else min(0, ram)
        if ram > 0:
            self._bring_back(node)
