"""Whether a study uses MPS, and what its plan says of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support import fake_mps
from tests.support.commands import refused
from tuner.decisions.packing import Plan, make_plan
from tuner.errors import InputError
from tuner.machine.mps import MpsDaemons
from tuner.reporting.console import make_console
from tuner.study.mps import check_mps, mps_line, start_mps
from tuner.trial import GB, Device


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's program is on the path, or what stands in its place; no daemon runs."""
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


@pytest.fixture
def gpu(gpu_16gb: Device) -> Device:
    return replace(gpu_16gb, uuid="GPU-1")


def plan(*devices: Device, workers: int = 4) -> Plan:
    return make_plan(devices, [GB] * 4, packing="per-trial", buffer_bytes=0, max_workers=workers)


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("changed", "workers", "said"),
    [
        ({}, 4, "on for cuda:0: a daemon of the study's for each"),
        ({}, 1, "off: no GPU has several workers"),
        ({"instance": 1}, 4, "off: it is for whole GPUs of this machine"),
        ({"node_id": "other"}, 4, "off: it is for whole GPUs of this machine"),
        ({"kind": "cpu"}, 4, "off: there is no GPU"),
    ],
)
def test_mps_is_for_gpus_of_this_machine_with_several_workers(
    changed: dict[str, Any], workers: int, said: str, gpu: Device
) -> None:
    assert mps_line("auto", plan(replace(gpu, **changed), workers=workers)).startswith(f"mps        {said}")


@pytest.mark.usefixtures("program")
def test_a_daemon_of_the_users_is_used_and_none_is_started(
    gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setattr(MpsDaemons, "start", lambda self, devices: pytest.fail("started"))
    assert mps_line("on", plan(gpu)) == f"mps        on for cuda:0: your own daemon in {tmp_path}"
    assert start_mps("on", MpsDaemons(), plan(gpu), make_console()) == {"GPU-1": str(tmp_path)}
    assert (mps_line("off", plan(gpu)), start_mps("off", MpsDaemons(), plan(gpu), make_console())) == ("", {})


@pytest.mark.usefixtures("program")
def test_a_daemon_that_does_not_start_is_a_line(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = {gpu: "it ended with 1"}
    monkeypatch.setattr(MpsDaemons, "start", lambda self, devices: reason)
    assert start_mps("on", MpsDaemons(), plan(gpu), make_console()) == {}
    assert "mps        off for cuda:0: it ended with 1" in "".join(capsys.readouterr())


def test_on_is_refused_where_mps_cannot_be_had_and_auto_goes_on(
    gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with pytest.raises(InputError, match="mps='on': nvidia-cuda-mps-control of NVIDIA's driver is not on the path"):
        check_mps("on", [gpu])
    with pytest.raises(InputError, match="mps='on': there is no GPU to train on: give mps='auto'"):
        check_mps("on", [replace(gpu, kind="cpu")])
    check_mps("auto", [gpu])
    assert mps_line("auto", plan(gpu)) == "mps        off: nvidia-cuda-mps-control is not on the path"


def test_a_study_that_asks_for_mps_in_vain_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "study"
    line = refused(capsys, "--mps", "on", "--device", "cpu", "--output", str(output))
    assert line == "error: --mps on: there is no GPU to train on: give --mps auto, or leave it out"
    with pytest.raises(InputError, match="in_process and mps were both given"):
        tuner.run(mps="on", in_process=True, output=output)
    assert not output.exists()
