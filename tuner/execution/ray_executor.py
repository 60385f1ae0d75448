"""Trials on Ray's core: one placement group with a bundle for each device, and warm workers pinned to them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tuner.errors import ExecutionError
from tuner.execution.loop import Weights
from tuner.execution.worker import Event, run_trial
from tuner.peak import PeakMeter
from tuner.placement import Plan
from tuner.trial import MB, Device, EpochReport, Outcome, Placement
from tuner.workloads.base import Workload

READY_SECONDS = 60
OBJECT_STORE_BYTES = 256 * MB  # enough for the data sets' arrays; /dev/shm is small in many containers


class RayExecutor:
    """Runs placed trials in warm worker processes; each worker keeps its device and its share for life."""

    def __init__(self, workload: Workload, data: Any, plan: Plan) -> None:
        """Starts a local Ray, or uses the one that this process has joined, and puts the data into its store.

        Raises:
            ExecutionError: Ray does not start, or has not the CPUs and GPUs that the plan counts on.
        """
        import ray

        self._ray = ray
        self._plan = plan
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            _start_local_ray(plan)
        try:
            self._group = self._reserve()
            self._shared = (ray.put(workload), ray.put(data))
        except BaseException:
            self.close()
            raise
        self._idle: dict[Device, list[Any]] = defaultdict(list)
        self._workers: list[Any] = []
        self._running: dict[Any, tuple[Placement, Any]] = {}  # a trial's stream of events → where it runs

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
        if self._owns_cluster:
            self._ray.shutdown()
            return
        for worker in getattr(self, "_workers", ()):
            self._ray.kill(worker)
        if hasattr(self, "_group"):
            self._ray.util.remove_placement_group(self._group)

    def _next_event(self, stream: Any) -> tuple[EpochReport | Outcome, Weights]:
        placement, worker = self._running[stream]
        try:
            event: Event = self._ray.get(next(stream))
        except self._ray.exceptions.RayError as error:
            del self._running[stream]
            return _lost(placement, error), bytes
        if isinstance(event, EpochReport):
            return event, bytes
        assert isinstance(event, Outcome)
        del self._running[stream]
        self._idle[placement.device].append(worker)
        return event, lambda: self._ray.get(next(stream))

    def _reserve(self) -> Any:
        """A placement group with one bundle for each device, in the plan's order."""
        from ray.util.placement_group import placement_group

        available = self._ray.available_resources()
        memory = int(available.get("memory", 0))
        bundles = []
        for device, slots, budget in zip(self._plan.devices, self._plan.slots, self._plan.budgets, strict=True):
            bundle = {"CPU": float(max(1, slots * self._plan.threads))}
            bundle |= {"GPU": 1.0} if device.kind == "cuda" else {"memory": float(min(budget, memory))}
            bundles.append(bundle)
        group = placement_group(bundles)
        self._bundles = bundles
        try:
            self._ray.get(group.ready(), timeout=READY_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            raise ExecutionError(
                f"Ray has {available.get('CPU', 0):g} CPUs and {available.get('GPU', 0):g} GPUs free, not "
                f"the {bundles} that the plan counts on: end what else runs on it, or lower --max-workers"
            ) from error
        return group

    def _new_worker(self, placement: Placement) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        index = self._plan.devices.index(placement.device)
        share = (
            {"num_gpus": placement.fraction}
            if placement.device.kind == "cuda"
            else {"memory": int(self._bundles[index]["memory"] * placement.fraction)}
        )
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        options = {"num_cpus": placement.threads, "scheduling_strategy": strategy, **share}
        worker = self._ray.remote(Worker).options(**options).remote(*self._shared, placement.device)
        self._workers.append(worker)
        return worker


class Worker:
    """A warm process that trains one trial after another; it has torch loaded before its first."""

    def __init__(self, workload: Workload, data: Any, device: Device) -> None:
        """Pins the process to its device. ``data`` comes from Ray's object store without a copy."""
        if device.kind == "cuda":  # before torch asks CUDA: Ray's own choice of a GPU is not bound to ours
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            os.environ["CUDA_VISIBLE_DEVICES"] = str(device.index)
        from tuner.training import warm_up

        warm_up()
        self._workload = workload
        self._data = data
        self._meter = PeakMeter(device)

    def run(self, placement: Placement) -> Iterator[Event]:
        """Streams a trial's events."""
        yield from run_trial(self._workload, self._data, placement, self._meter)


def _start_local_ray(plan: Plan) -> None:
    """Starts Ray for this study alone: quiet, on the loopback address, without a dashboard."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; silences a warning
    import ray

    slots = zip(plan.devices, plan.slots, plan.budgets, strict=True)
    memory = [budget for device, _, budget in slots if device.kind == "cpu"]
    try:
        ray.init(
            address="local",
            num_cpus=max(1, plan.workers * plan.threads, len(plan.devices)),
            num_gpus=sum(device.kind == "cuda" for device in plan.devices),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _memory=max([MB, *memory]),
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ExecutionError(f"Ray did not start: {' '.join(str(error).split())}") from error


def _lost(placement: Placement, error: Exception) -> Outcome:
    """The outcome of a trial whose worker process died or could not be made."""
    reason = " ".join(str(error).split())[:300]
    return Outcome(placement.trial, "failed", placement, error=f"the worker was lost: {reason}", traceback=str(error))
