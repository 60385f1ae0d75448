"""Trials on Ray's core: a placement group for each device, and warm workers that divide it between them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tuner.errors import ExecutionError
from tuner.execution import ray_errors as losses
from tuner.execution.actor import Worker as Worker
from tuner.execution.cluster import Session, local_session
from tuner.execution.cluster_discovery import joined_session
from tuner.execution.loop import Weights
from tuner.execution.mapped_arrays import put
from tuner.execution.nodes import NodeWatch, cluster_devices, on_one_machine
from tuner.execution.pool import Pool, make_pools, reserve
from tuner.execution.stop_requests import EndRequests
from tuner.execution.worker import TrialOptions
from tuner.execution.worker_failures import Inquests, Run
from tuner.machine.caps import worker_environment
from tuner.machine.devices import DeviceChoice, allocator_environment, detect_devices
from tuner.placement.packing import Plan
from tuner.trial import Device, DeviceLost, EpochReport, Outcome, Placement
from tuner.workloads.built_in import is_built_in
from tuner.workloads.own import sent_by_value
from tuner.workloads.task import Tasks

EVENT_SECONDS = 30
WEIGHTS_SECONDS = 60
START_SECONDS = 300  # torch from a slow network drive takes a while

Told = tuple[EpochReport | Outcome | DeviceLost, Weights]


class RayExecutor:
    """Runs placed trials in warm worker processes; each worker keeps its device and its share for life."""

    worker_class: ClassVar[type[Worker]] = Worker

    def __init__(
        self,
        *,
        expandable_segments: bool = False,
        address: str | None = None,
        caps: bool = True,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        """Starts nothing yet.

        Args:
            expandable_segments: set the CUDA allocator's option of that name in the workers.
            address: the cluster to join, "HOST:PORT" or "auto"; without one a Ray of this machine's is started, or
                the one used that this process is connected to.
            caps: hold each trial to its share of its device.
            checkpoint_seconds: between two of a trial's checkpoints, and before its first.
        """
        self._allocator = allocator_environment(expandable_segments)
        self._address = address
        self._options = TrialOptions(caps=caps, checkpoint_seconds=checkpoint_seconds)
        self._session: Session | None = None
        self._end_requests = EndRequests(None)
        self._pools: dict[Device, Pool] = {}
        self._lost: dict[Device, str] = {}
        self._runs: dict[Any, Run] = {}  # by the trial's stream of events
        self._spent: list[Run] = []  # their workers are not used again
        self._told: list[Told] = []  # what the next poll tells

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """This machine's devices, or those of all nodes of the cluster, which is joined for that.

        Raises:
            InputError: there is none, no Ray at the address, or a node that cannot tell what it has.
        """
        if self._address is None:
            return detect_devices(choice)
        self._session = self._session or joined_session(self._address)
        return cluster_devices(choice)

    def prepare(self, devices: Sequence[Device]) -> None:
        """Begins to start a local Ray with these devices, unless there is one to be used."""
        if self._session is None:
            self._session = local_session(devices, self._environment(devices[0]))

    def wait(self) -> None:
        """Waits until Ray is there, after ``prepare``.

        Raises:
            ExecutionError: it did not start.
        """
        assert self._session is not None
        self._session.wait()

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Waits for Ray, reserves the plan's devices and puts the data into Ray's store.

        Raises:
            DataError: a file that the data are mapped from has been removed.
            ExecutionError: Ray did not start, or has not the CPUs, GPUs or memory that the plan counts on; or the
                folder for checkpoints cannot be written.
        """
        self._end_requests = EndRequests(checkpoints)
        self._end_requests.reset()
        self.prepare(plan.devices)
        self.wait()
        import ray

        self._ray = ray
        self._actor = ray.remote(self.worker_class)
        self._watch = NodeWatch()
        self._nodes = {device: device.node_id or self._watch.own_node for device in plan.devices}
        nodes = ray.nodes()
        memory = {node["NodeID"]: int(node["Resources"].get("memory", 0)) for node in nodes}
        self._options = replace(self._options, checkpoints=checkpoints.absolute() if checkpoints else None)
        # One object: Ray resolves no references within containers, and arrays within one are shared all the same.
        one_machine = on_one_machine(nodes, {self._watch.own_node, *self._nodes.values()})
        elsewhere = (
            [] if one_machine else [task.workload for task in tasks.values() if not is_built_in(task.workload)]
        )
        with sent_by_value(elsewhere):
            self._shared = (put(dict(tasks), one_machine=one_machine), plan.threads, self._options)
        self._pools = make_pools(plan, self._nodes, memory, self._make)
        reserve(list(self._pools.values()))
        self._inquests = Inquests(self._watch, {pool.node_id for pool in self._pools.values()})

    def submit(self, placement: Placement) -> None:
        """Starts a trial on an idle worker of its device; on a new one if there is none, or if it is a retry."""
        self._end_spent()
        self._end_requests.forget_prune(placement.trial.trial_id)
        pool = self._pools[placement.device]
        run = Run(placement, pool, None, False, time.monotonic())
        if placement.device in self._lost:
            self._tell(run.lost("failed", "node", self._lost[placement.device]))
        else:
            self._start(run, new=placement.trial.attempt > 1)

    def poll(self, timeout_seconds: float) -> list[Told]:
        """One event of every trial that has one, waiting for the first for at most ``timeout_seconds``."""
        self._end_spent()
        waited = [*self._runs, *self._inquests.references]
        if not waited and not self._told:
            time.sleep(timeout_seconds)
        for reference in self._ready(waited, 0.0 if self._told else timeout_seconds):
            if reference in self._runs:
                self._hear(reference)
            else:
                self._tell(self._inquests.answer(reference))
        self._look()
        told, self._told = self._told, []
        return told

    def stop(self) -> None:
        """Has the workers end their trials after the epoch that they are in, with a checkpoint.

        Raises:
            ExecutionError: the folder for checkpoints cannot be written.
        """
        self._end_requests.stop_all()

    def prune(self, trial_id: str) -> None:
        """Has a trial end after the step that it is in; one on a node without the folder for checkpoints goes on."""
        self._end_requests.prune(trial_id)

    def close(self) -> None:
        """Ends the workers, gives the devices back, and ends Ray if it was started here, or leaves the cluster."""
        if self._session is None:
            return
        self._end_requests.remove()
        # A Ray of its own goes with everything in it; and where the head is gone there is nobody to be told.
        if self._pools and not self._has_own_ray and self._watch.head_answers:
            for pool in self._pools.values():
                pool.close()
        self._runs.clear()
        self._pools.clear()
        self._session.stop()

    @property
    def _has_own_ray(self) -> bool:
        return self._session is not None and self._session.owned and self._address is None

    def _environment(self, device: Device) -> dict[str, str]:
        """Environment variables that the C library or torch reads as a worker's process begins."""
        return {**worker_environment(device), **self._allocator}

    def _make(self, device: Device, options: Mapping[str, Any]) -> Any:
        own = {} if self._has_own_ray else {"runtime_env": {"env_vars": self._environment(device)}}
        tasks, threads, trial_options = self._shared
        return self._actor.options(**options, **own).remote(tasks, device, threads, trial_options)

    def _start(self, run: Run, *, new: bool) -> None:
        run.worker, run.fresh = run.pool.take(run.placement, new=new)
        stream = run.worker.run.options(num_returns="streaming").remote(run.placement)
        self._runs[stream] = run

    def _end_spent(self) -> None:
        """Ends the workers that are not used again: what they had to tell has been taken."""
        for run in self._spent:
            run.pool.end(run.worker)
        self._spent = []

    def _ready(self, waited: list[Any], timeout_seconds: float) -> list[Any]:
        if not waited:
            return []
        ready, _ = self._ray.wait(waited, num_returns=1, timeout=timeout_seconds)
        if ready:
            ready, _ = self._ray.wait(waited, num_returns=len(waited), timeout=0)
        return list(ready)

    def _hear(self, stream: Any) -> None:
        """Takes a trial's next event, or what Ray has in its place."""
        run = self._runs[stream]
        try:
            event = self._ray.get(next(stream), timeout=EVENT_SECONDS)
        except Exception as error:  # Ray's own, or whatever comes of unpacking what another machine has packed
            del self._runs[stream]
            self._broken(run, error)
            return
        run.taken = True
        if isinstance(event, EpochReport):
            run.report = event
            self._tell(event)
        elif isinstance(event, Outcome):
            del self._runs[stream]
            self._end_requests.forget_prune(event.trial.trial_id)
            if event.reusable:
                run.pool.give_back(run.worker)
            else:
                self._spent.append(run)  # not at once, as its weights are still to be had
            self._tell(replace(event, placement=run.placement), lambda: self._weights(stream))

    def _broken(self, run: Run, error: Exception) -> None:
        """Ends a run whose worker is gone; one that a warm worker had not even begun starts again."""
        died_idle = not run.taken and not run.fresh and not losses.raised(error)
        if died_idle and run.pool.node_id not in self._watch.died(now=True):
            run.pool.end(run.worker)
            self._start(run, new=True)
        else:
            self._tell(self._inquests.ask(run, error))

    def _look(self) -> None:
        """Tells of nodes that have died, of workers that do not start, and of what will never be known."""
        for node, reason in self._watch.died().items():
            self._lose(node, reason)
        for outcome in self._inquests.overdue():
            self._tell(outcome)
        for stream, run in list(self._runs.items()):
            if not run.taken and time.monotonic() - run.began > START_SECONDS:
                del self._runs[stream]
                run.pool.end(run.worker)
                self._tell(run.lost("failed", "worker", f"its worker did not start within {START_SECONDS} s"))

    def _lose(self, node: str, reason: str) -> None:
        """Tells that a node's trials and devices are lost, once."""
        devices = [each for each, where in self._nodes.items() if where == node and each not in self._lost]
        streams = [stream for stream, run in self._runs.items() if run.pool.node_id == node]
        runs = [self._runs.pop(stream) for stream in streams] + self._inquests.on_node(node)
        for run in runs:
            self._tell(run.lost("failed", "node", reason))
        for device in devices:
            self._lost[device] = reason
            self._tell(DeviceLost(device, reason))
            if device in self._pools and self._watch.head_answers:
                self._pools[device].close()

    def _tell(self, event: EpochReport | Outcome | DeviceLost | None, weights: Weights = bytes) -> None:
        if event is not None:
            self._told.append((event, weights))

    def _weights(self, stream: Any) -> bytes:
        """A completed trial's weights.

        Raises:
            ExecutionError: they are lost with their worker or its node.
        """
        try:
            ready, _ = self._ray.wait([stream], timeout=WEIGHTS_SECONDS)
            if not ready:
                raise ExecutionError(f"the weights did not come within {WEIGHTS_SECONDS} s")
            content: bytes = self._ray.get(next(stream), timeout=WEIGHTS_SECONDS)
        except (self._ray.exceptions.RayError, StopIteration) as error:
            raise ExecutionError(f"the weights are lost: {losses.last_line(str(error))}") from error
        return content
