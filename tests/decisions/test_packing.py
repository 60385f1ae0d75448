from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scripts.benchmarks.packing import shortest_possible
from tests.support.packing import start_all
from tuner.decisions.capacity import MOST_PER_CORE, limited
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Packing, Plan, is_tight, make_plan
from tuner.errors import InputError
from tuner.execution.simulation import simulate
from tuner.reporting.plan_text import _workers
from tuner.trial import GB, MB, Device, MemoryEstimate, Placement, Request, Trial


def request(number: int, gb: float) -> Request:
    trial = Trial(f"{number:05d}", "toy", f"t{number}", {}, seed=0)
    need = int(gb * GB)
    return Request(trial, MemoryEstimate("given", context_bytes=need), need)


def requests(*sizes: float) -> list[Request]:
    return [request(number, gb) for number, gb in enumerate(sizes, 1)]


def plan(devices: Sequence[Device], *sizes: float, packing: Packing = "per-trial", **options: int) -> Plan:
    needs = [int(gb * GB) for gb in sizes]
    return make_plan(devices, needs, packing=packing, **{"buffer_bytes": 2 * GB, **options})  # type: ignore[arg-type]


def make_packer(devices: Sequence[Device], *sizes: float, packing: Packing = "per-trial") -> Packer:
    packer = Packer(plan(devices, *sizes, packing=packing))
    packer.enqueue(requests(*sizes))
    return packer


def placed(packer: Packer) -> list[Placement]:
    return start_all(packer)


def test_uniform_workers_are_the_budget_divided_by_the_footprint(gpu_16gb: Device) -> None:
    uniform = plan([gpu_16gb], *[1.5] * 100, packing="uniform")
    assert (uniform.workers, uniform.guaranteed, uniform.fits, uniform.bound) == (9, 9, (9,), "memory")
    assert placed(make_packer([gpu_16gb], *[1.5] * 20, packing="uniform"))[0].fraction == 1 / 9


@pytest.mark.parametrize(
    ("options", "workers", "bound"),
    [
        ({}, 9, "memory"),
        ({"max_workers": 4}, 4, "max_workers"),
        ({"trials": 3}, 3, "number of trials"),
        ({"cores": 2}, 2, "CPU cores"),
    ],
)
def test_what_bounds_the_workers_is_told(gpu_16gb: Device, options: dict[str, int], workers: int, bound: str) -> None:
    device = replace(gpu_16gb, cores=options.pop("cores", 16))
    sizes = [1.5] * options.pop("trials", 100)
    uniform = plan([device], *sizes, packing="uniform", **options)
    assert (uniform.workers, uniform.bound) == (workers, bound)


def test_a_gpu_has_slots_for_more_trials_than_cores_but_not_from_the_start(gpu_16gb: Device) -> None:
    device = replace(gpu_16gb, cores=2)
    adaptive = plan([device], *[0.5] * 100, adaptive=True)
    assert (adaptive.expected, adaptive.at_first, adaptive.slots) == ((2,), (2,), (2 * MOST_PER_CORE,))
    packer = Packer(adaptive)
    packer.enqueue(requests(*[0.5] * 100))
    assert len(placed(packer)) == 2
    packer.allow(device, 5)
    assert len(placed(packer)) == 3
    packer.allow(device, 1)
    assert placed(packer) == []
    assert plan([replace(device, kind="cpu")], *[0.5] * 100, adaptive=True).slots == (2,)


def test_a_number_that_the_user_gives_for_a_gpu_is_taken_whatever_the_cores(gpu_16gb: Device) -> None:
    device = replace(gpu_16gb, cores=2)
    given = plan([device], *[0.5] * 100, adaptive=True, max_workers=4)
    assert (given.workers, given.at_first, given.slots, given.bound) == (4, (4,), (4,), "max_workers")
    assert not given.may_grow
    few = plan([device], *[6.0] * 100, max_workers=4)
    assert (few.workers, few.bound) == (2, "memory")
    on_cpu = plan([replace(device, kind="cpu")], *[0.5] * 100, max_workers=4)
    assert (on_cpu.workers, on_cpu.slots) == (2, (2,))
    said = [str(InputError(_workers(each, "max_workers"))) for each in (given, on_cpu)]
    assert "4, 1 thread each, on 2 cores that they share; bounded by max_workers" in said[0]
    assert "bounded by CPU cores and not by max_workers=4" in said[1]


