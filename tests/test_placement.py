from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.errors import InputError
from tuner.placement import Plan, place, plan_uniform
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial


def request(number: int, gb: float, need_gb: float) -> Request:
    trial = Trial(f"{number:03d}", "toy", f"t{number}", {}, seed=0)
    return Request(trial, MemoryEstimate("given", context_bytes=int(gb * GB)), int(need_gb * GB))


def plan(devices: list[Device], gb: float, **options: int) -> Plan:
    return plan_uniform(devices, int(gb * GB), **{"buffer_bytes": 2 * GB, "trials": 100, **options})  # type: ignore[arg-type]


def test_workers_are_the_budget_divided_by_the_footprint(gpu_16gb: Device) -> None:
    found = plan([gpu_16gb], 1.5)
    assert (found.workers, found.fractions, found.bound) == (9, (1 / 9,), "memory")
    assert 9 * found.fractions[0] <= 1


@pytest.mark.parametrize(
    ("options", "workers", "bound"),
    [
        ({}, 9, "memory"),
        ({"max_workers": 4}, 4, "--max-workers"),
        ({"trials": 3}, 3, "number of trials"),
        ({"cores": 2}, 2, "CPU cores"),
    ],
)
def test_what_bounds_the_workers_is_told(gpu_16gb: Device, options: dict[str, int], workers: int, bound: str) -> None:
    device = replace(gpu_16gb, cores=options.pop("cores", 16))
    found = plan([device], 1.5, **options)
    assert (found.workers, found.bound) == (workers, bound)
    assert found.fractions == (1 / 9,), "a trial's share is its memory's, however few run at once"


def test_what_others_hold_is_not_given_away(gpu_16gb: Device) -> None:
    assert plan([replace(gpu_16gb, free_bytes=6 * GB)], 1.5).workers == 4


def test_devices_are_filled_evenly_and_no_more_than_the_trials_need(gpu_16gb: Device) -> None:
    devices = [gpu_16gb, replace(gpu_16gb, index=1)]
    assert plan(devices, 1.5, trials=7).slots == (4, 3)
    assert plan([devices[0], replace(devices[1], total_bytes=4 * GB)], 1.5).slots == (9, 1)


def test_cores_are_divided_between_the_workers(gpu_16gb: Device) -> None:
    assert plan([gpu_16gb], 7).threads == 8
    assert plan([gpu_16gb], 1.5).threads == 1
    assert plan([gpu_16gb], 7, threads=3).threads == 3


def test_a_footprint_larger_than_the_device_is_refused_with_both_numbers(gpu_16gb: Device) -> None:
    with pytest.raises(InputError, match=r"needs 14.50 GB, but cuda:0 has 14.00 GB for trials \(16.00 GB in all"):
        plan([gpu_16gb], 14.5)


def test_the_largest_trials_are_placed_first_while_there_is_room(gpu_16gb: Device) -> None:
    found = plan([gpu_16gb], 7)
    waiting = [request(1, 1, 7), request(2, 7, 7), request(3, 3, 7)]
    placed = place(waiting, [], found)
    assert [each.trial.name for each in placed] == ["t2", "t3"]
    assert [each.limit_bytes for each in placed] == [7 * GB, 7 * GB]
    assert place(waiting[:1], placed, found) == []
    assert [each.trial.name for each in place(waiting[:1], placed[:1], found)] == ["t1"]


def test_trials_go_to_the_emptiest_device_and_never_beyond_its_budget(gpu_16gb: Device) -> None:
    devices = [gpu_16gb, replace(gpu_16gb, index=1)]
    found = plan(devices, 4)
    placed = place([request(number, 4, 4) for number in range(10)], [], found)
    assert [each.device.index for each in placed] == [0, 1, 0, 1, 0, 1]
    for device, budget in zip(devices, found.budgets, strict=True):
        assert sum(each.limit_bytes for each in placed if each.device == device) <= budget
