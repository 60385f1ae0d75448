"""The Ray executor by itself: its workers, how they are lost, and what of that a trial is told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import psutil
import pytest

from tests.support.processes import end_soon
from tests.support.ray_trials import Slow, Unpackable, placements, stop_and_go_on, until
from tests.support.toy import Toy
from tests.support.worker_process import place
from tuner.decisions.plan import Plan, make_plan
from tuner.execution.pool import WorkerPool, bundle_of
from tuner.execution.ray_executor import RayExecutor
from tuner.execution.worker_failures import RunningTrial, at_cap, classify_loss, ran_out_of_ram
from tuner.machine.devices import ram_device
from tuner.machine.interrupts import Interrupt, orderly
from tuner.trial import GB, MB, Began, Device, EpochReport, Outcome
from tuner.workloads.task import TrainingTask

POOL = cast(Any, Mock())


@dataclass(frozen=True)
class Opened:
    executor: RayExecutor
    plan: Plan
    checkpoints: Path
    interrupt: Interrupt


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """An executor with one warm worker on this machine, for tests that leave it as it was: Ray takes seconds."""
    executor, interrupt = RayExecutor(fresh_processes="off"), Interrupt()
    with orderly(interrupt), closing(executor):
        folder = tmp_path_factory.mktemp("checkpoints")
        yield Opened(executor, open_for(executor, Slow(), folder), folder, interrupt)


def open_for(executor: RayExecutor, workload: Toy, checkpoints: Path | None = None) -> Plan:
    plan = make_plan([ram_device()], [GB // 2], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    executor.open({"toy": TrainingTask(workload, None)}, plan, checkpoints)
    return plan


def worker_processes() -> list[psutil.Process]:
    """This process's Ray workers: those that run a trial, and those that wait for one."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name().startswith("ray::Worker")]


def begun(executor: RayExecutor) -> psutil.Process:
    """The process of a trial that has reported."""
    began = until(executor, Began)
    until(executor, EpochReport)
    return psutil.Process(began.pid)


@pytest.mark.ray
def test_what_goes_wrong_as_a_worker_is_made_is_told_by_its_last_line(shared_ray: None) -> None:
    with closing(RayExecutor()) as executor:
        (placement,) = placements(open_for(executor, Unpackable()), 1)
        executor.submit(placement)
        outcome = until(executor, Outcome)
        assert (outcome.status, outcome.lost, outcome.phase) == ("failed", "", "start")
        assert outcome.error.endswith("ModuleNotFoundError: No module named 'left_at_home'")
        assert executor.poll(0) == []


@pytest.mark.ray
def test_a_worker_that_is_killed_ends_its_trial_and_the_next_attempt_has_a_new_one(opened: Opened) -> None:
    executor, plan = opened.executor, opened.plan
    (first,), (second,) = placements(plan, 1), placements(plan, 1, attempt=2)
    executor.submit(first)
    trained = begun(executor)
    (victim,) = worker_processes()
    victim.send_signal(signal.SIGKILL)
    outcome = until(executor, Outcome)
    assert (outcome.status, outcome.lost, outcome.reusable) == ("failed", "worker", False)
    assert outcome.error.startswith("the worker was lost: ")
    assert end_soon(trained.pid)
    executor.submit(second)
    before = begun(executor).pid
    assert until(executor, Outcome).status == "completed"
    workers = worker_processes()
    executor.submit(second)
    assert begun(executor).pid != before, "a retry has a process of its own"
    assert until(executor, Outcome).status == "completed"
    assert worker_processes() == workers, "but no new worker"


@pytest.mark.ray
def test_the_signal_that_ended_a_trials_process_is_told_and_its_worker_stays(opened: Opened) -> None:
    (placement,) = placements(opened.plan, 1)
    opened.executor.submit(placement)
    victim, workers = begun(opened.executor), worker_processes()
    victim.send_signal(signal.SIGBUS)
    outcome = until(opened.executor, Outcome)
    assert (outcome.status, outcome.lost) == ("failed", "worker")
    error = r"the trial's process was killed by SIGBUS: /dev/shm may be full \(.* GB free\)"
    assert re.fullmatch(error, outcome.error)
    assert worker_processes() == workers


