"""MPS daemons with a program in the place of NVIDIA's: how they start, and that none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import fake_mps
from tests.support.processes import runs
from tuner.machine.holders import with_descendants
from tuner.machine.mps import MpsClients, MpsDaemons, users_daemon
from tuner.trial import MB, Device, Outcome, Trial

STUDY = """
import os, sys, time
from tuner.machine.mps import MpsDaemons
from tuner.trial import Device
daemons = MpsDaemons()
daemons.start([Device("", "cuda", 0, "T4", 1, 1, 1, "GPU-1")])
if not os.fork():
    time.sleep(60)  # holds the other end of the guard's input
print(daemons._guard.pid, flush=True)
sys.stdin.read()
"""


FORKED = """
import os, time
from pathlib import Path
from tuner.machine.mps import MpsDaemons
from tuner.trial import Device
daemons = MpsDaemons()
daemons.start([Device("", "cuda", 0, "T4", 1, 1, 1, "GPU-1")])
folder = Path(daemons.pipes["GPU-1"]).parents[1]
if not (fork := os.fork()):
    time.sleep(60)
daemons.close()
os.kill(fork, 9)
print(folder.exists())
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """The fake program is on the path; returns what it has noted under a word."""
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_MPS_LOG", str(tmp_path / "log"))

    def noted(word: str) -> list[Any]:
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        return [line if word == "daemon" else line[word] for line in lines if word in line]

    return noted


def gpus(gpu: Device, *uuids: str) -> list[Device]:
    return [replace(gpu, index=index, uuid=uuid) for index, uuid in enumerate(uuids)]


def wait_for_end(*pids: int) -> None:
    deadline = time.monotonic() + 20
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(runs, pids))


def folder(daemons: MpsDaemons, uuid: str) -> Path:
    return Path(daemons.pipes[uuid]).parents[1]


def test_each_gpu_has_a_private_daemon_that_ends_with_its_server(
    gpu_16gb: Device, log: Callable[[str], list[Any]]
) -> None:
    with closing(MpsDaemons()) as daemons:
        assert daemons.start(gpus(gpu_16gb, "GPU-1", "GPU-2")) == {}
        used = folder(daemons, "GPU-1")
        assert used == folder(daemons, "GPU-2") and daemons.pipes["GPU-1"] != daemons.pipes["GPU-2"]
        assert used.stat().st_mode & 0o077 == 0
        one, two = log("daemon")
        assert {daemon["variables"]["CUDA_VISIBLE_DEVICES"] for daemon in (one, two)} == {"GPU-1", "GPU-2"}
        assert set(one["modes"] + two["modes"]) == {oct(0o40700)}
        servers = log("server")
        assert len(servers) == 2 and all(map(runs, servers))
        assert f"start_server -uid {os.getuid()}" in log("command")
    assert log("command").count("quit") == 2
    assert not any(map(runs, [one["daemon"], two["daemon"], *servers]))
    assert not used.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_is_killed_leaves_no_daemon_and_no_folder(number: int, log: Callable[[str], list[Any]]) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STUDY], stdin=pipe, stdout=pipe, start_new_session=True) as study:
        assert study.stdout is not None
        guard = int(study.stdout.readline())
        (daemon,), (server,) = log("daemon"), log("server")
        assert {daemon["daemon"], server} < with_descendants([study.pid])[0], "what they hold is the study's"
        study.send_signal(number)
        study.wait()
        wait_for_end(guard, daemon["daemon"], server)
        os.killpg(study.pid, signal.SIGKILL)  # the fork
    assert not Path(daemon["variables"]["CUDA_MPS_PIPE_DIRECTORY"]).parents[1].exists()


@pytest.mark.usefixtures("log")
def test_a_fork_of_the_study_does_not_keep_the_guard_from_ending() -> None:
    said = subprocess.run([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert said == "False\n", "else it had to be killed, and its folder stays"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("fails", "ended with 1: Another instance"),
        ("hangs", "did not answer in time"),
        ("serverless", "started no server in time: Failed to start"),
    ],
)
def test_a_daemon_that_does_not_start_is_given_up(
    mode: str, reason: str, gpu_16gb: Device, log: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", mode)
    with closing(MpsDaemons()) as daemons:
        (said,) = daemons.start(gpus(gpu_16gb, "GPU-1"), 0.5).values()
        assert reason in said
        assert daemons.pipes == {}
        (daemon,) = log("daemon")
        assert not runs(daemon["daemon"]), "it is not kept until the study ends"


def test_a_daemon_that_does_not_obey_is_killed_with_its_server(
    gpu_16gb: Device, log: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "stays")
    with closing(MpsDaemons()) as daemons:
        daemons.start(gpus(gpu_16gb, "GPU-1"))
        (daemon,), (server,) = log("daemon"), log("server")
    assert not any(map(runs, [daemon["daemon"], server]))


def test_what_is_there_already_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert users_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == "", "nothing listens there"
    (tmp_path / "control").touch()
    assert users_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == str(tmp_path)
    monkeypatch.setattr(Path, "stat", lambda self: SimpleNamespace(st_uid=os.getuid() + 1))
    assert users_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == "", "another user's"


def test_a_clients_limit_is_in_whole_mebibytes_and_not_below_its_share() -> None:
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": "/p"}
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=901M"}
    assert MpsClients("/p").variables(900 * MB + 1) == {**pipes, **limit}
    assert MpsClients("/p", limited=False).variables(900 * MB + 1) == pipes
    assert MpsClients().variables(900 * MB + 1) == {}


@pytest.mark.parametrize(
    ("status", "error", "lost", "left"),
    [
        ("failed", "CUDA error: MPS server is not ready to accept new MPS client requests", "worker", True),
        ("failed", "AcceleratorError: CUDA error: an illegal memory access was encountered Se…", "worker", True),
        ("stalled", "no report", "", True),
        ("failed", "ValueError: no such column", "", False),
        ("out_of_memory", "CUDA out of memory. Tried to allocate 2 GiB", "", False),
    ],
)
def test_a_clients_fatal_error_is_that_of_all_and_ends_mps_on_the_gpu(
    status: Any, error: str, lost: str, left: bool
) -> None:
    clients = MpsClients("/p")
    clients.add("client", 100 * MB)
    outcome = Outcome(Trial("t", "toy", "t", {}, 0), status, error=error)
    assert clients.judge("another process", outcome) is outcome
    judged = clients.judge("client", outcome)
    assert (judged.lost, "run without MPS" in judged.error) == (lost, left)
    assert clients.may_keep("client") != left and clients.may_keep("another process")
    assert (clients.variables(1) == {"CUDA_MPS_PIPE_DIRECTORY": os.devnull}) == left, "nor of the user's own daemon"
    if left:
        assert clients.judge("client", replace(outcome, status="stalled")).error == error, "it is said once"
