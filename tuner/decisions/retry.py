"""Decides whether a failed attempt is retried, after which delay and with how much memory."""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from tuner.decisions.capacity import UNBOUNDED, TrialLimits
from tuner.decisions.events import Concluded, Decision, DeviceLost, Ended, Event, Retried, RetryReady
from tuner.decisions.state import State
from tuner.errors import joined
from tuner.trial import AttemptResult, Config, History, Outcome, Phase, Request, Trial

OnOom = Literal["grow", "accumulate", "fail"]
# Halves a trial's micro-batch, or the chunks of its evaluation if memory ran out in that phase; None if impossible.
Smaller = Callable[[Trial, Phase], Config | None]
# A learned footprint is a guess at first, so it grows by this factor at least: an eighth of a device is the whole
# device after three retries.
LEARNED_GROWTH = 2.0
# The maximum number of attempts that do not count because others held the memory. With the default backoff they
# take half an hour.
STARVED = 10
LOST_WORKERS = 1  # the maximum number of retries after the worker died for an unknown reason
STALLS = 1  # and after the trial was ended because it reported nothing
NODE_ALIKE = 2  # attempts with the same error, but for numbers, after which a node is used no more
NODE_MOST = 4  # attempts that are a node's failure; later ones are their trials'
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class RetryPolicy:
    """When a trial is retried, and with how much memory."""

    max_attempts: int = 4  # the maximum number of attempts for a trial that runs out of memory
    growth: float = 1.5  # the factor by which a trial's memory share grows after it ran out of memory
    backoff_seconds: float = 5.0  # the delay of the first retry while other trials run; it doubles each time
    backoff_max_seconds: float = 300.0  # the maximum delay
    on_oom: OnOom = "grow"  # "grow" up to the whole device, "accumulate" then halves what ran out, "fail": none
    max_failures: int = 0  # the maximum number of retries after other exceptions


@dataclass(frozen=True)
class Retry:
    """The next attempt of a trial, and its delay while other trials run."""

    request: Request
    delay_seconds: float
    always: bool = False  # whether it waits as long if nothing else runs


class Retrying:
    """Decides by ``retry.py`` what follows an attempt, and when the delay of a retry is over."""

    def __init__(self, policy: RetryPolicy, smaller: Smaller, seed: int = 0) -> None:
        """The delays' random parts follow from the seed, the trial and its attempt: a resumed study has the same."""
        self._policy = policy
        self._smaller = smaller
        self._seed = seed

    def hear(self, state: State, event: Event) -> None:
        """The state has all that it needs."""

    def decide(self, state: State, now: float) -> Decision | None:
        """What follows an attempt that has just ended, else the next retry whose time has come.

        If nothing else runs or waits, a retry need not wait.
        """
        for ended in state.undecided.values():
            if ended.result.status != "paused":
                return self.after(state, ended, now)
        first = None if state.stopping else state.first_delayed
        if first is None:
            return None
        idle = not (state.running or state.waiting)
        return RetryReady(first.request) if first.due <= now or (idle and not first.always) else None

    def after(self, state: State, ended: Ended, now: float) -> Retried | Concluded:
        """The retry that follows an attempt, or the end of its trial."""
        retry = next_attempt(
            replace(state.requests[ended.trial.trial_id], trial=ended.trial),
            ended.result,
            self._policy,
            limits=state.limits,
            smaller=self._smaller,
            random=Random(f"{self._seed}/{ended.trial.trial_id}/{ended.trial.attempt}").random,
        )
        if retry is None:
            return Concluded(ended)
        return Retried(ended, retry.request, now + retry.delay_seconds, retry.delay_seconds, retry.always)

    def after_earlier(self, state: State, ended: Ended, *, was_last: bool) -> Retried | Concluded:
        """The same for an attempt of an earlier process, after which no retry need wait.

        Options may have changed since: what was tried again, is, and so is what was given up with less memory than it
        would be given now. A trial that never ran may fit by now.
        """
        request, result = state.requests[ended.trial.trial_id], ended.result
        if result.status == "too_large":
            return Retried(ended, request, 0.0)
        decision = self.after(state, ended, 0.0)
        if isinstance(decision, Retried):
            return replace(decision, due=0.0, delay_seconds=0.0)
        needs_more = request.need_bytes > result.limit_bytes
        if result.short_of == "RAM":
            needs_more = request.host_bytes > result.host_bytes
        if result.status == "completed" or (was_last and not (result.status == "out_of_memory" and needs_more)):
            return decision
        times = 1 if was_last else request.history.out_of_memory + (result.status == "out_of_memory")
        again = replace(ended.trial, attempt=ended.trial.attempt + 1)
        return Retried(
            ended, replace(request, trial=again, history=replace(request.history, out_of_memory=times)), 0.0
        )


