"""The in-process twin of the Ray executor: the same trials, one after another, in this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.execution.loop import Weights
from tuner.execution.stop_requests import EndRequests
from tuner.execution.worker import Event, TrialOptions, run_trial
from tuner.machine.devices import DeviceChoice, detect_devices
from tuner.machine.peak import PeakMeter
from tuner.placement.packing import Plan
from tuner.trial import Device, DeviceLost, EpochReport, Outcome, Placement
from tuner.workloads.task import Tasks


class InProcessExecutor:
    """Runs trials in turn: for tests, for debugging a workload, and where Ray is not wanted.

    Trials are not capped: that would cap whatever else this process does.
    """

    def __init__(self, *, checkpoint_seconds: float = 60.0) -> None:
        """Starts nothing.

        Args:
            checkpoint_seconds: between two of a trial's checkpoints, and before its first.
        """
        self._checkpoint_seconds = checkpoint_seconds
        self._queue: deque[Iterator[Event]] = deque()
        self._end_requests = EndRequests(None)

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """This machine's devices.

        Raises:
            InputError: GPUs were asked for and there is none.
        """
        return detect_devices(choice)

    def prepare(self, devices: Sequence[Device]) -> None:
        """Nothing takes long to start."""

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Takes the workloads and the data that trials share, and the folder for their checkpoints.

        Raises:
            ExecutionError: that folder cannot be written.
        """
        self._tasks = tasks
        self._options = TrialOptions(caps=False, checkpoints=checkpoints, checkpoint_seconds=self._checkpoint_seconds)
        self._end_requests = EndRequests(checkpoints)
        self._end_requests.reset()

    def submit(self, placement: Placement) -> None:
        """Queues a trial."""
        self._end_requests.forget_prune(placement.trial.trial_id)
        meter = PeakMeter(placement.device, _already_warm)
        self._queue.append(run_trial(self._tasks[placement.trial.workload], placement, meter, self._options))

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        """The next event of the oldest trial; without any it waits, as nothing else will happen meanwhile."""
        if not self._queue:
            time.sleep(timeout_seconds)
            return []
        trial = self._queue[0]
        event = next(trial)
        if isinstance(event, Outcome):
            self._end_requests.forget_prune(event.trial.trial_id)
            self._queue.popleft()
            weights = next(trial, b"")
            return [(event, lambda: weights if isinstance(weights, bytes) else b"")]
        assert isinstance(event, EpochReport)
        return [(event, bytes)]

    def stop(self) -> None:
        """Has each trial that is resumed write a checkpoint and end.

        Raises:
            ExecutionError: the folder for checkpoints cannot be written.
        """
        self._end_requests.stop_all()

    def prune(self, trial_id: str) -> None:
        """Has a trial end after the step that it is in."""
        self._end_requests.prune(trial_id)

    def close(self) -> None:
        """Drops what is queued."""
        self._queue.clear()
        self._end_requests.remove()


def _already_warm() -> None:
    """This process is what it is."""
