"""Runs the loop of a study with an executor that only pretends, and with few policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tuner.decisions.claims import Claims
from tuner.decisions.events import Decision, Event, Opened
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan
from tuner.decisions.policies import Engine, Policy
from tuner.decisions.retry import Retrying, RetryPolicy
from tuner.decisions.state import State
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.execution.executor import Executor, Weights
from tuner.execution.loop import Listener, StudyLoop
from tuner.execution.stall_detector import StallDetector
from tuner.machine.interrupts import Interrupt
from tuner.trial import GB, Outcome, Request


class Notes(Listener):
    """A listener that writes down how attempts ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int, str, float]] = []
        self.errors: list[str] = []
        self.events: list[Event] = []

    def append(self, outcome: Outcome, weights: Weights) -> None:
        assert outcome.placement
        self.errors.append(outcome.error)
        gb = outcome.placement.limit_bytes / GB
        self.ended.append((outcome.trial.name, outcome.trial.attempt, outcome.status, gb))

    def hear(self, state: State, event: Event) -> None:
        self.events.append(event)


class Asked(Policy):
    """A policy that decides nothing of its own."""

    def hear(self, state: State, event: Event) -> None: ...

    def decide(self, state: State, now: float) -> Decision | None:
        return None


def run_trials(
    requests: Sequence[Request],
    plan: Plan,
    executor: Executor,
    notes: Notes | None = None,
    policies: Sequence[Policy] = (),
    *,
    retry: RetryPolicy | None = None,
    interrupt: Interrupt | None = None,
    arbiter: DeviceArbiter | None = None,
    stalls: StallDetector | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Notes:
    """Runs the trials to their ends; without ``retry`` none is tried again after it ran out of memory."""
    packer, notes = Packer(), notes or Notes()
    retrying = Retrying(retry or RetryPolicy(max_attempts=1), lambda *_: None)
    engine = Engine(State(), [retrying, *policies, Claims(packer), packer])
    loop = StudyLoop(
        engine,
        packer,
        executor,
        notes,
        interrupt or Interrupt(),
        arbiter or DeviceArbiter(),
        stalls or StallDetector(),
        clock,
    )
    loop.take(Opened(plan, tuple(requests)))
    loop.run()
    return notes
