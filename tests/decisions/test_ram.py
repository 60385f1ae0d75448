"""The RAM of a GPU's host bounds how many trials run at once, as its device's memory does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.packing import start_all
from tuner.decisions.capacity import RAM_BUFFER_BYTES, ram_buffer_bytes
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan, make_plan
from tuner.errors import InputError
from tuner.execution.simulation import simulate
from tuner.spec.settings import Settings
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial


def gpu(index: int = 0, node: str = "", ram_gb: float = 12, gb: float = 16) -> Device:
    """A GPU with 2 GB of buffer left; of its host's RAM ``ram_gb - 2`` are for trials."""
    sizes = int(gb * GB), int(gb * GB)
    return Device(
        node, "cuda", index, "a GPU", *sizes, 16, ram_bytes=int(ram_gb * GB), free_ram_bytes=int(ram_gb * GB)
    )


def requests(*needs: tuple[float, float]) -> list[Request]:
    """Trials with their needs in GB: of the device's memory, and of its host's RAM."""
    return [
        Request(
            Trial(f"t{n}", "toy", f"t{n}", {}, 0), MemoryEstimate("given"), int(gb * GB), host_bytes=int(ram * GB)
        )
        for n, (gb, ram) in enumerate(needs, 1)
    ]


def plan(devices: Sequence[Device], listed: Sequence[Request], packing: str = "per-trial", **options: int) -> Plan:
    needs, rams = [request.need_bytes for request in listed], [request.host_bytes for request in listed]
    return make_plan(devices, needs, packing=packing, buffer_bytes=2 * GB, host_needs=rams, **options)  # type: ignore[arg-type]


def started(packer: Packer) -> list[str]:
    return [placement.trial.name for placement in start_all(packer)]


@pytest.mark.parametrize("packing", ["uniform", "per-trial"])
def test_ram_for_three_bounds_the_workers_where_the_card_has_room_for_all(packing: str) -> None:
    listed = requests(*[(1.5, 3)] * 8)
    shared = plan([gpu()], listed, packing)
    assert (shared.workers, shared.guaranteed, shared.bound) == (3, 3, "RAM")
    assert plan([replace(gpu(), ram_bytes=0)], listed, packing).bound == "number of trials", "it is not known"
    assert plan([gpu()], listed, packing, max_workers=2).bound == "max_workers"


def test_a_part_of_the_ram_is_left_free_beside_what_others_hold() -> None:
    assert plan([replace(gpu(), free_ram_bytes=8 * GB)], requests(*[(1, 3)] * 8)).workers == 2
    large = gpu(ram_gb=100, gb=900)
    assert plan([large], requests((1, 1))).ram_budgets == {"": 95 * GB}, "Ray ends workers above 95 %"


def test_a_large_buffer_of_the_gpus_is_none_of_the_ram() -> None:
    assert Settings().buffer_bytes == RAM_BUFFER_BYTES
    assert [ram_buffer_bytes(gpu(ram_gb=12), int(gb * GB)) / GB for gb in (0, 1, 2, 6)] == [
        *(pytest.approx(0.6), 1, 2),
        2,
    ]


def test_the_gpus_of_a_host_share_its_ram() -> None:
    devices = [gpu(0, "a"), gpu(1, "a"), gpu(0, "b", ram_gb=5)]
    shared = plan(devices, requests(*[(1, 2.5)] * 20))
    assert (shared.expected, shared.bound) == ((2, 2, 1), "RAM")


def test_a_trial_starts_only_where_memory_and_ram_hold_and_both_are_released() -> None:
    listed = requests((2, 6), (2, 6), (1, 3))
    packer = Packer(plan([gpu()], listed))
    packer.enqueue(listed)
    first = start_all(packer)
    assert [placement.host_bytes // GB for placement in first] == [6, 3]
    assert packer.held_back() is None and started(packer) == []
    packer.release(first[1])
    assert started(packer) == [], "4 GB of RAM are free"
    packer.release(first[0])
    assert started(packer) == ["t2"]


def test_the_emptiest_gpu_is_passed_over_if_its_host_has_no_ram() -> None:
    devices = [gpu(0, "a", ram_gb=5, gb=80), gpu(0, "b", ram_gb=22)]
    listed = requests((3, 3), (2, 3), (2, 3), (2, 3))
    packer = Packer(plan(devices, [*listed, *listed]))
    packer.enqueue(listed)
    placed = start_all(packer)
    assert [placement.device.node_id for placement in placed] == ["a", "b", "b", "b"]
    packer.enqueue(requests((70, 3), (1, 3)))
    held = packer.held_back()
    assert held and held[1].node_id == "b" and held[0].need_bytes == GB


def test_a_trial_that_needs_more_ram_than_a_host_has_waits_for_all_of_it() -> None:
    devices = [gpu(0, "a", gb=80), gpu(0, "b", ram_gb=22)]
    packer = Packer(plan(devices, requests((1, 1), (1, 1))))
    packer.enqueue(requests((70, 100), (4, 100)))
    assert [(p.device.node_id, p.host_bytes // GB) for p in start_all(packer)] == [("a", 10), ("b", 20)]


def test_corrected_needs_of_ram_count_for_trials_that_wait() -> None:
    listed = requests(*[(1, 5)] * 6)
    packer = Packer(plan([gpu()], listed))
    packer.enqueue(listed)
    assert len(started(packer)) == 2
    packer.enqueue([replace(request, host_bytes=0) for request in listed])
    assert len(started(packer)) == 2, "at most twice as many as planned"


def test_a_trial_without_enough_ram_anywhere_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        InputError, match=r"needs 11.00 GB of RAM beside its GPU's memory, but this machine has 10.00"
    ):
        plan([gpu()], requests((1, 1), (1, 11)))


@pytest.mark.parametrize("seed", range(20))
def test_a_simulated_study_runs_every_trial_and_no_host_is_given_away_twice(seed: int) -> None:
    draw = random.Random(seed)
    devices = [
        gpu(i, node, ram_gb=ram, gb=gb) for node, ram in (("a", 14), ("b", 30)) for i, gb in enumerate((16, 40))
    ]
    listed = requests(*[(draw.uniform(0.5, 13), draw.choice([0.5, 1, 4, draw.uniform(1, 11)])) for _ in range(60)])
    shared = plan(devices, listed)
    schedule = simulate(listed, shared, lambda request: request.need_bytes / GB)
    assert len(schedule.placements) == 60
    for node, budget in shared.ram_budgets.items():
        here = [entry for entry in schedule.placements if entry[0].device.node_id == node]
        for _, now, _ in here:
            assert sum(p.host_bytes for p, start, end in here if start <= now < end) <= budget


def test_what_others_leave_of_the_ram_bounds_what_starts_until_the_next_look() -> None:
    listed = requests(*[(1, 3)] * 3)
    packer = Packer(plan([gpu()], listed))
    packer.enqueue(listed)
    packer.limit({}, ram_bytes=4 * GB)
    assert started(packer) == ["t1"]
    held = packer.held_back()
    assert held and held[0].trial.name == "t2", "it fits without the bound"
    packer.limit({}, ram_bytes=2 * GB)
    assert started(packer) == []
    packer.limit({})
    assert started(packer) == ["t2", "t3"]
