"""What is decided in a study, and by whom: a policy for each question, asked in order after every event.

A policy is where a new rule goes. ``Policy`` is its interface. ``tuner.study.prepare`` lists them, and ``Engine``
asks them in this order. It matters: a suggestion that fits no device is dropped before its estimate is corrected.

    Population        which checkpoint and values a paused member takes over  ``tuner.study.population``
    Retrying          what follows an attempt that has ended, and when        ``retry.py``
    StudyStopping     whether the study ends before all have run              ``stopping.py``
    Sampled           what is tried next, if there is a search                ``tuner.study.sampled``
    StudyFeedback     which estimates of waiting trials were wrong            ``tuner.estimation.feedback``
    Pruning           which running trials end early                          ``tuner.study.pruning``
    Replanning        how all devices are divided, as more is known           ``tuner.study.planning``
    ConcurrencyTuner  how many trials a GPU runs at once                      ``throughput.py``
    Claims            which of a cluster's devices are held                   ``claims.py``
    Packer            which trial starts, where, and with how much memory     ``packer.py``
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tuner.decisions.events import CapacityObserved, Decision, Ended, Event, Reported, Retried
from tuner.decisions.retry import Retrying
from tuner.decisions.state import State, apply
from tuner.trial import History, Trial

LOG = logging.getLogger("tuner.decisions")
GoesOn = Callable[[State, Ended, Trial], Retried]  # the retry of a paused trial as this attempt
UNLOGGED = (CapacityObserved, Reported)  # there are too many of them


class Policy(Protocol):
    """Answers one question about a study.

    ``hear`` gets every event in order, the journal's of a resumed study first, so a policy remembers nothing that a
    resumed study would forget. ``decide`` changes nothing: what is decided comes back by ``hear`` as an event. Only a
    search gives each suggestion once, so its answer is always taken.
    """

    def hear(self, state: State, event: Event) -> None:
        """An event has happened; ``state`` is the study's after it."""

    def decide(self, state: State, now: float) -> Decision | None:
        """The policy's next decision in this state, at this time of the study's clock; None if there is none now."""


class Engine:
    """A study in time: its state, and the policies that decide what comes next."""

    def __init__(self, state: State, policies: Iterable[Policy]) -> None:
        self.state = state
        self.policies = list(policies)

    def take(self, event: Event, *, logged: bool = True) -> None:
        """An event has happened."""
        self.state = apply(self.state, event)
        if logged and not isinstance(event, UNLOGGED):
            LOG.debug("%s", event)
        for policy in self.policies:
            policy.hear(self.state, event)

    def decide(self, now: float) -> Decision | None:
        """The next decision; None if the study waits for an event."""
        for policy in self.policies:
            if decision := policy.decide(self.state, now):
                return decision
        return None


def goes_on(state: State, ended: Ended, trial: Trial, now: float = 0.0) -> Retried:
    """The next attempt of a paused trial, with the same needs."""
    return Retried(ended, replace(state.requests[trial.trial_id], trial=trial, history=History()), now)


def replay(engine: Engine, retrying: Retrying, events: Sequence[Event], onwards: GoesOn = goes_on) -> None:
    """Takes the events of an earlier process's journal. What is completed stays so, whatever else that has."""
    last = {event.trial.trial_id: event for event in events if isinstance(event, Ended)}
    for event in events:
        if isinstance(event, Ended):
            state, trial_id = engine.state, event.trial.trial_id
            if trial_id in state.ended:
                continue
            if paused := state.undecided.get(trial_id):
                engine.take(onwards(state, paused, event.trial), logged=False)
        engine.take(event, logged=False)  # that process has logged it
        if isinstance(event, Ended) and event.result.status != "paused":
            decision = retrying.after_earlier(engine.state, event, was_last=last[trial_id] is event)
            engine.take(decision, logged=isinstance(decision, Retried))
