"""Which trial gets which share of which device. Pure functions, asked again at every event of a study.

All safety is added here and nowhere else: a device's budget leaves the buffer alone and is never more than what
is free, and a trial's need is its context and its tensors with the estimate's margin. Bytes are the account; the
fraction only mirrors them for Ray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.errors import InputError
from tuner.trial import GB, Device, MemoryEstimate, Placement, Request

Bound = Literal["memory", "CPU cores", "--max-workers", "number of trials"]


@dataclass(frozen=True)
class Plan:
    """How many trials share the devices, all of them with one footprint.

    Attributes:
        devices: where trials run.
        buffer_bytes: what is left alone on each device.
        budgets: what each device's trials divide between them: min(total - buffer, free), in bytes.
        footprint_bytes: what every trial is given.
        slots: how many trials each device runs at once.
        fractions: each trial's share of its device's budget, 1 / ⌊budget / footprint⌋.
        threads: CPU threads of each trial.
        bound: what keeps the number of workers from being larger.
    """

    devices: tuple[Device, ...]
    buffer_bytes: int
    budgets: tuple[int, ...]
    footprint_bytes: int
    slots: tuple[int, ...]
    fractions: tuple[float, ...]
    threads: int
    bound: Bound

    @property
    def workers(self) -> int:
        """Trials that run at once, over all devices."""
        return sum(self.slots)


def need_bytes(estimate: MemoryEstimate) -> int:
    """What a trial is given: context + headroom + reserved · (1 + margin). The only place where these are added."""
    fixed = estimate.context_bytes + estimate.headroom_bytes
    return fixed + math.ceil(estimate.reserved_bytes * (1 + estimate.margin))


def low_bytes(estimate: MemoryEstimate) -> int:
    """The other end of an estimate's interval: as far below its total as its need is above."""
    return 2 * estimate.total_bytes - need_bytes(estimate)


def plan_uniform(
    devices: Sequence[Device],
    footprint_bytes: int,
    *,
    buffer_bytes: int,
    trials: int,
    max_workers: int | None = None,
    threads: int | None = None,
) -> Plan:
    """Plans one footprint for all trials: ⌊(total - buffer) / footprint⌋ of them on each device.

    Args:
        devices: where trials can run.
        footprint_bytes: what the largest trial needs.
        buffer_bytes: what to leave alone on each device.
        trials: how many there are; devices are not filled more densely than that takes.
        max_workers: an upper bound by the user.
        threads: CPU threads for each trial; by default the cores are divided between the workers.

    Raises:
        InputError: no device can hold a single trial.
    """
    budgets = tuple(min(device.total_bytes - buffer_bytes, device.free_bytes) for device in devices)
    by_memory = [max(0, budget // footprint_bytes) for budget in budgets]
    if not any(by_memory):
        raise InputError(_does_not_fit(devices, budgets, footprint_bytes, buffer_bytes))
    by_cores = [min(fit, device.cores) for fit, device in zip(by_memory, devices, strict=True)]
    limits: list[tuple[int, Bound]] = [
        (sum(by_memory), "memory"),
        (sum(by_cores), "CPU cores"),
        (max_workers or sum(by_memory), "--max-workers"),
        (trials, "number of trials"),
    ]
    workers, bound = min(limits, key=lambda limit: limit[0])
    slots = _spread(workers, by_cores)
    return Plan(
        devices=tuple(devices),
        buffer_bytes=buffer_bytes,
        budgets=budgets,
        footprint_bytes=footprint_bytes,
        slots=slots,
        fractions=tuple(1 / fit if fit else 0.0 for fit in by_memory),
        threads=threads or _threads(devices, slots),
        bound=bound,
    )


def place(waiting: Sequence[Request], running: Sequence[Placement], plan: Plan) -> list[Placement]:
    """The waiting trials that can start now, largest first, each on the emptiest device that has room for it.

    Args:
        waiting: trials without a place.
        running: those that have one.
        plan: the devices' budgets and how many trials each may run at once.
    """
    free = list(plan.budgets)
    slots = list(plan.slots)
    for placement in running:
        index = plan.devices.index(placement.device)
        free[index] -= placement.limit_bytes
        slots[index] -= 1
    placed = []
    for request in sorted(waiting, key=lambda request: -request.estimate.total_bytes):
        room = [i for i, space in enumerate(free) if slots[i] > 0 and space >= request.need_bytes]
        if not room:
            break
        index = max(room, key=lambda i: free[i])
        free[index] -= request.need_bytes
        slots[index] -= 1
        placed.append(
            Placement(
                trial=request.trial,
                estimate=request.estimate,
                device=plan.devices[index],
                fraction=plan.fractions[index],
                limit_bytes=request.need_bytes,
                threads=plan.threads,
            )
        )
    return placed


def _spread(workers: int, capacity: Sequence[int]) -> tuple[int, ...]:
    """Deals workers out to devices in turn, none above its capacity."""
    slots = [0] * len(capacity)
    while workers > 0:
        index = min((i for i, most in enumerate(capacity) if slots[i] < most), key=lambda i: slots[i])
        slots[index] += 1
        workers -= 1
    return tuple(slots)


def _threads(devices: Sequence[Device], slots: Sequence[int]) -> int:
    """CPU threads for each trial: the fewest that any used device has for each of its trials."""
    return max(1, min(device.cores // used for device, used in zip(devices, slots, strict=True) if used))


def _does_not_fit(devices: Sequence[Device], budgets: Sequence[int], footprint: int, buffer_bytes: int) -> str:
    index = max(range(len(devices)), key=lambda i: budgets[i])
    device = devices[index]
    return (
        f"a trial needs {footprint / GB:.2f} GB, but {device.label} has {max(0, budgets[index]) / GB:.2f} GB for "
        f"trials ({device.total_bytes / GB:.2f} GB in all, {device.free_bytes / GB:.2f} GB free, buffer "
        f"{buffer_bytes / GB:.2f} GB)"
    )
