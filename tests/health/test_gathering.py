"""What doctor finds on this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pynvml
import pytest

from tests.support.fake_nvml import FakeNvml
from tuner.health import gathering
from tuner.health.facts import Command, Disk, Gpu
from tuner.machine.holders import Holder

OURS = "#!/venv/bin/python\nfrom tuner.cli.main import main\n"
RAYS = "#!/venv/bin/python\nfrom ray.tune.scripts import cli\n"


@pytest.mark.parametrize(("text", "owner"), [(OURS, "tuner"), (RAYS, "ray"), ("#!/bin/sh\n", "another program")])
def test_a_command_is_told_by_what_its_script_imports(tmp_path: Path, text: str, owner: str) -> None:
    script = tmp_path / "tune"
    script.write_text(text)
    assert gathering._command("tune", lambda name: str(script)) == Command(str(script), owner)
    assert gathering._command("tune", lambda name: None) == Command()


def test_sessions_of_no_process_are_counted_and_an_address_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("session_1", "session_2"):
        (tmp_path / "ray" / name).mkdir(parents=True)
        (tmp_path / "ray" / name / "log").write_bytes(bytes(1000))
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "ray" / "session_2")
    monkeypatch.setattr(gathering, "_ray_processes", lambda: {5: f"raylet --session-dir={tmp_path}/ray/session_2"})
    found = gathering._sessions()
    assert (found.stale, found.stale_bytes, found.processes, found.address) == (1, 1000, (5,), "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address + "\n")
        assert (gathering._sessions().address, gathering._sessions().answers) == (address, True)
    assert gathering._sessions().answers is False


def test_a_folder_in_one_that_may_not_be_searched_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.stat

    def stat(path: str | Path, **options: object) -> os.stat_result:
        if str(path).startswith("/closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return plain("/" if str(path) == "/closed" else path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/closed")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "total used free")(3, 2, 1))
    assert gathering._disk(Path("/closed/in/it")) == Disk("/closed/in/it", 3, 1, writable=False)
    monkeypatch.setenv("RAY_TMPDIR", "/closed/in")
    assert gathering._sessions().stale == 0


def test_gpus_are_told_with_who_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, process = namedtuple("memory", "total free used"), namedtuple("process", "pid usedGpuMemory")

    def handle(index: int) -> tuple[str, int]:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return "GPU-aa", -1

    FakeNvml({"GPU-aa": None, "GPU-bb": None}).install(monkeypatch)
    told = {
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": lambda handle: "H100",
        "nvmlDeviceGetMemoryInfo": lambda handle: memory(80, 30, 50),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process(os.getpid(), 40), process(2**30, None)],
    }
    for name, function in told.items():
        monkeypatch.setattr(pynvml, name, function)
    driver, (gpu, lost) = gathering._gpus()
    assert lost == Gpu(1, "", 0, 0, error="GPU is lost")
    mine, other = gpu.holders
    assert (driver, gpu) == ("570.1", Gpu(0, "H100", 80, 30, (mine, other)))
    assert (mine.pid, mine.held_bytes, bool(mine.name and mine.user)) == (os.getpid(), 40, True)
    assert other == Holder(2**30, "a process that cannot be seen from here", "", None)


def test_mig_instances_stand_for_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml({"GPU-aa": [(1, 0), (2, 0)], "GPU-bb": []}).install(monkeypatch)
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    instances = Gpu(0, name, 10, 9, instance=0), Gpu(0, name, 20, 19, instance=1)
    assert gathering._gpus() == ("570.1", (*instances, Gpu(1, "", 0, 0)))


def test_this_machine_is_looked_at_in_a_process_that_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tuner", "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    found = json.loads(run.stdout)
    assert run.stderr == ""
    assert {"python", "torch", "ray", "memory", "results", "ray's folder", "tuner", "extras"} <= {
        each["check"] for each in found
    }
    assert all(each["remedy"] for each in found if each["level"] != "ok")
    assert run.returncode == any(each["level"] == "problem" for each in found)
    assert list(tmp_path.iterdir()) == []