@pytest.mark.ray
def test_a_trial_is_ended_with_its_worker_whatever_that_does(opened: Opened) -> None:
    executor, plan = opened.executor, opened.plan
    (first,) = placements(plan, 1)
    executor.submit(first)
    stuck = begun(executor)
    stuck.suspend()
    executor.end(first.trial.trial_id, "no report")
    outcome = until(executor, Outcome)
    assert (outcome.status, outcome.lost, outcome.phase, outcome.error) == ("stalled", "", "training", "no report")
    assert outcome.peak_bytes
    assert end_soon(stuck.pid)
    executor.end(first.trial.trial_id, "it has ended")
    assert executor.poll(0) == []


@pytest.mark.ray
def test_a_warm_worker_that_dies_unnoticed_costs_the_next_trial_no_attempt(opened: Opened) -> None:
    executor, plan = opened.executor, opened.plan
    (placement,) = placements(plan, 1)
    for died in ("process", "worker"):
        executor.submit(placement)
        process = begun(executor)
        assert until(executor, Outcome).status == "completed"
        (idle,) = worker_processes()
        (process if died == "process" else idle).send_signal(signal.SIGKILL)
        executor.submit(placement)
        assert until(executor, Outcome).status == "completed"


@pytest.mark.ray
def test_nothing_of_a_local_ray_listens_beyond_the_loopback_address(opened: Opened) -> None:
    executor, plan = opened.executor, opened.plan
    executor.submit(placements(plan, 1)[0])
    until(executor, Outcome)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    addresses = [
        connection
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN"
    ]
    assert len(addresses) > 3
    assert {connection.laddr.ip.removeprefix("::ffff:") for connection in addresses} == {"127.0.0.1"}
    commands = " ".join(part for process in processes for part in process.cmdline())
    assert "raylet" in commands
    assert not re.search(r"dashboard\.py|log_monitor\.py|monitor\.py", commands), "services that nobody uses"


@pytest.mark.ray
def test_a_local_ray_lies_in_a_private_folder_and_takes_only_its_own_token(opened: Opened) -> None:
    import ray

    folder = Path(ray._private.worker._global_node.get_temp_dir_path())
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    asks = "import ray, sys; ray._raylet.GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)"
    command = [sys.executable, "-c", asks, ray.get_runtime_context().gcs_address]
    assert subprocess.run(command, check=False).returncode == 0
    for name, value in (("RAY_AUTH_TOKEN", "0" * 64), ("RAY_AUTH_MODE", "disabled")):
        variables = {**os.environ, name: value}
        refused = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert "AuthenticationError" in refused.stderr


@pytest.mark.ray
def test_a_trial_that_is_stopped_by_a_signal_goes_on_at_the_epoch_that_it_had_reached(opened: Opened) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert opened.interrupt.requested
    assert signal.alarm(0) == 0, "Ray's own handler would end this process in three seconds"
    stop_and_go_on(opened.executor, opened.plan, opened.checkpoints)


def test_what_ray_says_of_a_loss_becomes_a_status(gpu_16gb: Device) -> None:
    import ray

    monitor = "1 worker(s) were killed due to the node running low on memory. Memory on the node was 2 GB"
    for error in (ray.exceptions.OutOfMemoryError(monitor), ray.exceptions.RayActorError(error_msg=monitor)):
        assert classify_loss(error, kernel_killed=False)[:2] == ("out_of_memory", "worker")
    died = ray.exceptions.ActorDiedError()
    assert classify_loss(died, kernel_killed=True)[:2] == ("out_of_memory", "worker")
    assert classify_loss(died, kernel_killed=False)[:2] == ("failed", "worker")
    assert classify_loss(died, kernel_killed=False, at_cap=True)[:2] == ("out_of_memory", "worker")
    unavailable = ray.exceptions.ActorUnavailableError("no answer", b"1" * 16)
    assert classify_loss(unavailable, kernel_killed=False, at_cap=True)[:2] == ("failed", "worker")
    lost = classify_loss(died, kernel_killed=False, how="its process was killed by SIGABRT")
    assert lost[2] == "the worker was lost: its process was killed by SIGABRT"
    exited = ray.exceptions.RayActorError(error_msg="The actor is dead. Worker exits with an exit code 4.")
    assert classify_loss(exited, kernel_killed=False)[2] == "the worker was lost: its process ended with exit code 4"
    for last, status in (
        ("torch.OutOfMemoryError: CUDA out of memory.", "out_of_memory"),
        ("torch.AcceleratorError: CUDA error: out of memory", "out_of_memory"),
        ("ValueError: 3", "failed"),
    ):
        text = f"Traceback\n  File\n{last}\nCompile with `TORCH_USE_CUDA_DSA`.\n"
        made = ray.exceptions.RayActorError(error_msg=text, actor_init_failed=True)
        assert classify_loss(made, kernel_killed=True) == (status, "", f"the worker was lost: {last}")
        assert not ran_out_of_ram(gpu_16gb, made)