def test_what_others_hold_or_the_user_withholds_is_not_given_away(gpu_16gb: Device) -> None:
    assert plan([replace(gpu_16gb, free_bytes=6 * GB)], *[1.5] * 100).workers == 4
    assert plan([limited(gpu_16gb, 5 * GB)], *[1.5] * 100).workers == 2
    assert limited(gpu_16gb, 99 * GB) == gpu_16gb


def test_devices_are_filled_evenly_and_no_more_than_the_trials_need(gpu_16gb: Device) -> None:
    devices = [gpu_16gb, replace(gpu_16gb, index=1)]
    assert plan(devices, *[1.5] * 7).expected == (4, 3)
    assert plan([devices[0], replace(devices[1], total_bytes=4 * GB)], *[1.5] * 100, packing="uniform").slots == (
        9,
        1,
    )


def test_room_for_more_is_beside_the_workers_that_are_planned(gpu_16gb: Device) -> None:
    sizes = (1200 * MB, 3200 * MB)
    devices = [replace(gpu_16gb, index=i, total_bytes=size, free_bytes=size) for i, size in enumerate(sizes)]
    plan = make_plan(devices, [1000 * MB] * 4, packing="per-trial", buffer_bytes=0)
    assert (plan.expected, plan.slots) == ((1, 3), (1, 3))


def test_the_only_worker_is_on_the_device_that_holds_the_largest_trial(gpu_16gb: Device) -> None:
    large = replace(gpu_16gb, index=1, total_bytes=80 * GB, free_bytes=80 * GB)
    single = plan([gpu_16gb, large], 70, 1, max_workers=1)
    assert single.expected == single.slots == (0, 1)
    assert single.limits().device_bytes == 78 * GB


def test_cores_are_divided_between_the_workers(gpu_16gb: Device) -> None:
    assert plan([gpu_16gb], 7, 7).threads == 8
    assert plan([gpu_16gb], *[1.5] * 100).threads == 1
    assert plan([gpu_16gb], *[7] * 9).threads == 4, "corrected needs may make room for two more"
    assert plan([gpu_16gb], 7, threads=3).threads == 3
    busy = replace(gpu_16gb, idle_cores=5)
    assert plan([busy], 7, 7).threads == 2
    assert plan([busy], *[1.5] * 100).threads == 1
    assert plan([busy], *[1.5] * 100).workers == plan([gpu_16gb], *[1.5] * 100).workers


def test_a_footprint_larger_than_the_device_is_refused_with_both_numbers(gpu_16gb: Device) -> None:
    with pytest.raises(InputError, match=r"needs 14.50 GB, but cuda:0 has 14.00 GB for trials \(16.00 GB in all"):
        plan([gpu_16gb], 14.5, 1)


def test_each_trial_has_its_own_share_largest_first_and_small_ones_fill_what_is_left(gpu_16gb: Device) -> None:
    packer = make_packer([gpu_16gb], 1, 9, 6, 4, 0.5)
    first = placed(packer)
    assert [(placement.trial.name, placement.limit_bytes / GB) for placement in first] == [
        ("t2", 9),
        ("t4", 4),
        ("t1", 1),
    ]
    assert [placement.fraction for placement in first] == [9 / 14, 4 / 14, 1 / 14]
    assert placed(packer) == []
    packer.release(first[0])
    assert [placement.trial.name for placement in placed(packer)] == ["t3", "t5"]


def test_uniform_packing_gives_each_what_the_largest_needs(gpu_16gb: Device) -> None:
    assert [
        placement.limit_bytes / GB for placement in placed(make_packer([gpu_16gb], 1, 7, 3, packing="uniform"))
    ] == [
        7,
        7,
    ]


def test_trials_that_need_the_same_start_in_their_order(gpu_16gb: Device) -> None:
    assert [placement.trial.name for placement in placed(make_packer([gpu_16gb], *[4.0] * 5))] == ["t1", "t2", "t3"]


def test_a_trial_that_needs_more_than_any_device_has_waits_for_a_whole_one(gpu_16gb: Device) -> None:
    packer = make_packer([gpu_16gb], 2)
    (small,) = placed(packer)
    packer.enqueue([request(9, 20)])
    assert placed(packer) == []
    packer.release(small)
    assert [placement.limit_bytes for placement in placed(packer)] == [14 * GB]


