from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tuner.decisions.capacity import UNBOUNDED, TrialLimits
from tuner.decisions.retry import STARVED, Retry, RetryPolicy, backoff, next_attempt
from tuner.trial import GB, AttemptResult, History, MemoryEstimate, Phase, Request, Trial

OOM = AttemptResult("out_of_memory", limit_bytes=2 * GB)
LOST = AttemptResult("failed", lost="worker", limit_bytes=2 * GB)


def request(history: History = History()) -> Request:  # noqa: B008
    trial = Trial("t1", "toy", "a", {"batch_size": 8}, seed=0)
    return Request(trial, MemoryEstimate("given", context_bytes=2 * GB), 2 * GB, history)


def halved(trial: Trial, phase: Phase) -> Mapping[str, Any] | None:
    if phase == "evaluation":
        return {**trial.config, "evaluation_parts": 2}
    steps = 2 * trial.config.get("accumulation", 1)
    return None if steps > 4 else {**trial.config, "accumulation": steps}


def after(
    result: AttemptResult,
    history: History = History(),  # noqa: B008
    whole: int = 8 * GB,
    whole_ram_bytes: int = UNBOUNDED,
    **policy: Any,
) -> Retry | None:
    return next_attempt(
        request(history),
        result,
        RetryPolicy(**policy),
        limits=TrialLimits(whole, whole_ram_bytes),
        smaller=halved,
        random=lambda: 1.0,
    )


def test_out_of_memory_is_tried_again_with_half_as_much_more_after_a_wait() -> None:
    retry = after(OOM)
    assert retry
    assert retry.request.need_bytes == 3 * GB
    assert (retry.request.trial.attempt, retry.request.history) == (2, History(out_of_memory=1))
    assert retry.delay_seconds == 5


def test_an_attempt_whose_memory_others_held_does_not_count_and_does_not_grow() -> None:
    starved = AttemptResult("out_of_memory", "memory", limit_bytes=2 * GB)
    retry = after(starved, History(out_of_memory=1, starved=1))
    assert retry
    assert (retry.request.need_bytes, retry.request.history) == (2 * GB, History(out_of_memory=1, starved=2))
    assert (retry.delay_seconds, retry.always) == (10, True)
    assert after(starved, History(starved=STARVED)) is None


