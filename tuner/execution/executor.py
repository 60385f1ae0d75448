"""The interface of what runs trials: Ray's workers, a child process, this process, or a simulation."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import TypedDict, Unpack

from tuner.decisions.events import Contended, DeviceLost, Held, Joined
from tuner.decisions.plan import Plan
from tuner.decisions.state import State
from tuner.execution.preload import COMPILER, TORCH, Launch
from tuner.execution.stop_requests import StopRequests
from tuner.execution.worker import TrialOptions
from tuner.machine.allocator_settings import allocator_environment
from tuner.machine.devices import DeviceChoice, detect_with_idle_cores
from tuner.machine.processes import remove_empty
from tuner.trial import Began, Device, EpochReport, FreshProcesses, Outcome, Placement, Question
from tuner.workloads.base import is_built_in
from tuner.workloads.program import Program
from tuner.workloads.task import Tasks

Weights = Callable[[], bytes]


Happening = Began | EpochReport | Question | Outcome | Joined | Held | Contended | DeviceLost
ExecutorEvent = tuple[Happening, Weights]

REHEARSAL = "tuner.training.rehearsal"  # the module with a workload's first step
START_SECONDS = 300  # for a trial's process until the trial begins: importing torch from a slow drive takes a while


def in_fresh_processes(choice: FreshProcesses, plan: Plan, tasks: Tasks) -> bool:
    """Whether each trial has a process of its own: on the CPU and where it was asked for; scripts always have one.

    On a GPU a process needs a CUDA context of its own, which takes tenths of a second. A Mac cannot fork safely, so
    there each process imports torch again.
    """
    if any(task.workload.own_process for task in tasks.values()):
        return True
    forked = sys.platform == "linux" and all(device.kind == "cpu" for device in plan.devices)
    return choice == "on" or (choice == "auto" and forked)


def imports_of(tasks: Tasks) -> tuple[str, ...]:
    """The modules that trials of these tasks need."""
    names: set[str] = set()
    for task in tasks.values():
        names |= {*task.workload.imports}
        if isinstance(task.workload, Program) and TORCH in task.workload.imports:
            names.add(COMPILER)
        elif not isinstance(task.workload, Program):
            names |= {TORCH, REHEARSAL, *([type(task.workload).__module__] if is_built_in(task.workload) else [])}
    return tuple(sorted(names))


class ExecutorOptions(TypedDict, total=False):
    """The options of every executor."""

    caps: bool  # see ``TrialOptions``
    checkpoint_seconds: float  # see ``TrialOptions``
    expandable_segments: bool  # set the CUDA allocator's option of that name in processes for trials
    fresh_processes: FreshProcesses  # see ``in_fresh_processes``


class Executor(ABC):
    """Runs placed trials: in Ray's workers, or in this process."""

    left_out: list[str]  # which nodes of a cluster, and why
    packages: Callable[[], Sequence[str]]  # finds those that the trials' code imports
    find_on_node: Callable[[DeviceChoice], tuple[Device, ...]] | None = None  # what else than ``detect`` does so
    _options = TrialOptions()
    _stop_requests = StopRequests(None)

    def __init__(self, **options: Unpack[ExecutorOptions]) -> None:
        """Starts nothing yet."""
        self.left_out, self.packages = [], list
        self._fresh: FreshProcesses = options.get("fresh_processes", "auto")
        launch = Launch(variables=allocator_environment(options.get("expandable_segments", False)))
        seconds = options.get("checkpoint_seconds", 60.0)
        self._options = TrialOptions(options.get("caps", True), None, seconds, launch=launch)
        self._link: socket | None = None  # to this machine's preloaded process

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """The devices on which it can run trials; joins the cluster if there is one.

        Raises:
            InputError: there is no such device or cluster, or a node does not report its devices.
        """
        return detect_with_idle_cores(choice)

    @property
    def starting(self) -> str:
        """What it does before the first trial begins to train."""
        return "starting"

    def prepare(self, tasks: Tasks, devices: Sequence[Device], threads: int = 1) -> None:
        """Finds what trials import. It may start slow work in the background, before there is a plan."""
        self._options = replace(self._options, launch=replace(self._options.launch, imports=imports_of(tasks)))

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Prepares the plan's devices for trials of these tasks, with a folder for their checkpoints.

        Raises:
            DataError: a file from which data are mapped has been removed.
            ExecutionError: Ray did not start or lacks the plan's resources, or the folder cannot be written.
        """
        self._options = replace(
            self._options,
            checkpoints=checkpoints.absolute() if checkpoints else None,
            fresh=in_fresh_processes(self._fresh, plan, tasks),
        )
        self.prepare(tasks, plan.devices, plan.threads)
        self._stop_requests = StopRequests(checkpoints)
        self._stop_requests.reset()

    def replan(self, plan: Plan) -> None:  # noqa: B027
        """Has another plan, with more slots or further devices."""

    def claim(self, device: Device) -> bool:
        """Asks for a device of the cluster; ``poll`` says when it is ``Held``, unless it is so at once."""
        return True

    def release(self, device: Device) -> None:  # noqa: B027
        """Gives a device of the cluster back as soon as nothing runs there, or asks for it no more."""

    def demand(self, state: State, most: int | None = None) -> None:  # noqa: B027
        """Tells a cluster's autoscaler what running and waiting trials need, at most for ``most`` ranks."""

    @abstractmethod
    def submit(self, placement: Placement) -> None:
        """Starts a trial; ``poll`` returns its events."""

    @abstractmethod
    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        """The events since the last call; waits for the first one for at most this time.

        With the ``Outcome`` of a completed trial comes a function that fetches its weights. It can be called until
        the next call of ``poll``.
        """

    def answer(self, trial_id: str, answer: object) -> None:  # noqa: B027
        """Answers a running trial's ``Question``; an exception is raised in the trial."""

    def stop(self) -> None:
        """Asks the running trials to write a checkpoint after the current epoch, and to end.

        ``poll`` returns their outcomes as ``interrupted``, unless they end earlier. Without a folder for checkpoints
        nothing is asked.
        """
        self._stop_requests.stop_all()

    def prune(self, trial_id: str) -> None:
        """Asks a running trial to end soon; unless it ends before, it is ``pruned`` with its metrics so far."""
        self._stop_requests.prune(trial_id)

    def end(self, trial_id: str, error: str) -> None:  # noqa: B027
        """Kills a running trial with its descendants; ``poll`` returns its outcome as ``stalled`` with this error.

        A trial that has ended meanwhile is left alone. Nothing ends one in this process, where ``trial_timeout`` is
        refused.
        """

    def close(self) -> None:
        """Ends every process that was started; trials that still run are lost."""
        if self._link:
            self._link.close()
        self._options.launch.end()
        self._stop_requests.remove()
        remove_empty(self._options.logs)
