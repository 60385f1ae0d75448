"""The in-process twin of the Ray executor: the same trials, one after another, in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.execution.loop import Weights
from tuner.execution.worker import Event, run_trial
from tuner.peak import PeakMeter
from tuner.placement import Plan
from tuner.trial import Device, EpochReport, Outcome, Placement
from tuner.workloads.base import Workload


class InProcessExecutor:
    """Runs trials in turn: for tests, for debugging a workload, and where Ray is not wanted."""

    def __init__(self) -> None:
        """Starts nothing."""
        self._queue: deque[Iterator[Event]] = deque()

    def prepare(self, devices: Sequence[Device]) -> None:
        """Nothing takes long to start."""

    def open(self, workload: Workload, data: Any, plan: Plan) -> None:
        """Takes the workload and the data that all trials share."""
        self._workload = workload
        self._data = data

    def submit(self, placement: Placement) -> None:
        """Queues a trial."""
        self._queue.append(
            run_trial(self._workload, self._data, placement, PeakMeter(placement.device, _already_warm))
        )

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome, Weights]]:
        """The next event of the oldest trial; does not wait, since nothing else happens meanwhile."""
        trial = self._queue[0]
        event = next(trial)
        if isinstance(event, Outcome):
            self._queue.popleft()
            weights = next(trial, b"")
            return [(event, lambda: weights if isinstance(weights, bytes) else b"")]
        assert isinstance(event, EpochReport)
        return [(event, bytes)]

    def close(self) -> None:
        """Drops what is queued."""
        self._queue.clear()


def _already_warm() -> None:
    """This process is what it is."""
