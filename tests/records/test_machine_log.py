"""The load of the machine in ``machine.jsonl``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pynvml
import pytest

from tests.support.fake_nvml import FakeNvml
from tuner.records.machine_log import GpuLine, LoadMeter, MachineLine, read_machine, recording, to_line


def test_a_study_leaves_lines_of_its_machines_load(tmp_path: Path) -> None:
    with recording(tmp_path / "machine.jsonl", [], seconds=0.01):
        while len(read_machine(tmp_path / "machine.jsonl")) < 2:
            time.sleep(0.01)
    first, second, *_ = read_machine(tmp_path / "machine.jsonl")
    assert first.at <= second.at and 0 <= second.busy <= 1 and second.ram_gb > 0


def test_a_file_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    looked, line = Event(), MachineLine(at=1.0, busy=0.5, ram_gb=1.0)
    with recording(tmp_path / "no" / "machine.jsonl", [], lambda: looked.set() or line, 0.01):
        assert looked.wait(60)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("fault", [lambda: Event().wait(), lambda: 1 / 0], ids=["hangs", "fails"])
def test_a_study_ends_whatever_looking_at_the_machine_does(tmp_path: Path, fault: Callable[[], MachineLine]) -> None:
    looked = Event()
    with recording(tmp_path / "machine.jsonl", [], lambda: looked.set() or fault(), 0.01):
        assert looked.wait(60)
    assert read_machine(tmp_path / "machine.jsonl") == []


def test_a_gpu_has_its_label_and_its_memory_in_gb() -> None:
    line = MachineLine(at=10.0, busy=0.123, ram_gb=3.0, gpus={"cuda:0": GpuLine(used_gb=1.0, busy=0.5)})
    gpus = {"cuda:0": {"busy": 0.5, "used_gb": 1.0}}
    assert to_line(line) == {"at": 10.0, "busy": 0.123, "ram_gb": 3.0, "gpus": gpus}


def test_of_a_mig_instance_only_the_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_supported(_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    FakeNvml({"GPU-aa": [(1, 0), (2, 0)]}).install(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", not_supported)
    line = LoadMeter({"MIG-aa1": "cuda:0:1"}).look()
    assert to_line(line)["gpus"] == {"cuda:0:1": {"used_gb": 0.0}}


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "machine.jsonl"
    file.write_text(
        '{"at": 1, "busy": 0.5, "ram_gb": 2, "gpus": {"cuda:0": {"busy": 1, "used_gb": 3}}}\n{"at": 2, "bu'
    )
    assert read_machine(file) == [
        MachineLine(at=1.0, busy=0.5, ram_gb=2.0, gpus={"cuda:0": GpuLine(busy=1.0, used_gb=3.0)})
    ]
    assert read_machine(tmp_path / "none") == []


def test_without_a_driver_only_the_machine_itself_is_looked_at() -> None:
    assert LoadMeter({"GPU-none": "cuda:0"}).look().gpus == {}
