from __future__ import annotations

import random
from dataclasses import replace

from tests.support.packing import start_all
from tuner.decisions.packer import Packer
from tuner.decisions.plan import make_plan
from tuner.decisions.queue import Queue
from tuner.execution.simulation import expected_seconds
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial


def request(name: str, gb: float, seconds: float | None, seed: int = 0) -> Request:
    estimate = MemoryEstimate("traced", context_bytes=int(gb * GB), epoch_seconds=seconds)
    return Request(Trial(name, "toy", name, {"epochs": 1}, seed), estimate, estimate.total_bytes)


def order(queue: Queue, *requests: Request, room_gb: float = 99) -> list[str]:
    for request in requests:
        queue.add(request, request.need_bytes)
    names = []
    while fitting := queue.first(room_gb * GB, 0):
        names.append(fitting[1].trial.name)
        queue.pop(fitting[1].trial.trial_id)
    return names


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


def test_a_trial_that_is_long_beside_all_that_waits_starts_before_larger_ones() -> None:
    requests = [request("long", 1, 90), *(request(f"t{number}", 2, 1 + number) for number in range(9))]
    assert order(Queue(largest=(2 * GB, 0), total=(2 * GB, 0)), *requests)[0] == "long"
    many = [*requests, *(request(f"m{number}", 3, 50) for number in range(9))]
    assert order(Queue(largest=(2 * GB, 0), total=(2 * GB, 0)), *many)[0] == "m0", "there is time enough for it"


def test_of_trials_of_about_the_same_needs_the_largest_starts_first_while_much_waits() -> None:
    queue = Queue(largest=(8 * GB, 0), total=(8 * GB, 0))
    waiting = [request(f"t{number}", 4 + number / 10, 20 - number) for number in range(20)]
    assert order(queue, *waiting)[:3] == ["t19", "t18", "t17"], "so that the next has room where one has ended"


def test_what_fits_is_found_as_if_all_trials_were_gone_through() -> None:
    draw = random.Random(0)
    waiting = {}
    queue = Queue(largest=(64 * GB, 64 * GB), total=(64 * GB, 64 * GB))
    for number in range(600):
        asked = request(f"t{number}", draw.uniform(1, 40), draw.uniform(1, 9), draw.randrange(3))
        waiting[asked.trial.trial_id] = replace(asked, host_bytes=draw.randrange(1, 32 * GB))
        queue.add(waiting[asked.trial.trial_id], asked.need_bytes)
    while waiting:
        room, ram = draw.uniform(1, 64) * GB, draw.uniform(1, 40) * GB
        fitting = [each for each in waiting.values() if each.need_bytes <= room and each.host_bytes <= ram]
        first = queue.first(room, ram)
        assert (first is None) == (not fitting)
        if first:
            assert first[1] in fitting and first[1].trial.seed == min(each.trial.seed for each in fitting)
        dropped = first[1].trial.trial_id if first else draw.choice(list(waiting))
        queue.pop(dropped)
        del waiting[dropped]


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
