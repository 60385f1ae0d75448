"""Plans how trials share the memory of devices, by the same pure decisions for a study and for a plan.

All safety margins are added here. A device's budget excludes the buffer and never exceeds its free memory. A trial's
need is its context plus its tensors with the estimate's margin. All accounts are in bytes. ``packer.py`` starts a
trial on a GPU only if its host has RAM for it, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.decisions.capacity import (
    MOST_PER_CORE,
    TrialLimits,
    bound_by_cores,
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
from tuner.errors import InputError
from tuner.trial import Device, MemoryEstimate

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
    max_workers: int | None = None  # the most at once that the user allows

    @property
    def workers(self) -> int:
        """The maximum number of trials at once on all devices, if the estimated needs are right."""
        return sum(self.expected)

    @property
    def at_first(self) -> tuple[int, ...]:
        """The slots of each device until the trials' use of the CPU is known."""
        within = within_cores(self.slots, bound_by_cores(self.devices, self.max_workers))
        return tuple(map(max, within, self.expected))

    @property
    def may_grow(self) -> bool:
        """Whether more trials than at first may run at once later."""
        return sum(self.slots) > sum(self.at_first)

    @property
    def guaranteed(self) -> int:
        """The number of trials that always run at once: the largest footprints that fit within ``expected``."""
        by_memory = [min(fit, most) for fit, most in zip(self.fits, self.expected, strict=True)]
        return sum(within_ram(by_memory, self.devices, self.ram_fits))

    def limits(self, lost: Collection[Device] = ()) -> TrialLimits:
        """The most that a trial may have on a device with slots that is not lost; nothing if none remains."""
        each = zip(self.devices, self.budgets, self.at_first, strict=True)
        places = tuple(place for place in each if place[2] and place[0] not in lost)
        largest = max((budget for _, budget, _ in places), default=0)
        return TrialLimits(largest, largest_ram(self.devices, self.ram_budgets), places)

    @property
    def ram_fits(self) -> Mapping[str, int]:
        """By node id, how many trials with the largest need of RAM each host has room for."""
        return most_in_ram(self.ram_budgets, [self.ram_footprint_bytes])


NO_DEVICES = Plan((), 0, (), "per-trial", 0, (), (), (), 1, "number of trials")


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
    """The bytes that trials divide on a device: min(total - buffer, free - shared), at least 0."""
    return max(0, min(device.total_bytes - buffer_bytes, device.free_bytes - device.shared_bytes))


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
    with_ranks: bool = False,
    before: Plan | None = None,
    lost: Collection[Device] = (),
) -> Plan:
    """Plans the number of trials that each device runs at once, and what limits it.

    ``needs`` are the bytes of each trial in any order, ``host_needs`` those of its host's RAM; ``buffer_bytes`` are
    left unused on each device. By default the workers share the cores as ``threads``. With ``adaptive`` a GPU has
    slots for more trials than cores, and with ``max_workers`` for that many. ``with_ranks`` says that some of them
    are ranks of one trial. No device gets fewer slots than ``before``, whose devices come first, and those that are
    ``lost`` get none. Raises ``InputError`` if no device or no host can hold the largest trial.
    """
    footprint = max(1, *needs)
    budgets = tuple(0 if device in lost else budget_bytes(device, buffer_bytes) for device in devices)
    fits = tuple(budget // footprint for budget in budgets)
    if not any(fits):
        raise InputError(does_not_fit(devices, budgets, footprint, buffer_bytes))
    rams, ram_footprint = ram_budgets(devices, buffer_bytes), max(host_needs, default=0)
    if ram_footprint > largest_ram(devices, rams):
        raise InputError(does_not_fit_ram(devices, rams, ram_footprint, buffer_bytes))
    by_memory = fits if packing == "uniform" else most_that_fit(budgets, needs)
    in_ram = most_in_ram(rams, [ram_footprint] if packing == "uniform" else host_needs)
    bound_to = bound_by_cores(devices, max_workers)
    capacity = within_ram(within_cores(by_memory, bound_to), devices, in_ram)
    limits: list[tuple[int, Bound]] = [  # the first of equal limits is reported
        (len(needs), "number of trials"),
        (max_workers or len(needs), "max_workers"),
        (sum(within_cores([len(needs)] * len(devices), bound_to)), "CPU cores"),  # from which a first share follows
        (sum(by_memory), "memory"),
        (sum(within_ram(by_memory, devices, in_ram)), "RAM"),
        (sum(capacity), "CPU cores"),
    ]
    workers, bound = min(limits, key=lambda limit: limit[0])
    had: dict[Device, tuple[int, int]] = {}
    if before:  # what may run at once by then keeps within the user's bound
        at_first = before.slots if max_workers else before.expected
        had = dict(zip(before.devices, zip(at_first, before.slots, strict=True), strict=True))
    had = {device: slots for device, slots in had.items() if device not in lost}
    expected = spread(workers, capacity, budgets, [had.get(device, (0, 0))[0] for device in devices])
    more = 1 if packing == "uniform" else SLOTS_PER_FIT
    room = within_cores([more * fit for fit in by_memory], bound_to, MOST_PER_CORE if adaptive else 1)
    room = within_ram(room, devices, {node: more * most for node, most in in_ram.items()})
    room = list(map(max, room, expected))
    most = len(devices) + len(needs) if with_ranks else len(needs)  # ranks need a slot on each of several devices
    at_least = [max(at_once, had.get(device, (0, 0))[1]) for device, at_once in zip(devices, expected, strict=True)]
    slots = spread(min(max_workers or most, most, sum(room)), room, budgets, at_least)
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
        max_workers=max_workers,
    )
