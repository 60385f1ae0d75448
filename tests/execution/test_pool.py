from __future__ import annotations

from typing import Any

import pytest

from tuner.execution.pool import WorkerPool
from tuner.execution.worker_failures import RunningTrial
from tuner.trial import MB, Device, MemoryEstimate, Outcome, Placement, Trial

BUNDLE = {"CPU": 1.0, "GPU": 1.0, "memory": 0.0}


class Actor:
    """In a worker's place."""


@pytest.fixture
def pool(gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    monkeypatch.setattr("ray.kill", lambda worker: None)
    monkeypatch.setattr(WorkerPool, "_options", lambda self: {})
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


def test_a_client_of_mps_gets_no_trial_whose_share_is_above_its_limit(gpu_16gb: Device, pool: WorkerPool) -> None:
    made: list[Any] = []
    pool.pipes, pool.make = "/pipes", lambda *given: made.append(given[2]) or Actor()  # type: ignore[func-returns-value,return-value]
    small, large = (pool.take(place(gpu_16gb, mb), new=False)[0] for mb in (200, 300))
    assert [each["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for each in made] == ["0=200M", "0=300M"]
    for worker in (small, large):
        pool.give_back(worker)
    assert pool.take(place(gpu_16gb, 200), new=False) == (small, False), "the lowest limit that is enough"
    pool.give_back(small)
    assert pool.take(place(gpu_16gb, 250), new=False) == (large, False)
    assert pool.take(place(gpu_16gb, 250), new=False)[1]


def test_without_caps_a_client_has_no_limit(gpu_16gb: Device, pool: WorkerPool) -> None:
    pool.pipes, pool.caps = "/pipes", False
    (one,) = warm(pool, 1)
    assert pool.take(place(gpu_16gb, 900), new=False) == (one, False)


def test_workers_of_a_device_that_has_left_mps_do_not_find_the_users_own_daemon(pool: WorkerPool) -> None:
    made: list[Any] = []
    pool.make = lambda *given: made.append(given[2]) or Actor()  # type: ignore[func-returns-value,return-value]
    warm(pool, 1)
    pool.pipes = "/tmp/nvidia-mps"
    pool.leave_mps()
    pool.take(place(pool.device, 100), new=True)
    assert made == [{}, {"CUDA_MPS_PIPE_DIRECTORY": "/dev/null"}], "nothing changes where MPS was never used"


@pytest.mark.parametrize(
    ("status", "error", "lost", "left"),
    [
        ("failed", "CUDA error: an illegal memory access was encountered", "worker", True),
        ("failed", "CUDA error: MPS client has been terminated by the server", "worker", True),
        ("stalled", "no report", "", True),
        ("failed", "ValueError: no such column", "", False),
        ("out_of_memory", "out of memory", "", False),
    ],
)
def test_what_can_break_the_mps_server_ends_mps_on_the_device(
    status: Any, error: str, lost: str, left: bool, gpu_16gb: Device, pool: WorkerPool
) -> None:
    pool.pipes = "/pipes"
    idle, busy = warm(pool, 1)[0], pool.take(place(gpu_16gb, 100), new=True)[0]
    run = RunningTrial(place(gpu_16gb, 100), pool, busy, True, 0.0, client=pool.is_client(busy))
    judged = run.after_mps(Outcome(run.placement.trial, status, run.placement, error=error))
    assert (judged.lost, "run without MPS" in judged.error) == (lost, left)
    assert (pool.pipes == "", idle in pool._living, pool.may_keep(busy)) == (left, not left, not left)
    pool.give_back(busy)
    assert pool.is_client(pool.take(place(gpu_16gb, 100), new=True)[0]) != left
