"""A device's warm workers: Ray actors within the resources that are reserved on the device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.execution.nodes import PlacementGroup, WorkerHandle
from tuner.trial import Device, Placement

# The share of its GPU that an actor takes in Ray, which then makes it visible. How many there are is up to the plan,
# which may change: what is reserved cannot grow, and an actor keeps what it has.
GPU_SHARE = 0.001
NODE_LABEL = "ray.io/node-id"

MakeWorker = Callable[[Device, Mapping[str, object]], WorkerHandle]  # from a device and options for the actor


@dataclass
class WorkerPool:
    """The workers of one device, at most ``slots`` at once."""

    device: Device
    bundle: Mapping[str, float]  # the resources that Ray reserves for all workers
    slots: int  # the number of workers that share the bundle now
    budget_bytes: int  # the device's memory for trials and idle workers
    node_id: str
    make: MakeWorker
    _group: PlacementGroup | None = None
    _idle: list[WorkerHandle] = field(default_factory=list)
    _living: list[WorkerHandle] = field(default_factory=list)
    _reserved: dict[WorkerHandle, int] = field(default_factory=dict)  # bytes, by busy worker

    def reserve(self) -> None:
        """Requests the bundle on the device's node without waiting for it, unless it has been requested.

        Each device has a placement group of its own, so that losing one with its node does not affect the others.
        Ray's autoscaler sees it while it waits, and it ends with this process.
        """
        if self._group is not None:
            return
        from ray.util import placement_group

        self._group = placement_group([dict(self.bundle)], bundle_label_selector=[{NODE_LABEL: self.node_id}])

    @property
    def is_busy(self) -> bool:
        """Whether a worker has a trial."""
        return bool(self._reserved)

    @property
    def is_reserved(self) -> bool:
        """Whether Ray has reserved the bundle."""
        return self._group is not None and is_ready(self._group)

    @property
    def is_asked(self) -> bool:
        """Whether the bundle is requested, or reserved."""
        return self._group is not None

    def could_serve(self, resources: Mapping[str, float], labels: Mapping[str, str]) -> bool:
        """Whether another's request could have the bundle."""
        here = labels.get(NODE_LABEL, self.node_id) == self.node_id
        return here and all(self.bundle.get(name, 0.0) >= amount for name, amount in resources.items())

    def exchange(self, other: "WorkerPool") -> None:
        """Gives what it has reserved to another pool, and takes what that has asked for: Ray chooses the GPU."""
        self._group, other._group = other._group, self._group
        self.reserve()

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
        worker = warm or self.make(self.device, self.options())
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

    def options(self) -> dict[str, object]:
        """Ray's options of what runs in the bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": 0,
            "num_gpus": GPU_SHARE if self.bundle["GPU"] else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, 0),
        }


def is_ready(group: PlacementGroup) -> bool:
    """Whether Ray has reserved what a placement group asks for."""
    from ray.util import placement_group_table

    return bool(placement_group_table(group)["state"] == "CREATED")


def bundle_of(device: Device, most: int, memory_bytes: int) -> dict[str, float]:
    """The resources to reserve for a device: its GPU or its memory, and at ``most`` so many of its CPUs."""
    gpu = device.kind == "cuda"
    return {"CPU": float(min(most, device.cores)), "GPU": float(gpu), "memory": 0.0 if gpu else float(memory_bytes)}
