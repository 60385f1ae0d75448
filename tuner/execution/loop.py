"""The ask/tell loop: asks where the waiting trials can run, starts them, and tells what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tuner.errors import ExecutionError
from tuner.interrupts import Interrupt
from tuner.placement import Plan
from tuner.trial import Device, EpochReport, Outcome, Placement, Request
from tuner.workloads.base import Workload

Place = Callable[[Sequence[Request], Sequence[Placement]], list[Placement]]
Weights = Callable[[], bytes]

POLL_SECONDS = 0.5


class Executor(Protocol):
    """What runs placed trials: Ray's workers, or this process."""

    def prepare(self, devices: Sequence[Device]) -> None:
        """May begin in the background what takes long to start, before there is a plan."""

    def open(self, workload: Workload, data: Any, plan: Plan) -> None:
        """Makes everything ready for trials on the plan's devices."""

    def submit(self, placement: Placement) -> None:
        """Starts a trial; what it says comes out of ``poll``."""

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome, Weights]]:
        """What has happened since the last call, waiting for at most so long for the first of it.

        Beside an ``Outcome`` that is completed stands a function that fetches its weights, which can be called
        until the next call of ``poll``.
        """

    def close(self) -> None:
        """Ends every process that was started, whatever was reached; trials that still run are lost."""


class Listener(Protocol):
    """What wants to know how a study goes."""

    def started(self, placement: Placement) -> None:
        """A trial has been given its place."""

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""

    def finished(self, outcome: Outcome, weights: Weights) -> None:
        """A trial has ended; ``weights`` fetches the best epoch's, if it is completed."""


def run_trials(
    requests: Sequence[Request], place: Place, executor: Executor, listener: Listener, interrupt: Interrupt
) -> None:
    """Runs every trial once, as many side by side as ``place`` finds room for.

    Raises:
        ExecutionError: nothing runs, and ``place`` has no room for any waiting trial.
        KeyboardInterrupt: an end was asked for; everything that had ended by then has been told to the listener.
    """
    waiting = {request.trial.trial_id: request for request in requests}
    running: dict[str, Placement] = {}
    room = True
    while waiting or running:
        interrupt.check()
        for placement in place(list(waiting.values()), list(running.values())) if room and waiting else ():
            trial_id = placement.trial.trial_id
            running[trial_id] = placement
            del waiting[trial_id]
            executor.submit(placement)
            listener.started(placement)
        if not running:
            raise ExecutionError(f"no device has room for any of the {len(waiting)} trials that still wait")
        room = False
        for event, weights in executor.poll(POLL_SECONDS):
            if not isinstance(event, Outcome):
                listener.reported(event)
            elif not (interrupt.requested and event.status == "failed"):  # Ctrl-C ends the workers too
                del running[event.trial.trial_id]
                listener.finished(event, weights)
                room = True
