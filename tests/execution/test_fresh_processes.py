"""What a trial finds of the one before: nothing in a process of its own, and no setting elsewhere."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import tuner
from tests.support.processes import end_soon
from tests.support.ray_trials import until
from tuner.decisions.plan import make_plan
from tuner.errors import InputError
from tuner.execution.child_executor import ChildExecutor
from tuner.execution.executor import Executor, in_fresh_processes
from tuner.execution.in_process import InProcessExecutor
from tuner.execution.ray_executor import RayExecutor
from tuner.machine.devices import ram_device
from tuner.machine.processes import SHARED
from tuner.objective import Objective
from tuner.study.executors import _check_hidden
from tuner.trial import GB, Device, MemoryEstimate, Outcome, Placement, Trial
from tuner.workloads.program import Function
from tuner.workloads.task import TrainingTask

DEVICE = ram_device()
SETTINGS = "dtype grad threads deterministic folder environment numpy collector stdout path"
LISTED = set(SETTINGS.split())
UNLISTED = {"module", "class", "data"}


class Module:
    """In the place of a class of the user's."""

    attribute = 0


def found(data: dict[str, int]) -> dict[str, object]:
    """The state of this process and thread, as far as trials change it here."""
    return {
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "folder": os.getcwd(),
        "environment": os.environ.get("TUNER_TEST_STATE"),
        "numpy": np.geterr()["divide"],
        "collector": gc.isenabled(),
        "stdout": isinstance(sys.stdout, int),
        "path": "nowhere" in sys.path,
        "module": hasattr(os, "tuner_test_state"),
        "class": Module.attribute,
        "data": data["value"],
    }


def changes_all(config: dict[str, Any], data: dict[str, int]) -> None:
    """Reports which parts of the state differ from those of an untouched process, and changes all of them."""
    untouched = {
        **{"dtype": torch.float32, "grad": True, "threads": 1, "deterministic": False, "folder": config["folder"]},
        **{"environment": None, "numpy": "warn", "collector": True, "stdout": False, "path": False},
        **{"module": False, "class": 0, "data": 0},
    }
    tuner.report({"loss": 0, **{name: float(value != untouched[name]) for name, value in found(data).items()}})
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    os.chdir("/")
    os.environ["TUNER_TEST_STATE"] = "1"
    np.seterr(all="ignore")
    gc.disable()
    sys.stdout = 3
    sys.path.append("nowhere")
    os.tuner_test_state = 1  # type: ignore[attr-defined]
    Module.attribute = data["value"] = 1
    tuner.report({"loss": 0, **{name: float(value != untouched[name]) for name, value in found(data).items()}})


