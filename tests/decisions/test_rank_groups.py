"""Trials of several ranks: where they start, and how room is kept for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.packing import start_all
from tuner.decisions.capacity import most_per_rank
from tuner.decisions.packer import Packer
from tuner.decisions.plan import make_plan
from tuner.execution.simulation import simulate
from tuner.trial import GB, RANKS, Device, MemoryEstimate, Request, Shape, Trial

Size = tuple[float, int]  # GB for each rank, and ranks


def requests(*sizes: Size, seconds: Sequence[float] = ()) -> list[Request]:
    return [
        Request(
            Trial(f"t{number}", "toy", f"t{number}", {RANKS: ranks, "epochs": 1}, seed=0),
            MemoryEstimate("given", context_bytes=int(gb * GB), epoch_seconds=seconds[number] if seconds else None),
            int(gb * GB),
        )
        for number, (gb, ranks) in enumerate(sizes)
    ]


def gpus(device: Device, *nodes: str, gb: int = 10) -> list[Device]:
    each = replace(device, total_bytes=gb * GB, free_bytes=gb * GB, ram_bytes=0)
    return [replace(each, index=i, uuid=f"u{i}", node_id=node) for i, node in enumerate(nodes)]


def make_packer(devices: Sequence[Device], *sizes: Size, waiting: Sequence[Request] = ()) -> Packer:
    needs = [int(gb * GB) for gb, ranks in sizes for _ in range(ranks)]
    packer = Packer(make_plan(devices, needs, packing="per-trial", buffer_bytes=0, with_ranks=True))
    packer.enqueue(waiting or requests(*sizes))
    return packer


def test_ranks_get_distinct_gpus_of_one_node(gpu_16gb: Device) -> None:
    devices = gpus(gpu_16gb, "a", "b", "b")
    [place] = start_all(make_packer(devices, (4, 2)))
    assert [(rank.rank, rank.device) for rank in place.all] == [(0, devices[1]), (1, devices[2])]
    assert place.label == "cuda:1+cuda:2"


def test_ranks_on_the_cpu_divide_its_ram() -> None:
    device = Device("", "cpu", 0, "CPU", 8 * GB, 8 * GB, cores=4)
    assert most_per_rank([device], [8 * GB], Shape(4, 1)) == 2 * GB
    packer = make_packer([device], (2, 3), (3, 2))
    [place] = start_all(packer)  # 2 GB and a core are left
    assert ([rank.device for rank in place.all], place.label) == ([device] * 3, "cpu")
    packer.release(place)
    assert [len(place.all) for place in start_all(packer)] == [2]


def test_small_trials_start_beside_ranks(gpu_16gb: Device) -> None:
    placed = start_all(make_packer(gpus(gpu_16gb, "", ""), (6, 2), (3, 1), (3, 1)))
    assert [len(place.all) for place in placed] == [2, 1, 1]
    assert [place.device.index for place in placed[1:]] == [0, 1]


def test_waiting_ranks_are_not_starved_by_trials_that_leave_them_no_room(gpu_16gb: Device) -> None:
    big, *small = requests((8, 2), *[(3, 1)] * 12, (2, 1))
    packer = make_packer(gpus(gpu_16gb, "", ""), (8, 2), *[(3, 1)] * 12, (2, 1), waiting=small[:4])
    first = start_all(packer)
    assert len(first) == 4
    packer.enqueue([big, *small[4:]])
    beside = start_all(packer)
    assert [place.limit_bytes for place in beside] == [2 * GB]  # 3 GB fit as well, but leave less than 8
    for place in first:
        packer.release(place)
    assert start_all(packer)[0].trial == big.trial


def test_a_trial_that_ends_before_ranks_could_start_passes_them(gpu_16gb: Device) -> None:
    sizes = [(6.0, 1), (8.0, 2), (3.0, 1), (3.0, 1)]
    first, big, short, long = requests(*sizes, seconds=[60, 100, 50, 70])
    packer = make_packer(gpus(gpu_16gb, "", ""), *sizes, waiting=[first])
    start_all(packer)
    packer.enqueue([big, long, short])
    assert [place.trial for place in start_all(packer)] == [short.trial]


def test_room_is_kept_for_several_trials_of_several_ranks_at_once(gpu_16gb: Device) -> None:
    sizes = [*[(6.0, 1)] * 4, (8.0, 2), (8.0, 2), (6.0, 1)]
    waiting = requests(*sizes)
    packer = make_packer(gpus(gpu_16gb, *[""] * 4), *sizes, waiting=waiting[:4])
    running = start_all(packer)
    packer.enqueue(waiting[4:])
    for place in running:
        packer.release(place)
    assert [len(place.all) for place in start_all(packer)] == [2, 2]


def test_room_is_free_again_when_the_only_trial_that_waits_for_it_is_dropped(gpu_16gb: Device) -> None:
    sizes = [(6.0, 1), (8.0, 2), (9.0, 1)]
    waiting = requests(*sizes)
    packer = make_packer(gpus(gpu_16gb, "", ""), *sizes, waiting=waiting[:1])
    (first,) = start_all(packer)
    packer.enqueue(waiting[1:2])
    assert start_all(packer) == []
    packer.drop("t1")
    packer.release(first)
    packer.enqueue(waiting[2:])
    assert [place.trial for place in start_all(packer)] == [waiting[2].trial]


def test_what_runs_longer_than_ranks_wait_gives_its_room_to_others(gpu_16gb: Device) -> None:
    sizes = [(5.0, 1), (8.0, 1), (5.0, 2), (5.0, 1)]
    long, short, big, small = requests(*sizes, seconds=[2000, 1000, 100, 3000])
    packer = make_packer(gpus(gpu_16gb, "", ""), *sizes, waiting=[short, long])
    running = {place.trial.trial_id: place for place in start_all(packer)}
    packer.enqueue([big])
    assert start_all(packer) == []
    packer.release(running["t0"])
    packer.enqueue([small])
    assert [place.trial for place in start_all(packer)] == [small.trial]


def test_ranks_start_on_the_first_devices_that_are_free_though_room_is_kept_on_others(gpu_16gb: Device) -> None:
    sizes = [*[(8.0, 1)] * 3, (8.0, 2)]
    *small, big = requests(*sizes)
    packer = make_packer(gpus(gpu_16gb, "", "", ""), *sizes, waiting=small)
    running = start_all(packer)
    packer.enqueue([big])
    assert start_all(packer) == []
    kept = {account.index for account in packer.groups.kept_for("t3")}
    for place in running:
        if place.device.index == min(kept) or place.device.index not in kept:
            packer.release(place)
    assert [place.trial for place in start_all(packer)] == [big.trial]


def test_no_room_is_kept_where_ranks_lack_ram(gpu_16gb: Device) -> None:
    rams = {"a": 10 * GB, "b": 100 * GB}
    devices = [
        replace(device, ram_bytes=rams[device.node_id], free_ram_bytes=rams[device.node_id])
        for device in gpus(gpu_16gb, "a", "a", "b", "b")
    ]
    *small, big = requests(*[(6, 1)] * 4, (8, 2))
    packer = make_packer(devices, *[(6, 1)] * 4, (8, 2), waiting=small)
    start_all(packer)
    packer.enqueue([replace(big, host_bytes=20 * GB)])
    assert start_all(packer) == []
    assert {account.device.node_id for account in packer.groups.kept_for("t4")} == {"b"}


def test_two_trials_of_several_ranks_do_not_block_each_other(gpu_16gb: Device) -> None:
    packer = make_packer(gpus(gpu_16gb, "", "", "", ""), *[(6, 4)] * 3, (4, 2))
    order = []
    while placed := start_all(packer):
        order += [place.trial.trial_id for place in placed]
        for place in placed:
            packer.release(place)
    assert sorted(order) == ["t0", "t1", "t2", "t3"]


def test_ranks_without_a_place_after_the_loss_of_a_gpu_are_told_apart(gpu_16gb: Device) -> None:
    devices = gpus(gpu_16gb, "a", "a", "b")
    packer = make_packer(devices, (4, 2), (4, 1))
    packer.remove(devices[0])
    stuck = packer.groups.without_place()
    assert stuck is not None
    assert stuck.trial.trial_id == "t0"
    packer.drop("t0")
    assert packer.groups.without_place() is None
    assert [place.device for place in start_all(packer)] == [devices[1]]


def test_room_stays_kept_as_needs_are_corrected(gpu_16gb: Device) -> None:
    big, *small = requests((6, 2), *[(4, 1)] * 30)
    packer = make_packer(gpus(gpu_16gb, "", ""), (6, 2), *[(4, 1)] * 30, waiting=small[:4])
    running = start_all(packer)
    packer.enqueue([big, *small[4:]])
    for _ in range(4):
        packer.release(running.pop(0))
        packer.enqueue([big])  # as estimates are corrected
        running += start_all(packer)
    assert running[-1].trial == big.trial


def test_a_suggestion_of_more_ranks_than_there_are_workers_has_no_place() -> None:
    device = Device("", "cpu", 0, "CPU", 8 * GB, 8 * GB, cores=2)
    packer = make_packer([device], (1, 2))
    packer.enqueue(later := requests((1, 2), (1, 4))[1:])
    assert packer.groups.without_place() is not None
    assert packer.groups.without_place().trial == later[0].trial  # type: ignore[union-attr]


@pytest.mark.parametrize("cards", [8, 64])
def test_a_simulated_study_with_ranks_ends_near_the_bound(gpu_16gb: Device, cards: int) -> None:
    draw, number = random.Random(cards), 20 * cards
    sizes = [
        (draw.uniform(2, 9), draw.choice([2, 4, 8])) if i % 10 == 0 else (draw.uniform(0.2, 5), 1)
        for i in range(number)
    ]
    waiting = requests(*sizes, seconds=[draw.uniform(60, 1800) for _ in sizes])
    devices = gpus(gpu_16gb, *[f"n{index // 8}" for index in range(cards)])
    needs = [request.need_bytes for request in waiting for _ in range(request.trial.ranks)]
    plan = make_plan(devices, needs, packing="per-trial", buffer_bytes=0, with_ranks=True)
    took = simulate(waiting, plan, lambda request: request.seconds or 0.0)
    work = sum(place.limit_bytes * (end - start) for first, start, end in took.placements for place in first.all)
    assert len(took.placements) == number
    assert took.seconds <= 1.15 * work / (cards * 10 * GB)
