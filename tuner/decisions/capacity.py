"""How many trials fit by the devices' memory, the CPU cores and the RAM of GPUs' hosts."""

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tuner.trial import GB, Device, Request, Shape

# The minimum share of a host's RAM that is left free: Ray kills workers if more than 95 % are used.
RAY_SHARE = 0.05
RAM_BUFFER_BYTES = 2 * GB  # the most RAM that ``gpu_memory_buffer_gb`` leaves free, as it is meant for GPUs
UNBOUNDED = 2**62  # the RAM of a host if it is unknown
# The most trials on a GPU for each core: a trial keeps a core busy only while it launches kernels.
MOST_PER_CORE = 8
# The most trials on a GPU if they outnumber its cores. MPS takes about as many clients.
MOST_ON_GPU = 48


@dataclass(frozen=True)
class TrialLimits:
    """The most memory that a trial may have."""

    device_bytes: int = 0  # the largest budget of a device
    ram_bytes: int = UNBOUNDED  # the largest RAM of a host, beside a GPU's memory
    # Each device with its budget and slots, as ranks need several; empty if only the largest budget is known.
    places: tuple[tuple[Device, int, int], ...] = ()

    def of(self, shape: Shape) -> tuple[int, int]:
        """The most for each rank: of its device's memory, and of its host's RAM."""
        here, ram = shape.ranks_per_node, self.ram_bytes // shape.ranks_per_node
        if shape.ranks == 1 or not self.places:
            return self.device_bytes, ram
        parts = [(place[0], place[1]) for place in self.places if place[0].kind == "cuda" or place[2] >= here]
        return most_per_rank([device for device, _ in parts], [budget for _, budget in parts], shape), ram

    def fits(self, request: Request) -> bool:
        """Whether a request is within these limits."""
        device_bytes, ram = self.of(request.trial.shape)
        return request.need_bytes <= device_bytes and request.host_bytes <= ram

    def bound(self, request: Request, before: Request | None = None) -> Request:
        """The request with no more than this, or than it needed ``before`` if that was more."""
        device_bytes, ram = self.of(request.trial.shape)
        if before:
            device_bytes, ram = max(device_bytes, before.need_bytes), max(ram, before.host_bytes)
        need, host = min(request.need_bytes, device_bytes), min(request.host_bytes, ram)
        return replace(request, need_bytes=need, host_bytes=host)


def limited(device: Device, total_bytes: int) -> Device:
    """The device with its memory limited to ``total_bytes``. What trials share may be of what is free beyond that."""
    total = min(device.total_bytes, total_bytes)
    shared = max(0, device.shared_bytes - max(0, device.free_bytes - total))
    return replace(device, total_bytes=total, free_bytes=min(device.free_bytes, total), shared_bytes=shared)


def ram_buffer_bytes(device: Device, buffer_bytes: int) -> int:
    """The bytes of a GPU's host's RAM that are left free."""
    return max(min(buffer_bytes, RAM_BUFFER_BYTES), math.ceil(RAY_SHARE * device.ram_bytes))


def ram_budgets(devices: Sequence[Device], buffer_bytes: int) -> dict[str, int]:
    """By node id, the bytes of RAM that trials on GPUs divide: the free RAM less the buffer.

    Hosts with unknown RAM are left out. If RAM runs out, the kernel kills processes of its choice.
    """
    return {
        device.node_id: max(0, min(device.ram_bytes, device.free_ram_bytes) - ram_buffer_bytes(device, buffer_bytes))
        for device in devices
        if device.ram_bytes
    }


def largest_ram(devices: Sequence[Device], rams: Mapping[str, int]) -> int:
    """The largest RAM for trials of the devices' hosts."""
    return max((rams.get(device.node_id, UNBOUNDED) for device in devices), default=UNBOUNDED)