def test_a_gpus_worker_that_was_killed_for_memory_was_short_of_ram(gpu_16gb: Device) -> None:
    import ray

    died = ray.exceptions.ActorDiedError()
    assert ran_out_of_ram(gpu_16gb, died) and not ran_out_of_ram(ram_device(), died)
    text = "Traceback\n  File\nRuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory\n"
    assert ran_out_of_ram(gpu_16gb, ray.exceptions.RayActorError(error_msg=text, actor_init_failed=True))
    placement = replace(place(Toy(), {}, limit_bytes=GB), device=gpu_16gb)
    report = EpochReport("t001", 1, 3, memory_bytes=GB // 2, host_peak_bytes=3 * GB)
    run = RunningTrial(placement, POOL, cast(Any, None), fresh=True, started=0.0, report=report)
    lost = run.lost("out_of_memory", "worker", "killed", peak_bytes=2 * GB, short_of="RAM")
    assert (lost.peak_bytes, lost.host_peak_bytes, lost.result.short_of) == (None, 3 * GB, "RAM")


def test_a_stalled_trial_has_the_peaks_of_its_last_report(gpu_16gb: Device) -> None:
    run = RunningTrial(replace(place(Toy(), {}), device=gpu_16gb), POOL, cast(Any, None), fresh=True, started=0.0)
    assert run.stalled("no report").peak_bytes is None
    run.report = EpochReport("t001", 1, 3, memory_bytes=GB // 2, host_peak_bytes=3 * GB)
    stalled = run.stalled("no report")
    assert (stalled.status, stalled.peak_bytes, stalled.host_peak_bytes) == ("stalled", GB // 2, 3 * GB)


def test_a_loss_before_the_first_report_counts_as_the_workers_if_it_had_run_another_trial() -> None:
    for fresh, lost in ((True, ""), (False, "worker")):
        run = RunningTrial(place(Toy(), {}), POOL, cast(Any, None), fresh=fresh, started=0.0)
        assert run.lost("failed", "", "the worker was lost: KeyError").lost == lost


@pytest.mark.parametrize("closing_all", [False, True])
def test_on_another_node_a_trials_processes_have_ended_before_its_worker_is(
    closing_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    ends = Mock(remote=lambda *process: done.append(process[0]) or "task")
    monkeypatch.setattr("tuner.execution.worker_failures.on_node", lambda function, node: ends)
    monkeypatch.setattr("ray.wait", lambda tasks, **_: done.append(tasks))
    pool = Mock(node_id="other", end=lambda worker: done.append(worker), close=lambda: done.append("worker"))
    run = RunningTrial(place(Toy(), {}), pool, cast(Any, "worker"), True, 0.0, Began("t001", 7, 1))
    if closing_all:
        executor = RayExecutor()
        executor._connection = Mock(owned=False)
        executor._stop_requests = executor._study_files = executor._reservations = Mock()
        executor._watch = Mock(own_node="own", head_answers=True)
        executor._pools, executor._running = {ram_device(): pool}, {cast(Any, "stream"): run}
        executor.close()
    else:
        run.end("own")
    assert done == [7, ["task"], "worker"]


@pytest.mark.parametrize(("peak", "full"), [(None, False), (GB // 2, False), (GB - MB, True)])
def test_a_trial_is_at_its_cap_by_its_last_reported_peak(peak: int | None, full: bool) -> None:
    placement = place(Toy(), {}, limit_bytes=GB)
    assert at_cap(placement, EpochReport("t001", 1, 3, memory_bytes=peak)) is full
    assert not at_cap(placement, None)


def test_never_more_cores_are_reserved_than_a_device_has_or_its_trials_may_use(gpu_16gb: Device) -> None:
    assert bundle_of(gpu_16gb, 99, GB) == {"CPU": 16.0, "GPU": 1.0, "memory": 0.0}
    assert bundle_of(ram_device(), 1, GB) == {"CPU": 1.0, "GPU": 0.0, "memory": float(GB)}


def test_however_many_workers_a_plan_has_they_fit_into_what_is_reserved(gpu_16gb: Device) -> None:
    pool = WorkerPool(gpu_16gb, bundle_of(gpu_16gb, 99, 0), 1, 0, "own", lambda *_: None)
    assert pool.options()["num_gpus"] * 500 <= 1, "Ray would let no more workers start"
    assert pool.options()["num_cpus"] == 0
