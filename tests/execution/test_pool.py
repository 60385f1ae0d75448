from __future__ import annotations

from typing import Any

import pytest

from tuner.execution.pool import WorkerPool
from tuner.trial import MB, Device, MemoryEstimate, Placement, Trial

BUNDLE = {"CPU": 1.0, "GPU": 1.0, "memory": 0.0}


class Actor:
    """In a worker's place."""


@pytest.fixture
def pool(gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    monkeypatch.setattr("ray.kill", lambda worker: None)
    return WorkerPool(gpu_16gb, BUNDLE, 8, 1000 * MB, "own", lambda *_: Actor())


def place(device: Device, mb: int) -> Placement:
    estimate = MemoryEstimate("traced", context_bytes=100 * MB)
    return Placement(Trial("t", "toy", "t", {}, 0), estimate, device, 0.1, mb * MB, 1)


def warm(pool: WorkerPool, workers: int) -> list[Any]:
    taken = [pool.take(place(pool.device, 100), new=True)[0] for _ in range(workers)]
    for worker in taken:
        pool.give_back(worker)
    return taken


def test_a_warm_worker_is_taken_before_a_new_one_is_made(pool: WorkerPool) -> None:
    (one,) = warm(pool, 1)
    assert pool.take(place(pool.device, 100), new=False) == (one, False)
    assert pool.take(place(pool.device, 100), new=False)[1]


@pytest.mark.parametrize(("mb", "stay"), [(200, 5), (500, 5), (640, 3), (1000, 0)])
def test_idle_workers_whose_context_leaves_no_room_for_a_retry_end(pool: WorkerPool, mb: int, stay: int) -> None:
    warm(pool, 5)
    assert pool.take(place(pool.device, mb), new=True)[1]
    assert len(pool._idle) == stay


def test_what_running_trials_have_is_not_there_for_idle_workers(pool: WorkerPool) -> None:
    warm(pool, 4)
    running, fresh = pool.take(place(pool.device, 700), new=False)
    assert (fresh, len(pool._idle)) == (False, 3)
    pool.take(place(pool.device, 100), new=True)
    assert len(pool._idle) == 2
    pool.give_back(running)
    assert len(pool._idle) == 3


def test_a_new_worker_has_the_place_of_an_idle_one_where_no_other_is_left(pool: WorkerPool) -> None:
    oldest, *_ = warm(pool, 8)
    assert pool.take(place(pool.device, 100), new=True)[1]
    assert len(pool._living) == 8
    assert oldest not in pool._living
