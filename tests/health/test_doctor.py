"""What doctor says of a machine; most of the machine is made up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from tests.support.fake_nvml import FakeNvml
from tuner.health import doctor
from tuner.health.doctor import Finding, findings_text
from tuner.trial import GB

Usage = namedtuple("Usage", "total used free")


def only(check: Any) -> Finding:
    """The only finding of a check."""
    (found,) = check()
    assert isinstance(found, Finding)
    return found


def with_torch(monkeypatch: pytest.MonkeyPatch, build: str | None, seen: int, usable: int) -> None:
    """A torch of this build that sees so many of the driver's GPUs."""
    torch = SimpleNamespace(version=SimpleNamespace(cuda=build), cuda=SimpleNamespace(device_count=lambda: seen))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "cuda_devices", lambda: (None,) * usable)


@pytest.mark.parametrize(
    ("build", "seen", "usable", "visible", "level", "said"),
    [
        (None, 0, 0, None, "ok", "for the CPU"),
        ("12.8", 1, 1, None, "ok", "for CUDA 12.8, sees 1 GPU"),
        (None, 0, 1, None, "warning", "install a build for CUDA"),
        ("12.8", 0, 1, None, "problem", "the driver has 1: the driver is too old"),
        ("12.8", 0, 0, "7", "warning", "CUDA_VISIBLE_DEVICES=7 hides all GPUs: unset it"),
    ],
)
def test_torch_is_compared_with_the_driver(
    build: str | None,
    seen: int,
    usable: int,
    visible: str | None,
    level: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_torch(monkeypatch, build, seen, usable)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = only(doctor._torch)
    assert (found.check, found.level) == ("torch", level)
    assert said in f"{found.text}: {found.remedy}"


def test_a_torch_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = only(doctor._torch)
    assert found.level == "problem"
    assert found.text.startswith("cannot be imported: ")


def with_nvml(
    monkeypatch: pytest.MonkeyPatch, free: int, total: int, processes: tuple[tuple[int, int | None], ...] = ()
) -> None:
    """An NVML with a GPU of this memory, held by these processes."""
    FakeNvml({"GPU-aa": None}).install(monkeypatch)
    process = namedtuple("process", "pid usedGpuMemory")
    told = {
        "nvmlDeviceGetName": lambda handle: "H100",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=total, free=free, used=total - free),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process(*holder) for holder in processes],
    }
    for name, function in told.items():
        monkeypatch.setattr(pynvml, name, function)


