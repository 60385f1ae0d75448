"""One process of a user makes its CUDA context at a time, and nobody else can stop that."""

from __future__ import annotations

import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from tests.support.fake_nvml import FakeNvml
from tuner.machine import peak
from tuner.machine.private_folder import locked
from tuner.trial import Device


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / f"tuner-{os.getuid()}"


def test_the_lock_lies_where_no_other_user_can_open_it(folder: Path) -> None:
    with peak._alone(), (folder / "context.lock").open() as lock, pytest.raises(BlockingIOError):
        assert folder.stat().st_mode & 0o077 == 0
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not folder.exists(), "nothing is left"


def test_a_folder_or_a_link_of_somebody_else_is_left_alone(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with peak._alone():
        assert not list(folder.iterdir())
    folder.chmod(0o700)
    (tmp_path / "victim").write_text("kept")
    (folder / "context.lock").symlink_to(tmp_path / "victim")
    with peak._alone():
        assert (tmp_path / "victim").read_text() == "kept"


def test_a_lock_that_is_never_released_is_waited_for_and_then_gone_without(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    began = time.monotonic()
    with (folder / "context.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with peak._alone(0.1):
            assert time.monotonic() - began >= 0.1


def test_many_that_want_the_lock_at_once_have_it_in_turn(folder: Path) -> None:
    def hold() -> None:
        with locked("context.lock", 10.0):
            assert is_locked()
            time.sleep(0.01)

    with ThreadPoolExecutor(16) as threads:  # each has a descriptor of its own, as processes do
        for started in [threads.submit(hold) for _ in range(64)]:
            started.result()


@pytest.fixture
def hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A MIG instance whose driver lists no processes; its used memory grows by 500 bytes with the context."""

    def refuses(handle: object) -> list[object]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    FakeNvml({"GPU-aa": [(1, 0)]}).install(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: ("GPU-aa", 0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", refuses)
    used = iter([100, 600])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(used=next(used)))
    monkeypatch.setattr(peak, "_contexts", {})
    return Device("", "cuda", 0, "", 1000, 1000, 1, "MIG-aa0", instance=0)


def is_locked() -> bool:
    try:
        with locked("context.lock", 0.0):
            return False
    except TimeoutError:
        return True


def test_others_wait_while_a_context_is_measured_and_not_for_the_rehearsal(hidden: Device) -> None:
    seen: list[bool] = []
    look = lambda: seen.append(is_locked())  # noqa: E731
    assert peak.make_cuda_context(hidden, look, first=look) == 500
    assert seen == [True, False]


def test_a_context_that_the_plan_has_measured_is_not_measured_among_others(hidden: Device) -> None:
    seen: list[bool] = []
    look = lambda: seen.append(is_locked())  # noqa: E731
    assert peak.make_cuda_context(replace(hidden, context_bytes=742), look, first=look) == 742
    assert seen == [False, False]