def opened(executor: Executor, function: Any, folder: Path, data: object = None) -> Executor:
    plan = make_plan([DEVICE], [GB], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    task = TrainingTask(Function(function), data, objective=Objective("loss"))
    executor.open({task.workload.name: task}, plan, folder)
    return executor


def placed(trial_id: str, function: Any, attempt: int = 1, threads: int = 1, **config: Any) -> Placement:
    named = Trial(trial_id, Function(function).name, trial_id, config, seed=0, attempt=attempt)
    return Placement(named, MemoryEstimate.given(1.0), DEVICE, 1.0, GB, threads)


def trial(executor: Executor, function: Any, number: int, **given: Any) -> Outcome:
    executor.submit(placed(f"t{number:03d}", function, **given))
    outcome: Outcome = until(executor, Outcome)
    return outcome


def inherited(executor: Executor, folder: Path) -> set[str]:
    """What a second trial finds changed by the first."""
    with closing(opened(executor, changes_all, folder, {"value": 0})):
        first, second = (trial(executor, changes_all, number, folder=os.getcwd()) for number in (1, 2))
    assert (first.status, second.status) == ("completed", "completed"), first.error or second.error
    return {name for name in LISTED | UNLISTED if second.metrics[name]}


def test_a_trial_in_a_process_of_its_own_finds_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    assert inherited(ChildExecutor(), tmp_path) == set()


@pytest.mark.ray
def test_a_trial_on_ray_finds_nothing_of_an_earlier_one(tmp_path: Path, shared_ray: None) -> None:
    assert inherited(RayExecutor(), tmp_path) == set()


def test_in_a_warm_process_settings_are_put_back_and_objects_are_not(tmp_path: Path) -> None:
    assert inherited(ChildExecutor(fresh_processes="off"), tmp_path) == UNLISTED


def test_in_this_process_settings_are_put_back_for_trials_and_the_study(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    before = found({"value": 0})
    assert inherited(InProcessExecutor(), tmp_path) == UNLISTED
    del os.tuner_test_state  # type: ignore[attr-defined]
    Module.attribute = 0
    assert found({"value": 0}) == before


def process(config: dict[str, Any]) -> None:
    tuner.report(loss=0, own=os.getpid(), parent=os.getppid(), threads=torch.get_num_threads())
    if config.get("fatal"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if config.get("closes"):
        os.closerange(0, 300)
    if config.get("hangs"):
        os.system(f"sleep 60 & echo $! > {config['hangs']}")
        time.sleep(60)


def test_a_trial_that_crashes_takes_neither_the_others_nor_their_start(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), process, tmp_path)) as executor:
        first, crashed = trial(executor, process, 1), trial(executor, process, 2, fatal=1)
        closed = trial(executor, process, 3, closes=1)
        second = trial(executor, process, 4, attempt=2)
    assert first.metrics["parent"] == second.metrics["parent"]
    assert first.metrics["own"] != second.metrics["own"]
    assert (crashed.status, crashed.error) == ("failed", "the trial's process was killed by SIGSEGV")
    assert closed.status == "failed", "it cannot say why"


def test_a_trial_computes_with_its_threads_and_what_it_leaves_is_ended_when_it_hangs(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), process, tmp_path)) as executor:
        assert trial(executor, process, 1, threads=2).metrics["threads"] == 2
        executor.submit(placed("t002", process, hangs=str(tmp_path / "pid")))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            executor.poll(0.1)
        executor.end("t002", "no report")
        assert until(executor, Outcome).status == "stalled"
        assert end_soon(int((tmp_path / "pid").read_text()))


def leaves_a_process(config: dict[str, Any]) -> None:
    other = os.fork()
    if not other:
        signal.pause()
    tuner.report(loss=0, other=other)


def test_what_a_trial_has_started_ends_with_it(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), leaves_a_process, tmp_path)) as executor:
        pid = int(trial(executor, leaves_a_process, 1).metrics["other"])
        trial(executor, leaves_a_process, 2)
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


_held: list[SharedMemory] = []  # until its process ends


def leaves_all(config: dict[str, Any]) -> None:
    _held.append(SharedMemory(create=True, size=8, name=config["name"]))
    apart = subprocess.run(["sh", "-c", "setsid sleep 60 > /dev/null & echo $!"], stdout=subprocess.PIPE, check=True)
    tuner.report(loss=0, apart=int(apart.stdout))


@pytest.mark.parametrize("fresh", ["on", "off"])
def test_a_session_of_its_own_and_shared_memory_end_with_a_trials_process(fresh: Any, tmp_path: Path) -> None:
    name, folder = f"tuner_test_{os.getpid()}_{fresh}", tmp_path / "checkpoints"
    folder.mkdir()
    with closing(opened(ChildExecutor(fresh_processes=fresh), leaves_all, folder)) as executor:
        pid = int(trial(executor, leaves_all, 1, name=name).metrics["apart"])
        if fresh == "on":
            trial(executor, leaves_all, 2, name=f"{name}_2")
            assert end_soon(pid), "before the study ends"
    assert end_soon(pid)
    began = time.monotonic()
    while list(SHARED.glob(f"{name}*")) and time.monotonic() - began < 5:
        time.sleep(0.02)
    assert not list(SHARED.glob(f"{name}*"))


