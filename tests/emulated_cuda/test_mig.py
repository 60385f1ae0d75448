"""A study on the MIG instances of an emulated GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated_cuda import mig_trials
from tests.emulated_cuda.cards import on_cards
from tests.emulated_cuda.studies import Study

pytestmark = pytest.mark.emulated


def test_trials_are_side_by_side_on_instances_each_with_its_own_memory(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    variables = {"EMULATED_MIG": "1", "EMULATED_CUDA_LOG": str(study.log), "XDG_CACHE_HOME": str(tmp_path)}
    environment = on_cards(tmp_path / "cards", sizes=[1500, 1600], **variables, CUDA_VISIBLE_DEVICES="0")
    command = [sys.executable, mig_trials.__file__, str(study.folder)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    told = said.stdout + said.stderr
    first, second, large = sorted(study.attempts, key=lambda line: line["config/mb"])
    assert {first["device"], second["device"]} == {"cuda:0:0", "cuda:0:1"}, told
    assert first["started_at"] < second["ended_at"] and second["started_at"] < first["ended_at"]
    assert [line["status"] for line in (first, second, large)] == ["completed", "completed", "out_of_memory"], told
    # One that ran out of memory is replaced, so that an instance may have had two.
    assert {frozenset(devices) for devices in study.contexts().values()} == {frozenset({0}), frozenset({1})}, told
    assert f" {600 << 20} " not in study.log.read_text(), "it met its cap, and not the end of the instance's memory"
    assert [device["total_bytes"] >> 20 for device in study.plan["devices"]] == [1500, 1600]
