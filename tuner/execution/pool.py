"""A device's warm workers: Ray actors with equal parts of the resources that are reserved on the device."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.decisions.plan import Plan
from tuner.errors import ExecutionError
from tuner.execution.nodes import PlacementGroup, WorkerHandle
from tuner.trial import Device, Placement

READY_SECONDS = 60
RAY_STEP = 10_000  # Ray counts resources in units of 1 / RAY_STEP
NODE_LABEL = "ray.io/node-id"

MakeWorker = Callable[[Device, Mapping[str, object]], WorkerHandle]  # from a device and options for the actor


@dataclass
class WorkerPool:
    """The workers of one device, at most ``slots`` at once."""

    device: Device
    bundle: Mapping[str, float]  # the resources that Ray reserves for all workers
    slots: int  # the number of workers that share the bundle
    budget_bytes: int  # the device's memory for trials and idle workers
    node_id: str
    make: MakeWorker
    _group: PlacementGroup | None = None
    _idle: list[WorkerHandle] = field(default_factory=list)
    _living: list[WorkerHandle] = field(default_factory=list)
    _reserved: dict[WorkerHandle, int] = field(default_factory=dict)  # bytes, by busy worker

    def reserve(self) -> PlacementGroup:
        """Requests the bundle on the device's node without waiting for it.

        Each device has a placement group of its own, so that losing one with its node does not affect the others.
        """
        from ray.util import placement_group

        group: PlacementGroup = placement_group(
            [dict(self.bundle)], bundle_label_selector=[{NODE_LABEL: self.node_id}]
        )
        self._group = group
        return group

    def take(self, placement: Placement, *, new: bool) -> tuple[WorkerHandle, bool]:
        """A worker for a trial, and whether it is new. A ``new`` one replaces an idle one if no slot is free.

        The contexts of idle workers take memory that is in no trial's share. Idle workers that do not fit are ended.
        """
        warm = self._idle.pop() if self._idle and not new else None
        room = self.budget_bytes - sum(self._reserved.values()) - placement.limit_bytes
        while self._idle and len(self._idle) * placement.estimate.context_bytes > room:
            self.end(self._idle[0])
        if warm is None and self._idle and len(self._living) >= self.slots:
            self.end(self._idle[0])
        worker = warm or self.make(self.device, self._options())
        if warm is None:
            self._living.append(worker)
        self._reserved[worker] = placement.limit_bytes
        return worker, warm is None

    def give_back(self, worker: WorkerHandle) -> None:
        """Keeps a worker for the next trial."""
        del self._reserved[worker]
        self._idle.append(worker)

    def end(self, worker: WorkerHandle) -> None:
        """Ends a living worker, so that its part of the device is free."""
        import ray

        if worker not in self._living:
            return
        self._living.remove(worker)
        self._reserved.pop(worker, None)
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

    def _options(self) -> dict[str, object]:
        """A worker's resources: parts of the bundle, rounded down so that the last worker fits as well."""
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
    plan: Plan, nodes: Mapping[Device, str], memory_bytes: Mapping[str, int], make: MakeWorker
) -> dict[Device, WorkerPool]:
    """A pool for each device that the plan uses; nothing is reserved yet.

    ``nodes`` has the id of each device's node, ``memory_bytes`` the memory that Ray has on each node.
    """
    pools = {}
    for device, slots, budget in zip(plan.devices, plan.slots, plan.budgets, strict=True):
        if slots:
            node = nodes[device]
            bundle = _bundle(device, slots * plan.threads, min(budget, memory_bytes[node]))
            pools[device] = WorkerPool(device, bundle, slots, budget, node, make)
    return pools


def reserve(pools: Sequence[WorkerPool], seconds: float) -> None:
    """Reserves the devices of all pools, within this time.

    Raises:
        ExecutionError: Ray has too few free resources.
    """
    import ray

    deadline = time.monotonic() + seconds
    for pool, group in [(pool, pool.reserve()) for pool in pools]:
        if not group.wait(max(0.0, deadline - time.monotonic())):
            available = ray.available_resources()
            raise ExecutionError(
                f"Ray has {available.get('CPU', 0):g} CPUs and {available.get('GPU', 0):g} GPUs free, not the "
                f"{ {name: f'{size:g}' for name, size in pool.bundle.items() if size} } that the plan needs for "
                f"{pool.device.label}: end other programs that use it"
            )


def _bundle(device: Device, threads: int, memory_bytes: int) -> dict[str, float]:
    """The resources to reserve for a device: its GPU or its memory, and a CPU for each thread if there are enough."""
    gpu = device.kind == "cuda"
    cpus = min(threads, device.cores)
    return {"CPU": float(cpus), "GPU": float(gpu), "memory": 0.0 if gpu else float(memory_bytes)}