def test_a_learned_footprint_is_doubled_so_that_an_eighth_of_a_device_becomes_a_whole_one() -> None:
    waiting, shares = Request(request().trial, MemoryEstimate("learned"), GB), []
    for _ in range(3):
        result = AttemptResult("out_of_memory", limit_bytes=waiting.need_bytes)
        limits, policy = TrialLimits(8 * GB), RetryPolicy()
        retry = next_attempt(waiting, result, policy, limits=limits, smaller=halved, random=lambda: 1.0)
        assert retry
        waiting = retry.request
        shares.append(waiting.need_bytes // GB)
    assert shares == [2, 4, 8]


def test_the_last_attempt_has_a_whole_device() -> None:
    last, before = after(OOM, History(out_of_memory=2)), after(OOM, History(out_of_memory=1))
    assert last and before
    assert (before.request.need_bytes, last.request.need_bytes) == (3 * GB, 8 * GB)
    in_parts = after(OOM, History(out_of_memory=1), on_oom="accumulate")
    assert in_parts and in_parts.request.need_bytes == 8 * GB, "an attempt is left for smaller parts"
    in_ram = replace(OOM, short_of="RAM", host_bytes=GB)
    ram = after(in_ram, History(out_of_memory=2), whole_ram_bytes=6 * GB)
    assert ram and ram.request.host_bytes == 6 * GB


def test_a_retry_has_at_least_what_was_reached_and_at_most_a_device() -> None:
    reached = after(AttemptResult("out_of_memory", limit_bytes=2 * GB, peak_bytes=5 * GB))
    assert reached
    assert reached.request.need_bytes == 7.5 * GB
    most = after(AttemptResult("out_of_memory", limit_bytes=7 * GB))
    assert most
    assert most.request.need_bytes == 8 * GB


@pytest.mark.parametrize(
    ("result", "history", "policy"),
    [
        (OOM, History(out_of_memory=3), {}),
        (OOM, History(), {"on_oom": "fail"}),
        (OOM, History(), {"max_attempts": 1}),
        (AttemptResult("out_of_memory", limit_bytes=8 * GB), History(), {}),
        (LOST, History(lost_workers=1), {}),
        (AttemptResult("failed"), History(), {}),
        (AttemptResult("failed"), History(failures=2), {"max_failures": 2}),
        (AttemptResult("completed"), History(), {"max_failures": 9}),
        (AttemptResult("diverged"), History(), {"max_failures": 9}),
        (AttemptResult("pruned"), History(), {}),
    ],
)
def test_some_endings_are_final(result: AttemptResult, history: History, policy: dict[str, Any]) -> None:
    assert after(result, history, **policy) is None


@pytest.mark.parametrize(
    ("result", "history", "policy", "counted"),
    [
        (LOST, History(), {}, History(lost_workers=1)),
        (AttemptResult("failed", lost="node"), History(lost_workers=1), {}, History(lost_workers=1)),
        (AttemptResult("failed"), History(failures=1), {"max_failures": 2}, History(failures=2)),
        (AttemptResult("interrupted"), History(), {}, History()),
    ],
)
def test_other_endings_are_tried_again_at_once_with_the_same_share(
    result: AttemptResult, history: History, policy: dict[str, Any], counted: History
) -> None:
    retry = after(result, history, **policy)
    assert retry
    assert (retry.delay_seconds, retry.request.need_bytes, retry.request.history) == (0, 2 * GB, counted)


def test_where_a_whole_device_is_not_enough_the_micro_batch_is_halved() -> None:
    whole = AttemptResult("out_of_memory", limit_bytes=8 * GB)
    retry = after(whole, on_oom="accumulate")
    assert retry
    assert retry.request.trial.config == {"batch_size": 8, "accumulation": 2}
    assert retry.request.need_bytes == 8 * GB
    grown = after(OOM, on_oom="accumulate")
    assert grown
    assert grown.request.trial.config == {"batch_size": 8}, "only where the device is not enough"


def test_where_only_the_evaluation_ran_out_the_micro_batch_stays_as_it_is() -> None:
    whole = AttemptResult("out_of_memory", limit_bytes=8 * GB, phase="evaluation")
    retry = after(whole, on_oom="accumulate")
    assert retry
    assert retry.request.trial.config == {"batch_size": 8, "evaluation_parts": 2}
    assert after(whole, on_oom="grow") is None
    grown = after(AttemptResult("out_of_memory", limit_bytes=2 * GB, phase="evaluation"), on_oom="accumulate")
    assert grown
    assert grown.request.trial.config == {"batch_size": 8}, "only where the device is not enough"


def test_a_stalled_trial_is_tried_once_more_with_as_much_whatever_else_has_failed() -> None:
    stalled = AttemptResult("stalled", limit_bytes=2 * GB)
    retry = after(stalled, History(failures=1, lost_workers=1, out_of_memory=1))
    assert retry
    assert (retry.request.need_bytes, retry.delay_seconds, retry.request.history.stalls) == (2 * GB, 0, 1)
    assert after(stalled, History(stalls=1), max_failures=9) is None


def test_waits_double_up_to_a_bound_and_jitter_takes_off_up_to_half() -> None:
    policy = RetryPolicy(backoff_seconds=5, backoff_max_seconds=30)
    assert [backoff(n, policy, lambda: 1.0) for n in (1, 2, 3, 4, 99)] == [5, 10, 20, 30, 30]
    assert backoff(1, policy, lambda: 0.0) == 2.5


SHORT_OF_RAM = AttemptResult("out_of_memory", "worker", 2 * GB, short_of="RAM", host_bytes=4 * GB)


def test_a_trial_that_ran_out_of_ram_gets_more_of_that_and_keeps_its_share() -> None:
    retry = after(SHORT_OF_RAM, whole_ram_bytes=16 * GB)
    assert retry
    assert (retry.request.need_bytes, retry.request.host_bytes) == (2 * GB, 6 * GB)
    assert retry.request.history == History(out_of_memory=1)
    peak = replace(SHORT_OF_RAM, host_peak_bytes=10 * GB)
    assert [retry and retry.request.host_bytes for retry in (after(peak), after(peak, whole_ram_bytes=12 * GB))] == [
        15 * GB,
        12 * GB,
    ]


def test_a_trial_that_ran_out_of_a_hosts_whole_ram_is_given_up() -> None:
    assert after(SHORT_OF_RAM, whole_ram_bytes=4 * GB) is None
    assert after(SHORT_OF_RAM, on_oom="fail") is None
    assert after(SHORT_OF_RAM, History(out_of_memory=3)) is None
