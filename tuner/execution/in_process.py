"""The in-process twin of the Ray executor: it runs trials one after another in this process."""

import gc
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from tuner.decisions.plan import Plan
from tuner.errors import ParameterError
from tuner.execution.executor import Executor, ExecutorEvent, ExecutorOptions
from tuner.execution.weights import weights_of
from tuner.execution.worker import WorkerEvent, run_trial
from tuner.machine.devices import DeviceChoice, torch_index
from tuner.machine.first_use import load_early
from tuner.machine.peak import PeakMeter
from tuner.training.process_state import ProcessState, put_back
from tuner.training.program import deliver
from tuner.trial import Device, EpochReport, Outcome, Placement, Question
from tuner.workloads.program import Function
from tuner.workloads.task import Tasks

FREEZE_TRIALS = 100  # after so many, the collection after each trial skips what the study holds of those before


class InProcessExecutor(Executor):
    """Runs trials one after another: for tests, to debug a workload, or without Ray.

    By default there is no cap, since it would be one of this whole process.
    """

    def __init__(self, **options: Unpack[ExecutorOptions]) -> None:
        """See ``Executor``."""
        options.setdefault("caps", False)
        super().__init__(**options)
        self._options = replace(self._options, in_study=True)
        self._queue: deque[Iterator[WorkerEvent]] = deque()
        self._state: ProcessState | None = None  # of the running trial, if it has begun
        self._ended = 0  # trials

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        """The device that this process trains on: of several GPUs, the first by torch's order.

        Raises ``InputError`` if there is no such device.
        """
        devices = super().devices(choice)
        if devices[0].kind == "cpu":
            return devices
        if not (first := tuple(device for device in devices if torch_index(device) == 0)):
            rule = "torch counts GPUs otherwise than NVML: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name one by its UUID"
            raise ParameterError("device", choice, rule)
        return first

    def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
        """Keeps the tasks and the folder for checkpoints."""
        super().open(tasks, plan, checkpoints)
        self._tasks = tasks
        # The state that a trial changes can be put back only for libraries that were loaded before.
        load_early(*[task.workload.function for task in tasks.values() if isinstance(task.workload, Function)])
        gc.freeze()  # as in a worker: the collection after each trial skips the objects of today

    def submit(self, placement: Placement) -> None:
        """Queues a trial."""
        self._stop_requests.forget_prune(placement.trial.trial_id)
        warm_up = _make_context if placement.device.kind == "cuda" else lambda: None
        # This process's RAM also holds the user's notebook or program, and says nothing about other trials.
        meter = PeakMeter(placement.device, warm_up, host=False)
        self._queue.append(run_trial(self._tasks[placement.trial.workload], placement, meter, self._options))

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        """The next event of the oldest trial; waits if there is no trial."""
        if not self._queue:
            time.sleep(timeout_seconds)
            return []
        trial = self._queue[0]
        with put_back():  # the study's own state
            if self._state is not None:
                self._state.put_back()
            event = next(trial)
            self._state = ProcessState.now()
        if isinstance(event, Outcome):
            self._state = None
            self._stop_requests.forget_prune(event.trial.trial_id)
            self._queue.popleft()
            weights = next(trial, None)
            self._ended += 1
            if self._ended % FREEZE_TRIALS == 0:
                gc.unfreeze()
                gc.collect()
                gc.freeze()
            return [(event, lambda: weights_of(weights))]
        assert isinstance(event, (EpochReport, Question))
        return [(event, bytes)]

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a trial's question."""
        deliver(trial_id, answer)

    def close(self) -> None:
        """Drops all trials."""
        self._queue.clear()
        super().close()
        gc.unfreeze()


def _make_context() -> None:
    """Makes the CUDA context, which is measured, before the first trial."""
    from tuner.training.rehearsal import warm_up

    warm_up("cuda:0")
