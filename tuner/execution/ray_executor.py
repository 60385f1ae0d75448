"""Trials on Ray's core: one placement group with a bundle for each device, and warm workers pinned to them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tuner.devices import allocator_environment, pin
from tuner.errors import ExecutionError
from tuner.execution.cluster import LocalRay
from tuner.execution.loop import Weights
from tuner.execution.worker import Event, run_trial, torch_device
from tuner.peak import PeakMeter
from tuner.placement import Plan
from tuner.trial import Device, EpochReport, Outcome, Placement, Status
from tuner.workloads.base import Workload

READY_SECONDS = 60
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in Ray's messages


class RayExecutor:
    """Runs placed trials in warm worker processes; each worker keeps its device and its share for life."""

    def __init__(self, *, expandable_segments: bool = False) -> None:
        """Starts nothing yet.

        Args:
            expandable_segments: set the CUDA allocator's option of that name in the workers.
        """
        self._environment = allocator_environment(expandable_segments)
        self._cluster: LocalRay | None = None
        self._group: Any = None
        self._idle: dict[Device, list[Any]] = defaultdict(list)
        self._workers: list[Any] = []
        self._running: dict[Any, tuple[Placement, Any]] = {}  # a trial's stream of events → where it runs

    def prepare(self, devices: Sequence[Device]) -> None:
        """Begins to start a local Ray; uses the one that this process has joined, if there is one."""
        self._cluster = LocalRay(devices)

    def open(self, workload: Workload, data: Any, plan: Plan) -> None:
        """Waits for Ray, reserves the plan's devices and puts the data into Ray's store.

        Raises:
            ExecutionError: Ray did not start, or has not the CPUs and GPUs that the plan counts on.
        """
        self._cluster = self._cluster or LocalRay(plan.devices)
        self._cluster.wait()
        import ray

        self._ray = ray
        self._plan = plan
        memory_bytes = int(ray.available_resources().get("memory", 0))
        self._bundles = _bundles(plan, ray.util.get_node_ip_address(), memory_bytes)
        self._group = self._reserve()
        self._shared = (ray.put(workload), ray.put(data))

    def submit(self, placement: Placement) -> None:
        """Starts a trial on an idle worker of its device, or on a new one."""
        idle = self._idle[placement.device]
        worker = idle.pop() if idle else self._new_worker(placement)
        stream = worker.run.options(num_returns="streaming").remote(placement)
        self._running[stream] = (placement, worker)

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome, Weights]]:
        """One event of every trial that has one, waiting for the first for at most ``timeout_seconds``."""
        streams = list(self._running)
        ready, _ = self._ray.wait(streams, num_returns=1, timeout=timeout_seconds)
        if ready:
            ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0)
        return [self._next_event(stream) for stream in ready]

    def close(self) -> None:
        """Ends the workers, gives the devices back, and ends Ray if it was started here."""
        if self._cluster is None or self._cluster.stop():
            return
        for worker in self._workers:
            self._ray.kill(worker)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def _next_event(self, stream: Any) -> tuple[EpochReport | Outcome, Weights]:
        placement, worker = self._running[stream]
        try:
            event: Event = self._ray.get(next(stream))
        except self._ray.exceptions.RayError as error:
            del self._running[stream]
            self._ray.kill(worker)  # it may live on after an error of its own, and would keep its share
            return self._lost(placement, error), bytes
        if isinstance(event, EpochReport):
            return event, bytes
        assert isinstance(event, Outcome)
        del self._running[stream]
        if event.status in ("failed", "out_of_memory"):
            # A failed kernel leaves a CUDA context that fails everything after it, and memory that ran out in the
            # middle of a late import leaves a module half loaded.
            self._ray.kill(worker)
        else:
            self._idle[placement.device].append(worker)
        return event, lambda: self._ray.get(next(stream))

    def _lost(self, placement: Placement, error: Exception) -> Outcome:
        """The outcome of a trial whose worker died, was killed for its memory, or could not be made."""
        text = ANSI.sub("", str(error))
        memory = isinstance(error, self._ray.exceptions.OutOfMemoryError)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
        # Ray quotes an exception of the worker's with its traceback, of which the last line says what it was.
        reason = lines[-1] if "Traceback" in text else lines[0]
        status: Status = "out_of_memory" if memory else "failed"
        return Outcome(placement.trial, status, placement, error=f"the worker was lost: {reason}", traceback=text)

    def _reserve(self) -> Any:
        """A placement group with the bundles, in their order."""
        group = self._ray.util.placement_group(list(self._bundles.values()))
        try:
            self._ray.get(group.ready(), timeout=READY_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            self._ray.util.remove_placement_group(group)
            available = self._ray.available_resources()
            raise ExecutionError(
                f"Ray has {available.get('CPU', 0):g} CPUs and {available.get('GPU', 0):g} GPUs free, not the "
                f"{list(self._bundles.values())} that the plan counts on: end what else runs on it"
            ) from error
        return group

    def _new_worker(self, placement: Placement) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._bundles[placement.device]
        slots = self._plan.slots[self._plan.devices.index(placement.device)]
        index = list(self._bundles).index(placement.device)
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        share = (
            {"num_gpus": placement.fraction}
            if placement.device.kind == "cuda"
            else {"memory": int(bundle["memory"] * placement.fraction)}
        )
        options = {"num_cpus": bundle["CPU"] / slots, "scheduling_strategy": strategy, **share}
        if self._environment:  # torch reads it when it is imported, which may be before the worker's own first line
            options["runtime_env"] = {"env_vars": self._environment}
        worker = self._ray.remote(Worker).options(**options)
        worker = worker.remote(*self._shared, placement.device)
        self._workers.append(worker)
        return worker


class Worker:
    """A warm process that trains one trial after another; it has torch loaded before its first."""

    def __init__(self, workload: Workload, data: Any, device: Device) -> None:
        """Pins the process to its device. ``data`` comes from Ray's object store without a copy."""
        pin(device)  # Ray's own choice of a GPU need not be ours
        from tuner.training import warm_up

        self._workload = workload
        self._data = data
        self._meter = PeakMeter(device, partial(warm_up, torch_device(device)))

    def run(self, placement: Placement) -> Iterator[Event]:
        """Streams a trial's events."""
        yield from run_trial(self._workload, self._data, placement, self._meter)


def _bundles(plan: Plan, node: str, memory_bytes: int) -> dict[Device, dict[str, float]]:
    """What to reserve of Ray for each device that is used: its GPU, or its memory within ``memory_bytes``, and CPUs.

    Ray's resource for a node (``node:ADDRESS``) keeps the bundles on this machine, whose devices the plan counts on.
    """
    bundles = {}
    for device, slots, budget in zip(plan.devices, plan.slots, plan.budgets, strict=True):
        share = {"GPU": 1.0} if device.kind == "cuda" else {"memory": float(min(budget, memory_bytes))}
        if slots:
            cpus = float(min(slots * plan.threads, device.cores))
            bundles[device] = {"CPU": cpus, f"node:{node}": 0.001, **share}
    return bundles
