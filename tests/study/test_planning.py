from __future__ import annotations

import dataclasses

import pytest

from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.estimation.calibration import Sample
from tuner.placement.packing import need_bytes
from tuner.reporting.plan_text import plan_text
from tuner.spec.settings import Settings
from tuner.study.planning import Estimates, plan_requests
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial
from tuner.workloads.task import TrainingTask


def estimates(trial_id: str) -> Estimates:
    guess = MemoryEstimate("traced", activation_bytes=1)
    request = Request(Trial(trial_id, "toy", trial_id, {}, 0), guess, 1)
    return Estimates((request,), {trial_id: guess}, {"toy": (Sample(1, 2, 3),)})


def test_estimates_of_further_trials_leave_those_before_as_they_were() -> None:
    first, more = estimates("t1"), estimates("t2")
    both = first.with_more(more)
    assert [request.trial.trial_id for request in both.requests] == list(both.raw) == ["t1", "t2"]
    assert both.known == first.known
    assert first == estimates("t1")


def test_estimates_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimates("t1").requests = ()  # type: ignore[misc]


def cached(gb: float, cached_gb: float) -> Request:
    """A trial that reserves this much, a part of which the allocator would give back."""
    activations = int((gb - cached_gb) * GB)
    guess = MemoryEstimate("traced", activations, fragmentation_bytes=int(cached_gb * GB), margin=0.1)
    guess = dataclasses.replace(guess, cached_bytes=guess.fragmentation_bytes)
    return Request(Trial("t1", "toy", "wide", {}, 0), guess, need_bytes(guess))


def test_a_trial_that_fits_only_without_what_is_cached_has_a_whole_device_and_the_plan_says_so(
    gpu_16gb: Device,
) -> None:
    tasks, settings = {"toy": TrainingTask(Toy(), None)}, Settings(auto_memory=True)
    plan, (served,) = plan_requests(tasks, [cached(15, 2)], [gpu_16gb], settings)
    assert served.need_bytes == plan.budgets[0] == 14 * GB
    said = plan_text(plan, [served], "data")
    assert "1 of them would take up to 15.00 GB, which no device has for trials; with a whole one" in said
    assert "they run in 13.00 GB, as the allocator then gives back what it caches" in said
    plan, fitting = plan_requests(tasks, [cached(12, 2)], [gpu_16gb], settings)
    assert "gives back" not in plan_text(plan, fitting, "data")
    with pytest.raises(InputError, match=r"wide: a trial needs 16\.50 GB"):
        plan_requests(tasks, [cached(15, 0.5)], [gpu_16gb], settings)


def test_a_plan_says_which_cores_are_busy_with_other_work(gpu_16gb: Device) -> None:
    tasks, settings = {"toy": TrainingTask(Toy(), None)}, Settings(auto_memory=True)
    for idle, said in (
        (3, "3 threads each; bounded by number of trials; 13 of 16 cores busy with other work"),
        (16, "trials"),
    ):
        device = dataclasses.replace(gpu_16gb, idle_cores=idle)
        plan, served = plan_requests(tasks, [cached(12, 2)], [device], settings)
        assert plan_text(plan, served, "data").endswith(said)