def test_corrected_needs_count_for_trials_that_wait(gpu_16gb: Device) -> None:
    packer = make_packer([gpu_16gb], 8, 8, 8)
    assert len(placed(packer)) == 1
    packer.enqueue([replace(request, need_bytes=3 * GB) for request in requests(8, 8, 8)])
    assert [placement.limit_bytes for placement in placed(packer)] == [3 * GB], "one more than planned"


def test_nothing_is_placed_on_a_device_that_is_lost(gpu_16gb: Device) -> None:
    other = replace(gpu_16gb, index=1, total_bytes=10 * GB)
    packer = make_packer([gpu_16gb, other], 9, 9, 9, 1)
    assert [placement.trial.name for placement in placed(packer)] == ["t1", "t4"]
    packer.remove(gpu_16gb)
    assert [(placement.device.index, placement.limit_bytes) for placement in placed(packer)] == []
    packer.remove(other)
    packer.enqueue(requests(1))
    assert placed(packer) == []


def test_what_others_take_meanwhile_holds_trials_back_until_they_leave(gpu_16gb: Device) -> None:
    packer = make_packer([gpu_16gb], 6, 4, 4)
    packer.limit({gpu_16gb: 5 * GB})
    assert [placement.trial.name for placement in placed(packer)] == ["t2"]
    held = packer.held_back()
    assert held is not None and (held[0].trial.name, held[1]) == ("t1", gpu_16gb)
    packer.limit({})
    assert [placement.trial.name for placement in placed(packer)] == ["t1", "t3"]
    assert packer.held_back() is None


def test_a_trial_that_is_dropped_is_not_placed_any_more(gpu_16gb: Device) -> None:
    packer = make_packer([gpu_16gb], 6, 4)
    packer.drop("00001")
    assert [placement.trial.name for placement in placed(packer)] == ["t2"]


def test_devices_that_join_are_used_at_once_also_by_what_was_larger_than_all_before(gpu_16gb: Device) -> None:
    packer = make_packer([gpu_16gb], 9, 9, 9)
    first = placed(packer)
    larger = replace(gpu_16gb, node_id="b", total_bytes=32 * GB, free_bytes=32 * GB)
    packer.extend(plan([gpu_16gb, larger], 9, 9, 9))
    assert [placement.device for placement in placed(packer)] == [larger, larger]
    packer.release(first[0])
    assert packer.room_bytes == 14 * GB


@pytest.mark.parametrize("seed", range(20))
def test_a_simulated_study_runs_every_trial_once_and_never_beyond_a_budget(gpu_16gb: Device, seed: int) -> None:
    draw = random.Random(seed)
    devices = [replace(gpu_16gb, index=i, total_bytes=gb * GB, free_bytes=gb * GB) for i, gb in enumerate((16, 24))]
    sizes = [draw.uniform(0.5, 13) for _ in range(60)]
    shared = plan(devices, *sizes)
    schedule = simulate(requests(*sizes), shared, lambda request: request.need_bytes / GB)
    assert sorted(p.trial.trial_id for p, _, _ in schedule.placements) == [r.trial.trial_id for r in requests(*sizes)]
    for device, budget in zip(devices, shared.budgets, strict=True):
        here = [entry for entry in schedule.placements if entry[0].device == device]
        for _, now, _ in here:
            assert sum(p.limit_bytes for p, start, end in here if start <= now < end) <= budget
        assert schedule.most_at_once(device) <= shared.slots[device.index]
    assert schedule.seconds >= shortest_possible(requests(*sizes), shared, lambda request: request.need_bytes / GB)


def test_a_schedule_is_as_long_as_its_trials_one_after_another(gpu_16gb: Device) -> None:
    schedule = simulate(requests(10, 9, 8), plan([gpu_16gb], 10, 9, 8), lambda request: 5.0)
    assert schedule.seconds == 15
    assert [start for _, start, _ in schedule.placements] == [0, 5, 10]
    assert schedule.most_at_once(gpu_16gb) == 1


def test_a_trial_is_tight_where_it_runs_only_as_what_is_cached_is_given_back() -> None:
    estimate = MemoryEstimate("traced", activation_bytes=3 * GB, fragmentation_bytes=GB, cached_bytes=GB)
    assert [is_tight(estimate, gb * GB) for gb in (2, 3, 4)] == [False, True, False]