class SetsHandlers:
    """Handles signals from when it is unpickled, as some modules do from their import."""

    def __reduce__(self) -> Any:
        return _handled, ()


def _handled() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: tuner.report(loss=7))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def asks_itself(config: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    tuner.report(loss=8, ignored=signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)


def test_a_trial_has_the_signal_handlers_of_its_modules(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), asks_itself, tmp_path, SetsHandlers())) as executor:
        ended = trial(executor, asks_itself, 1)
    assert (ended.status, ended.metrics["loss"], ended.epochs) == ("completed", 7, 2)


class StartsAThread:
    """Starts a thread as it is unpickled, as some libraries do as they are imported."""

    def __reduce__(self) -> Any:
        return _started, ()


def _started() -> None:
    threading.Thread(target=signal.pause, daemon=True).start()


def test_where_a_library_has_threads_each_trial_has_a_new_process(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), process, tmp_path, StartsAThread())) as executor:
        first, second = trial(executor, process, 1), trial(executor, process, 2)
    assert first.metrics["parent"] == second.metrics["parent"], "each a fork of the process without threads"
    assert first.metrics["own"] != second.metrics["own"]
    assert "imported everything again: a module has threads" in second.error


def test_the_reason_why_no_trial_can_begin_is_told(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), process, tmp_path, Unpackable())) as executor:
        failed = trial(executor, process, 1)
    assert failed.error == "the trial's process could not begin: ImportError: left at home"


def test_a_file_with_the_name_of_a_standard_module_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "types", "tuner"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the module that was meant')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with closing(opened(ChildExecutor(), process, tmp_path)) as executor:
        assert trial(executor, process, 1).status == "completed"
    with pytest.raises(InputError, match=r"tuner\.py hides the package tuner from Ray's workers: rename it, or give"):
        _check_hidden()


class Unpackable:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ImportError("left at home")


def test_gpus_keep_warm_processes_unless_asked(gpu_16gb: Device) -> None:
    plans = [
        make_plan([device], [GB], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
        for device in (gpu_16gb, DEVICE)
    ]
    answers = [[in_fresh_processes(choice, plan, {}) for choice in ("auto", "on", "off")] for plan in plans]
    assert answers == [[False, True, False], [True, True, False]]


class StartsAProcess:
    """Starts a process as it is unpickled, as a module may do that gives all trials a server."""

    def __reduce__(self) -> Any:
        return subprocess.Popen, (["sleep", "60"],)


def finds_a_process(config: dict[str, Any], data: subprocess.Popen[bytes]) -> None:
    tuner.report(loss=0, pid=data.pid, runs=not _has_ended(data.pid))
    os.fork() or signal.pause()


def _has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_modules_have_started_for_all_trials_ends_with_the_study_alone(tmp_path: Path) -> None:
    with closing(opened(ChildExecutor(), finds_a_process, tmp_path, StartsAProcess())) as executor:
        found = [trial(executor, finds_a_process, number).metrics for number in (1, 2)]
    assert [metrics["runs"] for metrics in found] == [1, 1]
    assert end_soon(int(found[0]["pid"]))


@pytest.mark.parametrize("runs", ["_serve(pipe, None, cuda=False)", "_run_here(pipe, type('T', (), {}))"])
def test_a_process_whose_study_is_gone_without_reading_says_nothing(runs: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    make = f"from tuner.execution.child_main import {runs.partition('(')[0]}, Connection"
    code = f"{make}; pipe = Connection({theirs.fileno()}); pipe.send(0); {runs}"
    with subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
    ) as process:
        theirs.close()
        assert ours.poll(60)
        ours.close()  # so the process hears ECONNRESET in place of the end of the file
        assert process.stderr and process.stderr.read() == b""
