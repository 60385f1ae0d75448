"""Trials in a process beside the study: what happens when it hangs, dies or is left alone."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import tuner
from tests.support.processes import end_soon
from tests.support.ray_trials import until
from tuner.decisions.plan import make_plan
from tuner.execution.child_executor import ChildExecutor
from tuner.execution.worker import TrialOptions
from tuner.machine.devices import ram_device
from tuner.objective import Objective
from tuner.trial import GB, Began, EpochReport, MemoryEstimate, Outcome, Placement, Trial
from tuner.workloads.program import Function
from tuner.workloads.task import TrainingTask

DRIVER = """
import os, subprocess, sys, time, tuner
def train(config):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open("pid", "w").write(str(other.pid))
    tuner.report(loss=os.getpid())
    time.sleep(60)
if __name__ == "__main__":
    tuner.run(train, metric="loss", direction="min", memory_gb=1, gpu_memory_buffer_gb=0, output="out", device="cpu")
"""


def begun(
    function: Callable[[dict[str, Any]], None], folder: Path, data: object = None, **options: Any
) -> ChildExecutor:
    """An executor that runs a trial of this function."""
    executor = ChildExecutor(**options)
    plan = make_plan([ram_device()], [GB], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    task = TrainingTask(Function(function), data, objective=Objective("loss"))
    executor.open({task.workload.name: task}, plan, folder)
    trial = Trial("t001", task.workload.name, "one", {}, seed=0)
    executor.submit(Placement(trial, MemoryEstimate.given(1.0), ram_device(), 1.0, GB, 1))
    return executor


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def outcome(executor: ChildExecutor) -> Outcome:
    with closing(executor):
        while True:
            for event, _ in executor.poll(1.0):
                if isinstance(event, Outcome):
                    return event


def test_a_trial_is_ended_with_all_that_it_has_started_whatever_it_does(tmp_path: Path) -> None:
    def hangs(config: dict[str, Any]) -> None:
        other = subprocess.Popen(["sleep", "60"], start_new_session=True)
        tuner.report(loss=1, other=other.pid)
        ctypes.PyDLL(None).sleep(60)  # type: ignore[attr-defined]

    executor = begun(hangs, tmp_path)
    began = until(executor, Began)
    while (report := until(executor, EpochReport)).epoch == 0:
        pass
    executor.end("t001", "no report")
    ended = outcome(executor)
    assert (ended.status, ended.lost, ended.epochs, ended.error) == ("stalled", "", 1, "no report")
    assert end_soon(began.pid, int(report.metrics["other"]))


def test_a_signal_is_told_and_the_trial_is_tried_again(tmp_path: Path) -> None:
    ended = outcome(begun(lambda config: os.kill(os.getpid(), signal.SIGSEGV), made(tmp_path / "checkpoints")))
    assert (ended.status, ended.lost) == ("failed", "worker")
    assert ended.error == "the trial's process was killed by SIGSEGV"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="tensors are sent by content")
def test_a_process_that_ends_by_itself_is_told_and_leaves_no_copy_of_the_data(tmp_path: Path) -> None:
    folder = made(tmp_path / "checkpoints")
    with closing(begun(lambda config: os._exit(3), folder, data=torch.ones(2**19))) as executor:
        ended = until(executor, Outcome)
        assert (ended.lost, ended.error) == ("", "the trial's process ended with exit code 3")
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if "memfd:tuner" in link]


@pytest.mark.parametrize(
    ("number", "kills", "status"), [(9, 1, "out_of_memory"), (9, 0, "failed"), (11, 1, "failed")]
)
def test_a_process_that_a_signal_has_killed_is_a_lost_worker_whatever_for(
    number: int, kills: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter((0, kills))
    monkeypatch.setattr("tuner.execution.child.oom_kills", lambda: next(counts))
    ended = outcome(begun(lambda config: os.kill(os.getpid(), number), tmp_path))
    assert (ended.status, ended.lost) == (status, "worker")


def hang() -> None:
    """In the place of an import that never ends."""
    time.sleep(60)


class Hangs:
    """Hangs as it is unpickled."""

    def __reduce__(self) -> Any:
        return hang, ()


def test_a_process_that_hangs_before_its_trial_begins_is_ended_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.execution.child_executor.START_SECONDS", 1)
    executor = begun(lambda config: None, tmp_path, data=Hangs())
    ended = outcome(executor)
    assert (ended.status, ended.lost, ended.phase) == ("failed", "worker", "start")
    assert ended.error == "the trial's process did not start within 1 s"
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in alive if "tuner.execution.preload_main" in child.cmdline()]


def test_a_thread_for_which_no_memory_is_left_under_the_cap_is_out_of_memory(tmp_path: Path) -> None:
    def fills(config: dict[str, Any]) -> None:
        held = []
        with suppress(MemoryError):
            while True:
                held.append(bytearray(2**20))
        del held[-4:]
        threading.Thread(target=print).start()

    ended = outcome(begun(fills, tmp_path))
    assert (ended.status, ended.error) == ("out_of_memory", "RuntimeError: can't start new thread")


def test_what_a_trial_prints_is_in_its_log_even_if_it_is_killed(tmp_path: Path) -> None:
    def prints(config: dict[str, Any]) -> None:
        print("to stdout")
        logging.warning("to stderr")
        os.kill(os.getpid(), signal.SIGKILL)

    logs = tmp_path / "logs"
    for attempt in (1, 2):
        outcome(begun(prints, made(tmp_path / "checkpoints")))
        assert (logs / "t001.log").read_text() == "to stdout\nWARNING:root:to stderr\n" * attempt
    assert list(logs.iterdir()) == [logs / "t001.log"], "an empty one of the process is not kept"
    assert TrialOptions(checkpoints=tmp_path / "none").log("t001") is None, "as on another node"


def test_the_log_of_a_trial_keeps_its_end_and_closing_ends_the_process_and_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.machine.processes.LOG_BYTES", 8)

    def starts(config: dict[str, Any]) -> None:
        print("0123456789abc")
        tuner.report(loss=0)
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        tuner.report(loss=os.getpid(), other=other.pid)
        time.sleep(60)

    with closing(begun(starts, made(tmp_path / "checkpoints"))) as executor:
        while (report := until(executor, EpochReport)).epoch < 2:
            pass
    assert (tmp_path / "logs" / "t001.log").read_text() == "[earlier output was removed]\nabc\n"
    assert end_soon(*(int(report.metrics[name]) for name in ("loss", "other")))


def test_a_killed_study_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(Path(tuner.__file__).parents[1])}
    driver = subprocess.Popen([sys.executable, "mine.py"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    while not (tmp_path / "pid").exists() and time.monotonic() - began < 60:
        time.sleep(0.05)
    time.sleep(0.5)
    children = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert len(children) == 4, "the process that imports, a fork for trials, the trial, and what it had started"
    assert end_soon(*(child.pid for child in children))