@pytest.mark.parametrize(
    ("free", "level", "remedy"),
    [
        (79, "ok", ""),
        (10, "warning", "a study gets what is free; end what holds the rest"),
        (0, "problem", "end what holds its memory, or hide this GPU by CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_is_told_with_its_free_memory_and_who_holds_it(
    free: int, level: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_nvml(monkeypatch, free * GB, 80 * GB, ((os.getpid(), 2 * GB), (2**30, None)))
    (gpu,) = doctor._gpus()
    assert (gpu.check, gpu.level, gpu.remedy) == ("cuda:0", level, remedy)
    assert gpu.text.startswith(f"H100, {free}.00 of 80.00 GB free; held: 2.00 GB by ")
    assert gpu.text.endswith(f"memory by a process that cannot be seen from here (process {2**30})")


def test_a_lost_gpu_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(index: int) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    FakeNvml({"GPU-aa": None}).install(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lost)
    (gpu,) = doctor._gpus()
    assert (gpu.level, gpu.text) == ("problem", "the driver does not report its memory: GPU is lost")


def test_mig_instances_stand_for_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml({"GPU-aa": [(1, 0), (2, 0)], "GPU-bb": []}).install(monkeypatch)
    *instances, empty = doctor._gpus()
    assert [finding.check for finding in instances] == ["cuda:0:0", "cuda:0:1"]
    assert (empty.check, empty.level, empty.remedy[:31]) == ("cuda:1", "warning", "make one by nvidia-smi mig -cgi")


def test_old_sessions_of_ray_are_counted_while_no_ray_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in ("session_1", "session_2"):
        (tmp_path / "ray" / name).mkdir(parents=True)
        (tmp_path / "ray" / name / "log").write_bytes(bytes(1000))
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "ray" / "session_2")
    running: list[Any] = []
    monkeypatch.setattr(psutil, "process_iter", lambda names: running)
    _, sessions = doctor._ray(stale_bytes=1000)
    assert (sessions.level, sessions.text) == ("warning", f"2 old sessions with 0.00 GB in {tmp_path}/ray")
    assert sessions.remedy == f"rm -r {tmp_path}/ray/session_*"
    running.append(SimpleNamespace(pid=5, info={"name": "raylet"}))
    assert [finding.text for finding in doctor._ray()][1:] == ["Ray is running (pid 5)"]


@pytest.mark.parametrize(("total", "free", "level"), [(64, 1, "ok"), (2, 2, "problem"), (64, 0, "problem")])
def test_memory_is_a_problem_where_no_trial_has_room(total: int, free: int, level: str) -> None:
    found = only(lambda: doctor._memory(lambda: (total * GB, free * GB)))
    assert found.level == level
    assert f"{free}.00 of {total}.00 GB free" in found.text
    assert found.remedy.startswith("end other programs" if level != "ok" else "")


def test_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(GB, GB // 2, GB // 2))
    found = only(doctor._shared_memory)
    assert (found.level, found.remedy[:20]) == ("warning", "start the container ")


@pytest.mark.parametrize(("total", "free", "level"), [(100, 50, "ok"), (100, 0.1, "problem"), (100, 3, "warning")])
def test_a_disk_with_little_room_is_told(
    total: float, free: float, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(total * GB, 0, free * GB))
    found = doctor._disk("results", tmp_path / "new", "make room")
    assert (found.level, found.remedy) == (level, "make room" if level != "ok" else "")


def test_a_folder_in_one_that_may_not_be_searched_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.stat

    def stat(path: str | Path, **options: object) -> os.stat_result:
        if str(path).startswith("/closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return plain("/" if str(path) == "/closed" else path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/closed")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(3, 2, 1))
    found = doctor._disk("cache", Path("/closed/in/it"), "set another", worst="warning")
    assert found == Finding("cache", "warning", "/closed/in/it: cannot be written", "set another")


def test_a_folder_that_ray_cannot_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("a" * 100)))
    unused, used = list(doctor._disks())[2:]
    assert (unused.level, used.level) == ("warning", "ok")
    assert "its path is too long for Ray's sockets" in unused.text and "RAY_TMPDIR" in unused.remedy


@pytest.mark.parametrize(
    ("script", "level", "said"),
    [
        ("#!/venv/bin/python\nfrom tuner.cli.main import main\n", "ok", "is this one"),
        ("#!/bin/sh\n", "warning", "is another program"),
        (None, "ok", "is not on the path"),
    ],
)
def test_a_command_is_told_by_what_its_script_imports(
    script: str | None, level: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tuner"
    program.write_text(script or "")
    monkeypatch.setattr(shutil, "which", lambda name: str(program) if script else None)
    found = only(doctor._command)
    assert found.level == level and said in found.text


def test_the_text_has_remedies_below_their_lines_and_a_count() -> None:
    said = findings_text([Finding("a", "ok", "fine"), Finding("b", "problem", "broken", "mend it")])
    assert said == "ok       a: fine\nproblem  b: broken\n         → mend it\n1 problem, no warnings"


def test_this_machine_is_looked_at_in_a_process_that_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tuner", "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    found = json.loads(run.stdout)
    assert run.stderr == ""
    checks = {finding["check"] for finding in found}
    assert {"python", "torch", "ray", "memory", "results", "ray's folder", "tuner"} <= checks
    assert all(finding["remedy"] for finding in found if finding["level"] != "ok")
    assert run.returncode == any(finding["level"] == "problem" for finding in found)
    assert list(tmp_path.iterdir()) == []