def most_in_ram(rams: Mapping[str, int], host_needs: Sequence[int]) -> dict[str, int]:
    """By node id, how many of the smallest trials fit in each host's RAM; empty if none needs RAM.

    A single need counts as that of many trials.
    """
    if not any(host_needs):
        return {}
    if len(host_needs) == 1:
        return {node: ram // host_needs[0] for node, ram in rams.items()}
    return dict(zip(rams, most_that_fit(list(rams.values()), host_needs), strict=True))


def most_that_fit(budgets: Sequence[int], needs: Sequence[int]) -> tuple[int, ...]:
    """How many of the smallest trials fit on each device at once."""
    sums = list(accumulate(sorted(needs)))
    return tuple(bisect_right(sums, budget) for budget in budgets)


def within_cores(trials: Sequence[int], devices: Sequence[Device], per_core: int = 1) -> list[int]:
    """The trials of each device, limited by its cores if these are known; ``per_core`` is for GPUs."""

    def limit(device: Device) -> int:
        more = min(device.cores * per_core, MOST_ON_GPU) if device.kind == "cuda" else 0
        return max(device.cores, more)

    return [min(most, limit(device) or most) for most, device in zip(trials, devices, strict=True)]


def bound_by_cores(devices: Sequence[Device], max_workers: int | None) -> list[Device]:
    """The devices with the cores that bind trials: none on GPUs if the user gives a number, as they can be shared."""
    free = max_workers is not None
    return [replace(device, cores=0) if free and device.kind == "cuda" else device for device in devices]


def within_ram(trials: Sequence[int], devices: Sequence[Device], most: Mapping[str, int]) -> list[int]:
    """The trials of each device, limited by how many fit in their hosts' RAM; ``most`` is by node id."""
    numbers = list(trials)
    of_host: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        of_host.setdefault(device.node_id, []).append(index)
    for node, number in most.items():
        indexes = of_host[node]
        shared = spread(
            min(number, sum(numbers[i] for i in indexes)),
            [numbers[i] for i in indexes],
            [numbers[i] for i in indexes],
        )
        for index, share in zip(indexes, shared, strict=True):
            numbers[index] = share
    return numbers


def spread(
    workers: int, capacity: Sequence[int], budgets: Sequence[int], at_least: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Gives each worker to the device with the lowest used share of its capacity; larger devices go first.

    So the only device that can hold the largest trials always has a worker. The devices have ``at_least`` workers
    already.
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


def most_per_rank(devices: Sequence[Device], budgets: Sequence[int], shape: Shape) -> int:
    """The most memory that each rank of a trial can have, in bytes; 0 if there is no place for all.

    A rank has a GPU of its own. On the CPU those of a node have equal parts of its RAM.
    """
    here, of_node = shape.ranks_per_node, defaultdict[str, list[int]](list)
    for device, budget in zip(devices, budgets, strict=True):
        of_node[device.node_id] += here * [budget // here] if device.kind == "cpu" else [budget]
    parts = sorted(sorted(parts)[-here] for parts in of_node.values() if len(parts) >= here)
    return parts[-shape.nodes] if len(parts) >= shape.nodes else 0


def threads_each(devices: Sequence[Device], slots: Sequence[int]) -> int:
    """The CPU threads of each trial: the smallest number of free cores per trial of any device.

    More threads would wait for each other, since OpenMP's threads synchronize after every operation.
    """
    return max(1, min(device.free_cores // used for device, used in zip(devices, slots, strict=True) if used))


def does_not_fit(devices: Sequence[Device], budgets: Sequence[int], footprint: int, buffer_bytes: int) -> str:
    """Why the largest trial fits no device."""
    index = max(range(len(devices)), key=lambda i: budgets[i])
    device = devices[index]
    return (
        f"a trial needs {footprint / GB:.2f} GB, but {device.label} has {budgets[index] / GB:.2f} GB for "
        f"trials ({device.total_bytes / GB:.2f} GB in all, {device.free_bytes / GB:.2f} GB free, buffer "
        f"{buffer_bytes / GB:.2f} GB)"
    )


def does_not_fit_ram(devices: Sequence[Device], rams: Mapping[str, int], footprint: int, buffer_bytes: int) -> str:
    """Why the trial that takes the most RAM fits no host."""
    device = max(devices, key=lambda device: rams.get(device.node_id, 0))
    host = device.host or "this machine"
    return (
        f"a trial needs {footprint / GB:.2f} GB of RAM beside its GPU's memory, but {host} has "
        f"{rams[device.node_id] / GB:.2f} GB for trials ({device.ram_bytes / GB:.2f} GB in all, "
        f"{device.free_ram_bytes / GB:.2f} GB free, buffer {ram_buffer_bytes(device, buffer_bytes) / GB:.2f} GB)"
    )
