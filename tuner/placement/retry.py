"""What follows an attempt that did not end well: another with more memory after a while, or none. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tuner.trial import Ending, History, Request, Trial

OnOom = Literal["grow", "accumulate", "fail"]
Accumulated = Callable[[Trial], Mapping[str, Any] | None]
LOST_WORKERS = 1  # so many deaths of a worker, for no reason that is known, are forgiven a trial


@dataclass(frozen=True)
class RetryPolicy:
    """When a trial is tried again, and with how much.

    Attributes:
        max_attempts: a trial may run out of memory so many times; the last of them is final.
        growth: what a trial's share is multiplied by after it ran out of memory.
        backoff_seconds: the first retry waits about so long while other trials run, each further one twice as long.
        backoff_max_seconds: but none longer than this.
        on_oom: "grow" up to the whole device; "accumulate" then halves the micro-batch; "fail" does not retry.
        max_failures: so many times a trial that raised another exception is tried again.
    """

    max_attempts: int = 4
    growth: float = 1.5
    backoff_seconds: float = 5.0
    backoff_max_seconds: float = 300.0
    on_oom: OnOom = "grow"
    max_failures: int = 0


@dataclass(frozen=True)
class Retry:
    """Another attempt: what to run, and how long to wait for it as long as other trials run."""

    request: Request
    delay_seconds: float


def next_attempt(
    request: Request,
    ending: Ending,
    policy: RetryPolicy,
    *,
    whole_bytes: int,
    accumulated: Accumulated,
    random: Callable[[], float],
) -> Retry | None:
    """The attempt that follows, or None if the trial has ended for good.

    Args:
        request: the attempt that has ended.
        ending: how.
        policy: the study's.
        whole_bytes: the most that a trial can be given: a whole device.
        accumulated: a trial → its configuration with half the micro-batch and twice the accumulation, or None.
        random: uniform in [0, 1), for the jitter.
    """
    history = request.history
    if ending.status == "interrupted" or ending.lost == "node":
        return Retry(_again(request, history), 0.0)
    if ending.status == "out_of_memory":
        return _with_more_memory(request, ending, policy, whole_bytes, accumulated, random)
    if ending.status != "failed":
        return None
    if ending.lost == "worker":
        again = replace(history, lost_workers=history.lost_workers + 1)
        return Retry(_again(request, again), 0.0) if again.lost_workers <= LOST_WORKERS else None
    again = replace(history, failures=history.failures + 1)
    return Retry(_again(request, again), 0.0) if again.failures <= policy.max_failures else None


def backoff(retries: int, policy: RetryPolicy, random: Callable[[], float]) -> float:
    """Seconds before a retry: doubled each time up to a bound, of which a random half is taken off.

    That keeps trials that ran out of memory together from coming back together ("equal jitter": M. Brooker,
    Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
    """
    most: float = min(policy.backoff_max_seconds, policy.backoff_seconds * 2 ** (retries - 1))
    return most * (1 + random()) / 2


def _with_more_memory(
    request: Request,
    ending: Ending,
    policy: RetryPolicy,
    whole_bytes: int,
    accumulated: Accumulated,
    random: Callable[[], float],
) -> Retry | None:
    """``growth`` times the share, or what was reached; a smaller micro-batch where that is the whole device."""
    history = replace(request.history, out_of_memory=request.history.out_of_memory + 1)
    if policy.on_oom == "fail" or history.out_of_memory >= policy.max_attempts:
        return None
    config = request.trial.config
    if ending.limit_bytes >= whole_bytes:
        smaller = accumulated(request.trial) if policy.on_oom == "accumulate" else None
        if smaller is None:
            return None
        config = smaller
    more = math.ceil(max(ending.limit_bytes, ending.peak_bytes or 0) * policy.growth)
    grown = replace(request, need_bytes=min(more, whole_bytes), trial=replace(request.trial, config=config))
    return Retry(_again(grown, history), backoff(history.out_of_memory, policy, random))


def _again(request: Request, history: History) -> Request:
    return replace(request, trial=replace(request.trial, attempt=request.trial.attempt + 1), history=history)
