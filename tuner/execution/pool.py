"""A device's warm workers: Ray actors that each take an equal part of what is reserved of the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import ExecutionError
from tuner.placement.packing import Plan
from tuner.trial import Device, Placement

READY_SECONDS = 60
RAY_STEP = 10_000  # Ray counts resources in units of 1 / RAY_STEP
NODE_LABEL = "ray.io/node-id"

Make = Callable[[Device, Mapping[str, Any]], Any]


@dataclass
class Pool:
    """The workers of one device, of which at most ``slots`` live at once.

    Attributes:
        device: where they run.
        bundle: what Ray reserves of it.
        slots: how many workers divide that between them.
        budget_bytes: of the device's memory, for trials and for warm workers that wait for one.
        node_id: where Ray has it.
        make: makes a worker for a device with Ray's options.
    """

    device: Device
    bundle: Mapping[str, float]
    slots: int
    budget_bytes: int
    node_id: str
    make: Make
    _group: Any = None
    _idle: list[Any] = field(default_factory=list)
    _living: list[Any] = field(default_factory=list)
    _taken: dict[Any, int] = field(default_factory=dict)  # bytes, by busy worker

    def reserve(self) -> None:
        """Asks Ray for the bundle, on its node and nowhere else; does not wait for it.

        Each device has a placement group of its own, so that one that is lost with its node takes no other with it.
        """
        from ray.util import placement_group

        self._group = placement_group([dict(self.bundle)], bundle_label_selector=[{NODE_LABEL: self.node_id}])

    def reserved(self, timeout_seconds: float) -> bool:
        """Whether Ray has reserved the bundle; waits for that for so long."""
        return bool(self._group.wait(max(0.0, timeout_seconds)))

    def take(self, placement: Placement, *, new: bool) -> tuple[Any, bool]:
        """A worker for a trial, and whether it is a new one.

        Idle workers are in no trial's share, but hold their context all the same: those for which the trials of the
        device leave no room are ended.

        Args:
            placement: the trial's.
            new: take no warm one; the place of an idle worker is taken if no other is left.
        """
        warm = self._idle.pop() if self._idle and not new else None
        room = self.budget_bytes - sum(self._taken.values()) - placement.limit_bytes
        while self._idle and len(self._idle) * placement.estimate.context_bytes > room:
            self.end(self._idle[0])
        if warm is None and self._idle and len(self._living) >= self.slots:
            self.end(self._idle[0])
        worker = warm or self.make(self.device, self._options())
        if warm is None:
            self._living.append(worker)
        self._taken[worker] = placement.limit_bytes
        return worker, warm is None

    def give_back(self, worker: Any) -> None:
        """Keeps a worker for the next trial."""
        del self._taken[worker]
        self._idle.append(worker)

    def end(self, worker: Any) -> None:
        """Ends a worker, if it has not been ended, so that its part of the device is free."""
        import ray

        if worker not in self._living:
            return
        self._living.remove(worker)
        self._taken.pop(worker, None)
        if worker in self._idle:
            self._idle.remove(worker)
        ray.kill(worker)

    def close(self) -> None:
        """Ends all workers and gives the device back."""
        from ray.util import remove_placement_group

        for worker in list(self._living):
            self.end(worker)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _options(self) -> dict[str, Any]:
        """What Ray sets aside for a worker: what it divides is rounded down, so that the last one fits as well."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        parts = {name: math.floor(self.bundle[name] / self.slots * RAY_STEP) / RAY_STEP for name in ("CPU", "GPU")}
        return {
            "num_cpus": parts["CPU"],
            "num_gpus": parts["GPU"],
            "memory": int(self.bundle["memory"] / self.slots),
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, 0),
        }


def make_pools(
    plan: Plan, nodes: Mapping[Device, str], memory_bytes: Mapping[str, int], make: Make
) -> dict[Device, Pool]:
    """A pool, with nothing reserved yet, for each device that the plan uses.

    Args:
        plan: devices and slots.
        nodes: where Ray has each device.
        memory_bytes: what Ray has of each node's memory.
        make: makes a worker.
    """
    pools = {}
    for device, slots, budget in zip(plan.devices, plan.slots, plan.budgets, strict=True):
        if slots:
            node = nodes[device]
            bundle = _bundle(device, slots * plan.threads, min(budget, memory_bytes[node]))
            pools[device] = Pool(device, bundle, slots, budget, node, make)
    return pools


def reserve(pools: Sequence[Pool]) -> None:
    """Reserves the devices of all pools.

    Raises:
        ExecutionError: Ray has not free what is to be reserved.
    """
    import ray

    deadline = time.monotonic() + READY_SECONDS
    for pool in pools:
        pool.reserve()
    for pool in pools:
        if not pool.reserved(deadline - time.monotonic()):
            available = ray.available_resources()
            raise ExecutionError(
                f"Ray has {available.get('CPU', 0):g} CPUs and {available.get('GPU', 0):g} GPUs free, not the "
                f"{ {name: f'{size:g}' for name, size in pool.bundle.items() if size} } that the plan counts on for "
                f"{pool.device.label}: end what else runs on it"
            )


def _bundle(device: Device, threads: int, memory_bytes: int) -> dict[str, float]:
    """What to reserve for a device: its GPU, or the memory, and a CPU for each thread as far as there are."""
    gpu = device.kind == "cuda"
    cpus = min(threads, device.cores)
    return {"CPU": float(cpus), "GPU": float(gpu), "memory": 0.0 if gpu else float(memory_bytes)}
