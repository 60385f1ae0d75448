"""Trials on Ray's core: a placement group for each device, and warm workers that divide it between them."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, ClassVar, Unpack

from tuner.decisions.events import DeviceLost, Joined
from tuner.decisions.plan import Plan
from tuner.decisions.state import State
from tuner.errors import DevicesLost, ExecutionError, InputError, last_line
from tuner.execution.child import Worker as Worker
from tuner.execution.cluster import RayConnection, StartedRay, connected, join_cluster, local_ray
from tuner.execution.executor import (
    START_SECONDS,
    Executor,
    ExecutorEvent,
    ExecutorOptions,
    Happening,
    Weights,
)
from tuner.execution.mapped_arrays import put
from tuner.execution.nodes import (
    Node,
    NodeWatch,
    ObjectRef,
    Remote,
    WorkerHandle,
    answered,
    ask,
    cluster_devices,
    on_node,
    on_one_machine,
    usable_nodes,
)
from tuner.execution.own_folders import Elsewhere, StudyFiles
from tuner.execution.pool import WorkerPool, bundle_of
from tuner.execution.rank_group import RankGroup, meeting_at
from tuner.execution.reservations import Reservations
from tuner.execution.sent_files import Piece, code_of
from tuner.execution.weights import weights_of
from tuner.execution.worker_failures import RunningTrial, WorkerFailures, end_processes, raised_in_worker
from tuner.machine.caps import worker_environment
from tuner.machine.devices import DeviceChoice
from tuner.machine.processes import free_port, shorten
from tuner.trial import LOOPBACK, Began, Device, EpochReport, Outcome, Placement, Question
from tuner.workloads.base import is_built_in
from tuner.workloads.task import Tasks

EVENT_SECONDS = 30
WEIGHTS_SECONDS = 60
ANSWERS = "answers"  # the group of a worker's calls that need not wait for its trial

Stream = Iterator[ObjectRef]  # of a trial's events


class RayExecutor(Executor):
    """Runs placed trials in warm worker processes; each worker keeps its device and its share until it ends."""

    worker_class: ClassVar[type[Worker]] = Worker

    def __init__(self, *, address: str | None = None, **options: Unpack[ExecutorOptions]) -> None:
        """Starts nothing yet.

        Args:
            address: the cluster to join; None for the Ray to which this process is connected, or a new local one.
            options: see ``Executor``.
        """
        super().__init__(**options)
        self._address = address
        self._connection: RayConnection | None = None
        self._pools: dict[Device, WorkerPool] = {}
        self._nodes: dict[Device, str] = {}  # the id of each device's node
        self._lost: set[Device] = set()
        self._data: object = None  # what workers have of the tasks
        self._by_name = True  # whether they map the files of this machine
        self._files: list[BinaryIO] = []  # that workers map as they start
        self._running: dict[Stream, RunningTrial] = {}
        self._events: list[ExecutorEvent] = []  # for the next poll
        self._groups: dict[str, RankGroup] = {}  # the trials of several ranks, by id
        self._choice: DeviceChoice = "auto"
        self._packages: Sequence[str] = ()
        self._joining: dict[ObjectRef, tuple[Node, str]] = {}  # by what will say which devices a node has

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """This machine's devices, or those of all nodes of the cluster, which it joins."""
        self._address = self._address or connected()
        if self._address is None:
            return super().devices(choice)
        self._connection = self._connection or join_cluster(self._address)
        self._choice = choice
        self._packages = self.packages()
        self.left_out = []
        return cluster_devices(choice, self._packages, self.left_out, self.find_on_node)

    def prepare(self, tasks: Tasks, devices: Sequence[Device], threads: int = 1) -> None:
        """Begins to start a local Ray with these devices, unless it is connected to one, and imports for trials."""
        super().prepare(tasks, devices, threads)
        if self._connection is None:
            started = StartedRay()
            if not connected():
                launch = replace(self._options.launch, environ=dict(os.environ), search_path=list(sys.path))
                self._options = replace(self._options, launch=launch)
            self._connection = RayConnection(local_ray(devices, worker_environment(devices[0]), started), started)
        if self._options.launch.environ is not None:  # those on this machine will look for it
            earlier, self._link = self._link, self._options.launch.preload(devices[0], threads).link()
            if earlier:
                earlier.close()

    @property
    def starting(self) -> str:
        """What it does before the first trial begins to train."""
        return "starting Ray" if self._address is None else "starting workers"

    @property
    def started(self) -> bool:
        """Whether it is connected to a Ray, or is starting one."""
        return self._connection is not None

    def wait(self) -> None:
        """Waits for the Ray that ``prepare`` is starting."""
        assert self._connection is not None
        self._connection.wait()

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Waits for Ray, and makes the data ready for workers. Devices of a cluster are asked for by ``claim``."""
        super().open(tasks, plan, checkpoints)
        self.wait()
        import ray

        self._ray = ray
        # With a thread for answers Ray runs trials in a thread, too, so only tasks that ask questions have one.
        asking = any(task.workload.asks for task in tasks.values())
        remote = ray.remote(concurrency_groups={ANSWERS: 1}) if asking else ray.remote
        self._actor: Remote[WorkerHandle] = remote(self.worker_class)
        self._watch, self._tasks = NodeWatch(device.node_id for device in plan.devices), dict(tasks)
        self._reservations = Reservations(self._pools, self._watch)
        self._failures = WorkerFailures(self._watch, caps=self._options.caps)
        self._stop_requests = self._study_files = StudyFiles(self._options, self._watch.own_node)
        self.replan(plan)

    def replan(self, plan: Plan) -> None:
        """Has pools of workers for the plan's devices, and sends data to nodes of further machines."""
        nodes: list[Node] = self._ray.nodes()
        own_node, memory = self._watch.own_node, {n["NodeID"]: int(n["Resources"].get("memory", 0)) for n in nodes}
        where = {device: device.node_id or own_node for device in plan.devices}
        one_machine = on_one_machine(nodes, {own_node, *where.values()})
        if self._data is None or (self._by_name and not one_machine):
            workloads = [] if one_machine else [task.workload for task in self._tasks.values()]
            own = [workload for workload in workloads if not is_built_in(workload)]
            self._options = replace(self._options, code=code_of(own))
            # One object, as Ray does not resolve references within containers. It shares arrays nevertheless.
            self._data, self._by_name = put(self._tasks, self._files, one_machine=one_machine), one_machine
        self._shared = (self._data, plan.threads, self._options)
        for device, slots, budget in zip(plan.devices, plan.slots, plan.budgets, strict=True):
            if pool := self._pools.get(device):
                pool.slots = max(slots, pool.slots)
            elif slots and device not in self._lost:
                node = where[device]
                most = plan.threads * (plan.max_workers or device.cores)
                bundle = bundle_of(device, most, min(budget, memory[node]) if node in memory else budget)
                self._pools[device] = WorkerPool(device, bundle, slots, budget, node, self._make)
                if not device.node_id:  # of an own Ray
                    self._pools[device].reserve()
        self._failures.watch({pool.node_id for pool in self._pools.values()})
        self._nodes |= where
        self._addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}

    def claim(self, device: Device) -> bool:
        """Asks for a device of the cluster; ``poll`` says when it is ``Held``."""
        self._reservations.claim(device)
        return False

    def release(self, device: Device) -> None:
        """Ends the device's idle workers, and gives it back."""
        self._reservations.release(device)

    def demand(self, state: State, most: int | None = None) -> None:
        """Has Ray's autoscaler see which trials wait."""
        if self._address is not None:
            self._reservations.demand(state, most)

    def submit(self, placement: Placement) -> None:
        """Starts a trial on an idle worker of its device; on a new one if there is none."""
        self._stop_requests.forget_prune(placement.trial.trial_id)
        if placement.others:
            placement = self._meeting(placement)
            self._groups[placement.trial.trial_id] = RankGroup(placement)
        for place in placement.all:
            self._start(place, new=False, started=time.monotonic())

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        """The events that have come; waits for the first for at most ``timeout_seconds``."""
        for run in self._running.values():
            shorten(self._options.log(run.placement.log))
        streams, asked = list(self._running), self._reservations.references
        answers = [*self._failures.references, *self._joining, *asked]
        timeout_seconds = min(timeout_seconds, self._reservations.seconds_until_look)
        if not (streams or answers or self._events):
            time.sleep(timeout_seconds)
        ready = self._ready([*streams, *answers], 0.0 if self._events else timeout_seconds)
        for stream in filter(ready.__contains__, streams):
            self._receive(stream)
        for answer in filter(ready.__contains__, answers):
            if answer in asked:
                self._emit(self._reservations.answered(answer))
            else:
                self._emit(self._found(answer) if answer in self._joining else self._failures.answered(answer))
        self._check_health()
        for held in self._reservations.look():
            self._emit(held)
        self._end_groups()
        events, self._events = self._events, []
        return events

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a trial's question, unless its worker is lost by now."""
        for run in self._running.values():
            if run.placement.trial.trial_id == trial_id:
                run.worker.answer.options(concurrency_group=ANSWERS).remote(trial_id, answer)

    def end(self, trial_id: str, error: str) -> None:
        """Kills the worker that runs the trial, with its descendants."""
        for stream, run in list(self._running.items()):
            if run.placement.trial.trial_id == trial_id:
                del self._running[stream]
                run.end(self._watch.own_node)
                self._emit(run.stalled(error))

    def close(self) -> None:
        """Ends the workers, frees the devices, and ends the local Ray or leaves the cluster."""
        if self._connection is None:
            return
        if self._pools:
            # A local Ray ends with everything in it, and a head that is gone cannot be called.
            reachable, own_node = not self._has_own_ray and self._watch.head_answers, self._watch.own_node
            end_processes(
                [run for run in self._running.values() if reachable or run.pool.node_id == own_node], own_node
            )
            if reachable:
                self._reservations.close()
            for pool in self._pools.values() if reachable else ():
                pool.close()
            self._study_files.close(reachable=reachable)
        self._running.clear()
        self._groups.clear()
        self._pools.clear()
        self._connection.stop()
        while self._files:
            self._files.pop().close()
        super().close()

    @property
    def _has_own_ray(self) -> bool:
        return self._connection is not None and self._connection.owned and self._address is None

    def _make(self, device: Device, options: Mapping[str, object]) -> WorkerHandle:
        tasks, threads, trial_options = self._shared
        return self._actor.options(**options).remote(tasks, device, threads, trial_options)

    def _meeting(self, placement: Placement) -> Placement:
        """The placement of several ranks with an address of rank 0's machine: the loopback if all are there."""
        first, own_node = self._nodes[placement.device], self._watch.own_node
        alone = all(self._nodes[place.device] == first for place in placement.others)
        address, port = LOOPBACK if alone else self._addresses[first], 0
        if first == own_node:
            port = free_port(address)
        else:
            with suppress(self._ray.exceptions.RayError):  # the node has died, as will be noticed
                port = self._ray.get(on_node(free_port, first).remote(address), timeout=EVENT_SECONDS)
        return meeting_at(placement, address, port)

    def _start(self, placement: Placement, *, new: bool, started: float) -> None:
        pool = self._pools[placement.device]
        worker, fresh = pool.take(placement, new=new)
        given = self._study_files.begin(placement, pool.node_id)
        stream = worker.run.options(num_returns="streaming").remote(placement, given)
        self._running[stream] = RunningTrial(placement, pool, worker, fresh, started, alone=self._options.fresh)

    def _ready(self, waited: list[object], timeout_seconds: float) -> set[object]:
        if not waited:
            return set()
        ready, _ = self._ray.wait(waited, num_returns=1, timeout=timeout_seconds)
        if ready:
            ready, _ = self._ray.wait(waited, num_returns=len(waited), timeout=0)
        return set(ready)

    def _receive(self, stream: Stream) -> None:
        """Takes a trial's next events, or Ray's error in their place."""
        run = self._running[stream]
        try:
            events = self._ray.get(next(stream), timeout=EVENT_SECONDS)
        except Exception as error:  # from Ray, or from unpickling an object of another machine
            del self._running[stream]
            self._worker_lost(run, error)
            return
        for event in events:
            if isinstance(event, (Piece, Elsewhere)):
                if text := self._study_files.hear(event, run.placement, run.pool.node_id):
                    self._emit(Joined((), text))
            elif isinstance(event, Began):
                run.began = event
                self._study_files.began(run.placement, run.pool.node_id)
            elif isinstance(event, EpochReport):
                run.report = event
            if isinstance(event, (Began, Question, EpochReport)):
                if not run.placement.rank:
                    self._emit(event)
            elif isinstance(event, Outcome):
                del self._running[stream]
                self._stop_requests.forget_prune(event.trial.trial_id)
                run.pool.give_back(run.worker)
                self._emit(replace(event, placement=run.placement), lambda: self._weights(stream))

    def _worker_lost(self, run: RunningTrial, error: Exception) -> None:
        """Investigates the reason. If a warm worker died before it took the trial, the trial starts on a new one."""
        died_idle = not run.began and not run.fresh and not raised_in_worker(error)
        if died_idle and run.pool.node_id not in self._watch.died(now=True):
            run.pool.end(run.worker)
            self._start(run.placement, new=True, started=run.started)
        else:
            self._emit(self._failures.investigate(run, error))

    def _check_health(self) -> None:
        """Reports dead nodes, workers that do not start, and losses that stay unexplained."""
        looked, died = self._watch.looked, self._watch.died()
        if self._watch.cluster_lost and not self._events:  # what has been heard counts
            raise DevicesLost(self._watch.cluster_lost)
        for node, reason in died.items():
            self._lose_node(node, reason)
        if self._address:
            if self._watch.joined and self._watch.head_answers:
                joined, self._watch.joined = self._watch.joined, []
                usable = usable_nodes()
                self._joining |= ask(joined, usable, self._choice, self._packages, self.find_on_node)
            if self._watch.looked != looked:
                self._emit(self._reservations.contended())
        for outcome in self._failures.overdue():
            self._emit(outcome)
        for stream, run in list(self._running.items()):
            if not run.began and time.monotonic() - run.started > START_SECONDS:
                del self._running[stream]
                run.pool.end(run.worker)
                self._emit(run.lost("failed", "worker", f"its worker did not start within {START_SECONDS} s"))

    def _found(self, answer: ObjectRef) -> Joined:
        """The devices of a node that has joined, or why it is left out."""
        try:
            return Joined(answered(answer, *self._joining.pop(answer)))
        except InputError as error:
            return Joined((), error.text)

    def _lose_node(self, node: str, reason: str) -> None:
        """Reports the loss of a node's trials and devices once."""
        devices = [device for device, where in self._nodes.items() if where == node and device not in self._lost]
        streams = [stream for stream, run in self._running.items() if run.pool.node_id == node]
        for run in [self._running.pop(stream) for stream in streams] + self._failures.drop_node(node):
            self._emit(run.lost("failed", "node", reason))
        self._end_groups()  # first, as the loss of the last device ends the study
        for device in devices:
            self._lost.add(device)
            self._reservations.forget(device)
            self._emit(DeviceLost(device, reason))
            if device in self._pools and self._watch.head_answers:
                self._pools[device].close()

    def _end_groups(self) -> None:
        """Ends the ranks whose trial has ended, and reports a trial when all its ranks have ended."""
        for trial_id, group in list(self._groups.items()):
            for stream, run in list(self._running.items()) if group.is_late else ():
                if run.placement.trial.trial_id == trial_id:
                    del self._running[stream]
                    run.end(self._watch.own_node)
                    group.ended(run.stalled("another rank has ended"), bytes, by_itself=False)
            if group.has_ended:
                del self._groups[trial_id]
                self._events.append(group.outcome())

    def _emit(self, event: Happening | None, weights: Weights = bytes) -> None:
        if isinstance(event, Outcome) and (group := self._groups.get(event.trial.trial_id)):
            group.ended(event, weights)
        elif event is not None:
            self._events.append((event, weights))

    def _weights(self, stream: Stream) -> bytes:
        """A completed trial's weights."""
        try:
            ready, _ = self._ray.wait([stream], timeout=WEIGHTS_SECONDS)
            if not ready:
                raise ExecutionError(f"the weights did not come within {WEIGHTS_SECONDS} s")
            return weights_of(self._ray.get(next(stream), timeout=WEIGHTS_SECONDS)[0])
        except (self._ray.exceptions.RayError, StopIteration) as error:
            raise ExecutionError(f"the weights are lost: {last_line(str(error))}") from error