def next_attempt(
    request: Request,
    result: AttemptResult,
    policy: RetryPolicy,
    *,
    limits: TrialLimits,
    smaller: Smaller,
    random: Callable[[], float],
) -> Retry | None:
    """The next attempt after ``request`` ended with ``result``; None if there is none.

    ``random`` is uniform in [0, 1).
    """
    history = request.history
    whole_bytes, whole_ram_bytes = limits.of(request.trial.shape)
    if result.status == "interrupted" or result.lost == "node":
        return Retry(_next_request(request, history), 0.0)
    if result.lost == "memory":
        if history.starved >= STARVED:
            return None
        history = replace(history, starved=history.starved + 1)
        return Retry(_next_request(request, history), backoff(history.starved, policy, random), always=True)
    if result.status == "out_of_memory" and result.short_of == "RAM":
        return _with_more_ram(request, result, policy, whole_ram_bytes, random)
    if result.status == "out_of_memory":
        return _with_more_memory(request, result, policy, whole_bytes, smaller, random)
    if result.status == "stalled":
        history = replace(history, stalls=history.stalls + 1)
        return Retry(_next_request(request, history), 0.0) if history.stalls <= STALLS else None
    if result.status != "failed":
        return None
    if result.lost == "worker":
        history = replace(history, lost_workers=history.lost_workers + 1)
        return Retry(_next_request(request, history), 0.0) if history.lost_workers <= LOST_WORKERS else None
    history = replace(history, failures=history.failures + 1)
    return Retry(_next_request(request, history), 0.0) if history.failures <= policy.max_failures else None


def backoff(retries: int, policy: RetryPolicy, random: Callable[[], float]) -> float:
    """The delay of a retry in seconds: it doubles each time up to a bound, less a random part of up to one half.

    The random part keeps trials that ran out of memory together from being retried together ("equal jitter":
    M. Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
    """
    most: float = min(policy.backoff_max_seconds, policy.backoff_seconds * 2 ** (retries - 1))
    return most * (1 + random()) / 2


def _with_more_memory(
    request: Request,
    result: AttemptResult,
    policy: RetryPolicy,
    whole_bytes: int,
    smaller: Smaller,
    random: Callable[[], float],
) -> Retry | None:
    """A retry with more than the larger of share and peak, at last with a whole device, or there in smaller parts."""
    history = replace(request.history, out_of_memory=request.history.out_of_memory + 1)
    if policy.on_oom == "fail" or history.out_of_memory >= policy.max_attempts:
        return None
    config = request.trial.config
    if result.limit_bytes >= whole_bytes:
        parts = smaller(request.trial, result.phase) if policy.on_oom == "accumulate" else None
        if parts is None:
            return None
        config = parts
    growth = max(policy.growth, LEARNED_GROWTH if request.estimate.is_learned else 0)
    more = math.ceil(max(result.limit_bytes, result.peak_bytes or 0) * growth)
    attempts_left = policy.max_attempts - history.out_of_memory - (policy.on_oom == "accumulate")
    need = min(more, whole_bytes) if attempts_left > 1 else whole_bytes
    had = result.limit_bytes if config == request.trial.config else 0
    grown = replace(request, need_bytes=need, ran_out_bytes=had, trial=replace(request.trial, config=config))
    return Retry(_next_request(grown, history), backoff(history.out_of_memory, policy, random))


def _with_more_ram(
    request: Request, result: AttemptResult, policy: RetryPolicy, whole_ram_bytes: int, random: Callable[[], float]
) -> Retry | None:
    """A retry with more RAM than was reserved or used, and the same share of its device."""
    history = replace(request.history, out_of_memory=request.history.out_of_memory + 1)
    had = max(result.host_bytes, result.host_peak_bytes or 0)
    if (
        policy.on_oom == "fail"
        or history.out_of_memory >= policy.max_attempts
        or result.host_bytes >= whole_ram_bytes
    ):
        return None
    last = policy.max_attempts - history.out_of_memory == 1 and whole_ram_bytes != UNBOUNDED
    more = whole_ram_bytes if last else math.ceil(had * policy.growth)
    grown = replace(request, host_bytes=min(more, whole_ram_bytes))
    return Retry(_next_request(grown, history), backoff(history.out_of_memory, policy, random))


def _next_request(request: Request, history: History) -> Request:
    return replace(request, trial=replace(request.trial, attempt=request.trial.attempt + 1), history=history)


@dataclass
class NodeFailures:
    """What trials have done on each node of a cluster: one that fails there alone fails by the node."""

    served: set[str] = field(default_factory=set)  # the ids of nodes on which a trial has reported metrics
    _elsewhere: set[str] = field(default_factory=set)  # errors on those nodes, which are the trials' own
    _errors: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def judge(self, outcome: Outcome, state: State) -> tuple[Outcome, list[DeviceLost]]:
        """The outcome, which does not count as the trial's if its node is to blame, and the devices that are lost.

        On such a node no trial has reported metrics, and on another one a trial has. A trial that fails there again
        says no more than it did.
        """
        node = outcome.placement.device.node_id if outcome.placement else ""
        plain = outcome.status == "failed" and not outcome.lost
        alike, errors = NUMBER.sub("#", outcome.error), self._errors[node]
        if plain and node in self.served:
            self._elsewhere.add(alike)
        if not (node and plain and self.served) or {node, alike} & (self.served | self._elsewhere):
            return outcome, []
        errors.append((alike, outcome.trial.trial_id))
        if len(errors) > NODE_MOST:
            return outcome, []
        error = joined(outcome.error, "its node may be to blame, as trials report on others")
        lost: list[DeviceLost] = []
        if state.plan and len({trial for text, trial in errors if text == alike}) >= NODE_ALIKE:
            devices = [one for one in state.plan.devices if one.node_id == node and one not in state.lost]
            lost = [DeviceLost(device, f"trials fail alike there alone: {outcome.error}") for device in devices]
        return replace(outcome, lost="node", error=error), lost
