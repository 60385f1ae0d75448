from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.toy import Batched, Toy
from tuner.decisions.events import Corrected, DeviceLost, Joined, Opened, Planned, Replanned
from tuner.decisions.plan import host_need_bytes, make_plan, need_bytes
from tuner.decisions.state import State, apply
from tuner.errors import InputError, spelled
from tuner.estimation.estimators import LEAST_ROOM_BYTES
from tuner.estimation.overheads import WORKER_BYTES
from tuner.estimation.service import EstimatePair, EstimationService
from tuner.reporting.plan_text import plan_text, time_lines
from tuner.search.configurations import complete
from tuner.spec.settings import Settings
from tuner.study.needs import Needs
from tuner.study.planning import Replanning, plan_requests, usable
from tuner.study.ranks import check_place
from tuner.trial import AUTO, GB, MB, NODES, RANKS, Device, History, MemoryEstimate, Request, Trial
from tuner.workloads.program import Function
from tuner.workloads.task import TrainingTask


def toy(device: Device, settings: Settings) -> Needs:
    return Needs({"toy": TrainingTask(Toy(), None)}, [device], settings)


def test_trials_that_take_the_same_memory_are_estimated_once(
    gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimated, real = list[int](), EstimationService.estimate_all
    monkeypatch.setattr(EstimationService, "estimate_all", lambda *a: estimated.append(len(a[2])) or real(*a))
    needs = toy(gpu_16gb, Settings())
    first, other = (
        Trial(name, "toy", name, complete({"lr": lr}, Toy().schema), 0) for name, lr in (("a", 0.1), ("b", 0.2))
    )
    both = [needs.of([trial]).requests[0] for trial in (first, other)]
    assert both[1] == dataclasses.replace(both[0], trial=other)
    assert sum(estimated) == 1


def opened(devices: list[Device], *requests: Request) -> State:
    plan = make_plan(devices, [one.need_bytes for one in requests], packing="per-trial", buffer_bytes=0, threads=1)
    return apply(apply(State(), Planned(requests, {})), Opened(plan, requests))


def request(name: str, gb: float) -> Request:
    return Request(Trial(name, "toy", name, {}, 0), MemoryEstimate.given(gb), int(gb * GB))


def with_memory(device: Device, gb: int, node: str) -> Device:
    return dataclasses.replace(device, total_bytes=gb * GB, free_bytes=gb * GB, node_id=node)


def slots_after(state: State, event: Any, **options: Any) -> tuple[int, ...]:
    """The slots of each device in the plan that follows on an event; none if there is no other plan."""
    again = Replanning(Settings(packing="per-trial", gpu_memory_buffer_gb=0, **options), lambda: 0)
    state = apply(state, event)
    again.hear(state, event)
    decided = again.decide(state, 0.0)
    assert again.decide(state, 0.0) is None, "once for each event"
    return decided.plan.slots if isinstance(decided, Replanned) else ()


def test_devices_that_join_are_planned_for_the_trials_that_fit_there(gpu_16gb: Device) -> None:
    state = opened([gpu_16gb], *(request(name, 9) for name in "abc"), request("d", 1), request("e", 1))
    assert state.plan
    (first,), small, none = state.plan.slots, with_memory(gpu_16gb, 4, "b"), with_memory(gpu_16gb, 0, "b")
    assert slots_after(state, Joined((small,)))[1] > 0
    assert slots_after(state, Joined((none,)))[1] == 0
    assert slots_after(state, Joined((dataclasses.replace(small, kind="cpu"),))) == ()
    assert slots_after(state, Joined((small,)), max_workers=first) == (first, 0)
    lost = apply(state, DeviceLost(gpu_16gb, "its node died"))
    other = with_memory(gpu_16gb, 16, "b")
    assert slots_after(lost, Joined((other,)), max_workers=1) == (0, 1), "it takes the place of the lost one"


def test_devices_too_small_for_a_first_guess_are_used_once_the_first_peak_is_known(gpu_16gb: Device) -> None:
    nodes = [with_memory(gpu_16gb, gb, str(gb)) for gb in (16, 5, 4)]
    guesses = [request(str(number), 5.5) for number in range(8)]
    state = opened(nodes, *guesses)
    assert state.plan and state.plan.slots[1:] == (0, 0)
    slots = slots_after(state, Corrected({one.trial.trial_id: with_need(one, 0.5) for one in guesses}))
    assert sum(slots) >= 8 and min(slots) > 0
    assert slots_after(state, Corrected({one.trial.trial_id: with_need(one, 5.4) for one in guesses})) == ()


def with_need(request: Request, gb: float) -> Request:
    return dataclasses.replace(request, need_bytes=int(gb * GB))


def test_machines_with_too_few_gpus_for_ranks_are_told(gpu_16gb: Device) -> None:
    devices = [dataclasses.replace(gpu_16gb, node_id=node, index=index) for index, node in enumerate("aaaabb")]
    for ranks, nodes, said in [(8, 2, "no 2 machines have each more than 2 GPUs"), (8, 1, "more than 4 GPUs")]:
        with pytest.raises(InputError, match=f"g: gpus_per_trial {ranks}: .*{said}: give fewer"):
            check_place(Trial("t", "toy", "g", {RANKS: ranks, NODES: nodes}, 0), devices, Settings())


@pytest.mark.parametrize(("gb", "ranks"), [(16, 1), (8, 2), (5, 4), (1, 4)])
def test_auto_takes_as_few_ranks_as_have_the_memory(gpu_16gb: Device, gb: int, ranks: int) -> None:
    one = dataclasses.replace(gpu_16gb, total_bytes=gb * GB, free_bytes=gb * GB)
    devices = [dataclasses.replace(one, index=index, uuid=f"u{index}") for index in range(4)]
    trial = Trial("t1", "batched", "large", complete({"batch_size": 100_000, RANKS: AUTO}, Batched().schema), 0)
    settings = Settings(auto_memory=True, gpu_memory_buffer_gb=0)
    (request,) = Needs({"batched": TrainingTask(Batched(), None)}, devices, settings).of([trial]).requests
    assert request.trial.ranks == ranks


def cached(gb: float, cached_gb: float) -> Request:
    """A trial that reserves this much, a part of which the allocator would give back."""
    activations = int((gb - cached_gb) * GB)
    guess = MemoryEstimate("traced", activations, fragmentation_bytes=int(cached_gb * GB), margin=0.1)
    guess = dataclasses.replace(guess, cached_bytes=guess.fragmentation_bytes)
    return Request(Trial("t1", "toy", "wide", {}, 0), guess, need_bytes(guess))


def test_a_trial_that_fits_only_without_what_is_cached_has_a_whole_device_and_the_plan_says_so(
    gpu_16gb: Device,
) -> None:
    needs = toy(gpu_16gb, Settings(auto_memory=True))
    plan, (served,) = plan_requests(needs, [cached(15, 2)])
    assert served.need_bytes == plan.budgets[0] == 14 * GB
    said = plan_text(plan, [served], "data")
    assert "1 of them would take up to 15.00 GB, which no device has for trials; on a whole one" in said
    assert "they run in 13.00 GB, as the allocator then gives back what it caches" in said
    plan, roomy = plan_requests(needs, [cached(12, 2)])
    assert "gives back" not in plan_text(plan, roomy, "data")
    with pytest.raises(InputError, match=r"wide: a trial needs 16\.50 GB"):
        plan_requests(needs, [cached(15, 0.5)])


@pytest.mark.parametrize(("packing", "fits"), [("uniform", 7), ("per-trial", 3)])
def test_a_resumed_study_gives_no_trial_more_because_another_ran_out_of_memory(
    gpu_16gb: Device, packing: Any, fits: int
) -> None:
    first = cached(2, 0)
    first = dataclasses.replace(first, estimate=dataclasses.replace(first.estimate, margin=0.0), need_bytes=2 * GB)
    grown = dataclasses.replace(first, need_bytes=4 * GB, history=History(out_of_memory=1))
    settings = Settings(auto_memory=True, packing=packing)
    plan, served = plan_requests(toy(gpu_16gb, settings), [first, grown])
    assert (plan.fits, [request.need_bytes for request in served]) == ((fits,), [2 * GB, 4 * GB])


def test_a_plan_says_which_cores_are_busy_with_other_work(gpu_16gb: Device) -> None:
    for idle, said in (
        (3, "3 threads each; bounded by number of trials; 13 of 16 cores busy with other work"),
        (16, "trials"),
    ):
        device = dataclasses.replace(gpu_16gb, idle_cores=idle)
        plan, served = plan_requests(toy(device, Settings(auto_memory=True)), [cached(12, 2)])
        *_, workers, time = plan_text(plan, served, "data").splitlines()
        assert workers.endswith(said)
        sooner = "memory_estimation='measured' times a step of each"
        assert spelled(time) == f"time       unknown until the first epochs; {sooner}"


def test_a_configuration_for_which_there_is_no_ram_is_refused_or_left_out(gpu_16gb: Device) -> None:
    device = dataclasses.replace(gpu_16gb, ram_bytes=4 * GB, free_ram_bytes=4 * GB)
    known = MemoryEstimate("traced", host_measured=True)
    estimates = {name: dataclasses.replace(known, host_bytes=gb * GB) for name, gb in (("small", 1), ("huge", 3))}
    small, huge = (
        Request(Trial(name, "toy", name, {}, 0), estimate, GB, host_bytes=host_need_bytes(estimate))
        for name, estimate in estimates.items()
    )
    needs = toy(device, Settings(auto_memory=True))
    assert needs.fitting([small, huge]) == ([small], [huge])
    why = "not run: needs 3.30 GB of RAM, and no machine has more than 2.00 GB for it"
    assert needs.infeasible_text(huge) == why
    with pytest.raises(InputError, match=r"^huge: a trial needs 3\.30 GB of RAM .* or use a machine with more RAM$"):
        plan_requests(needs, [small, huge])
    with pytest.raises(InputError, match=r": use a machine with more RAM$"):
        less = dataclasses.replace(device, free_ram_bytes=3 * GB)
        plan_requests(toy(less, needs.settings.changed(gpu_memory_buffer_gb=0.0)), [huge])
    tight = dataclasses.replace(small, estimate=dataclasses.replace(known, host_bytes=2 * GB - 1), host_bytes=3 * GB)
    plan, (served,) = plan_requests(needs, [tight])
    assert (plan.workers, served.host_bytes) == (1, 2 * GB), "it may run without its margin"


@pytest.mark.parametrize("ram_gb", [8.0, 2.9, 1.0])
def test_a_guess_of_the_ram_refuses_nothing(gpu_16gb: Device, ram_gb: float) -> None:
    device = dataclasses.replace(gpu_16gb, ram_bytes=8 * GB, free_ram_bytes=int(ram_gb * GB))
    guess = MemoryEstimate("traced", host_bytes=30 * GB)
    request = Request(Trial("t1", "toy", "a", {}, 0), guess, GB, host_bytes=host_need_bytes(guess))
    needs = toy(device, Settings(auto_memory=True))
    assert needs.fitting([request]) == ([request], [])
    plan, (served,) = plan_requests(needs, [request])
    assert (plan.workers, served.host_bytes) == (1, needs.limits.ram_bytes)


def test_weights_bound_the_workers_by_ram_only_where_tuners_loop_keeps_them(gpu_16gb: Device) -> None:
    sizes = {"total_bytes": 80 * GB, "free_bytes": 79 * GB, "ram_bytes": 64 * GB, "free_ram_bytes": 58 * GB}
    gpus = [dataclasses.replace(gpu_16gb, index=n, **sizes) for n in range(8)]  # type: ignore[arg-type]
    large = MemoryEstimate("formula", parameter_bytes=14 * GB, context_bytes=6 * GB)
    for trained, workers in ((Function(print), 8), (Toy(), 1)):
        needs = Needs({trained.name: TrainingTask(trained, None)}, gpus, Settings())
        estimate = needs.in_ram(trained.name, EstimatePair(large, large)).calibrated
        requests = [needs.request(Trial(f"t{n}", trained.name, "a", {}, 0), estimate) for n in range(8)]
        assert plan_requests(needs, requests)[0].workers == workers


def test_what_gpus_trials_take_of_the_ram_is_estimated_also_where_their_memory_is_given(gpu_16gb: Device) -> None:
    trial, tasks = Trial("t1", "toy", "a", {}, 0), {"toy": TrainingTask(Toy(), ["x" * 1000] * 1000)}
    (on_gpu,) = Needs(tasks, [gpu_16gb], Settings(memory_gb=2)).of([trial]).requests
    assert on_gpu.need_bytes == 2 * GB
    assert on_gpu.host_bytes > 1.1 * WORKER_BYTES
    cpu = dataclasses.replace(gpu_16gb, kind="cpu")
    (on_cpu,) = Needs(tasks, [cpu], Settings(memory_gb=2)).of([trial]).requests
    assert on_cpu.host_bytes == 0


def timed(workload: str, seconds: float | None, epochs: int) -> Request:
    estimate = MemoryEstimate("traced", epoch_seconds=seconds)
    return Request(Trial("t1", workload, "wide", {"epochs": epochs}, 0), estimate, 1)


def test_a_plan_tells_the_time_of_an_epoch_the_longest_trial_and_all_as_far_as_it_is_known() -> None:
    listed = [timed("toy", 3, 12), timed("toy", 0.5, 6)]
    assert time_lines(listed, 40, 2) == [
        "about 0.5 s to 3 s an epoch, 6 to 12 epochs: 36 s for the longest of 2 trials, 40 s in all with 2 workers"
    ]
    assert time_lines(listed[:1], 36, 1) == ["about 3 s an epoch, 12 epochs: 36 s"]
    assert time_lines([*listed[:1], timed("toy", None, 12)], None, 2) == [
        "about 3 s an epoch, 12 epochs: 36 s; unknown for 1 of 2 trials"
    ]
    first, other = time_lines([*listed, timed("other", None, 0)], None, 2)
    assert first == "toy: about 0.5 s to 3 s an epoch, 6 to 12 epochs: 36 s for the longest of 2 trials"
    assert other.startswith("other: unknown until the first epochs; ")
    assert time_lines([*listed, timed("other", 1, 1)], 41, 2)[-1] == "41 s in all with 2 workers"


def test_a_share_that_a_workers_context_fills_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.estimation.overheads._context_on", lambda device: (742 * MB, ""))
    card = Device("", "cuda", 0, "a GPU", 8 * GB, 8 * GB, cores=16, uuid="GPU-1")
    settings = Settings(model_memory_gb=0.7)
    (device,) = usable([card], settings)
    needs = toy(device, settings)
    trial = Trial("t", "toy", "small", {}, 0)
    with pytest.raises(InputError, match=r"small: 0\.70 GB is given, and a process takes 0\.72 GB of cuda:0 before"):
        needs.of([trial])
    assert toy(device, Settings(model_memory_gb=0.8)).of([trial]).requests[0].need_bytes == int(0.8 * GB)
    learned = Needs(
        {"train": TrainingTask(Function(lambda config: None), None)}, [device], Settings(auto_memory=True)
    )
    (first, *_) = learned.of([Trial(f"t{n}", "train", f"t{n}", {}, 0) for n in range(16)]).requests
    assert first.estimate.context_bytes == 742 * MB
    assert first.need_bytes >= 742 * MB + LEAST_ROOM_BYTES
