from __future__ import annotations

from tests.support.packing import start_all
from tuner.decisions.packing import Packer, make_plan
from tuner.decisions.queue import Queue
from tuner.execution.simulation import expected_seconds
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial


def request(name: str, gb: float, seconds: float | None, seed: int = 0) -> Request:
    estimate = MemoryEstimate("traced", context_bytes=int(gb * GB), epoch_seconds=seconds)
    return Request(Trial(name, "toy", name, {"epochs": 1}, seed), estimate, estimate.total_bytes)


def order(queue: Queue, *requests: Request, room_gb: float = 99) -> list[str]:
    for request in requests:
        queue.add(request, request.need_bytes)
    found = []
    while at := queue.first(room_gb * GB, 0):
        found.append(queue.pop(at)[1].trial.name)
    return found


MIXED = request("a", 1, 5), request("b", 2, 1), request("c", 2, 3), request("d", 1, 9)


def test_where_memory_binds_the_largest_starts_first_and_of_equal_ones_the_longest() -> None:
    assert order(Queue(), *MIXED) == ["c", "b", "d", "a"]


def test_where_memory_does_not_bind_the_longest_starts_first() -> None:
    assert order(Queue(memory_binds=False), *MIXED) == ["d", "a", "c", "b"]
    assert order(Queue(memory_binds=False), *MIXED, room_gb=1) == ["d", "a"], "those that fit"


def test_an_unknown_time_counts_as_the_longest_and_without_times_need_decides() -> None:
    assert order(Queue(memory_binds=False), *MIXED, request("e", 1, None))[0] == "e"
    unknown = request("a", 1, None), request("b", 3, None), request("c", 3, None)
    assert order(Queue(memory_binds=False), *unknown) == order(Queue(), *unknown) == ["b", "c", "a"]


def test_a_lower_seed_comes_before_a_longer_trial() -> None:
    assert order(Queue(memory_binds=False), request("a", 1, 9, seed=1), request("b", 1, 1)) == ["b", "a"]


def test_workers_that_cores_bound_end_earlier_as_the_longest_starts_first(gpu_16gb: Device) -> None:
    times = (1, 1, 1, 1, 4)
    requests = [request(f"t{number}", 1, seconds) for number, seconds in enumerate(times)]
    plan = make_plan([gpu_16gb], [GB] * 5, packing="per-trial", buffer_bytes=0, max_workers=2)
    packer = Packer(plan)
    packer.enqueue(requests)
    assert [placement.trial.name for placement in start_all(packer)] == ["t4", "t0"]
    assert expected_seconds(requests, plan, 5) == 4
    assert expected_seconds(requests, plan, 10) == 8, "a search suggests as many again"
    assert expected_seconds([*requests, request("t9", 1, None)], plan, 6) is None
    assert expected_seconds([], plan, 0) is None
