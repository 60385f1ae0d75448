"""Studies whose best weights could not be kept: the results are, and the end says so."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tests.study.test_study import study
from tuner.execution.in_process import InProcessExecutor
from tuner.machine import safe_files


class LostWeights(InProcessExecutor):
    """The worker dies between its outcome and its weights."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        def fail() -> bytes:
            raise ConnectionError("the worker died")

        return [(event, fail) for event, _ in super().poll(timeout_seconds)]


def test_weights_that_are_lost_do_not_lose_the_result_and_are_told_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = study(tmp_path / "out", {"name": "a"}, {"name": "b"}, executor=LostWeights)
    assert [row["status"] for row in result.rows] == ["completed"] * 2
    assert {row["error"] for row in result.rows} == {"weights not kept: the worker died"}
    assert (result.exit_code, [row.trial_id for row in result.study.unkept]) == (1, ["t001", "t002"])
    told = "best.pt is not of the best trial: the weights of a (t001) and 1 more could not be kept: the worker died"
    assert told in " ".join(capsys.readouterr().out.split())


def test_weights_that_do_not_fit_on_the_disk_cost_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file: Callable[[Path, bytes], None] = safe_files.write_file

    def full(path: Path, content: bytes) -> None:
        if path.name.startswith("best.pt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, content)

    monkeypatch.setattr(safe_files, "write_file", full)
    result = study(tmp_path / "out", {"name": "a"})
    assert [row["error"] for row in result.rows] == ["weights not kept: [Errno 28] No space left on device"]
    assert (result.rows[0]["status"], result.exit_code) == ("completed", 1)


def test_weights_that_cannot_be_written_as_a_file_cost_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpicklable(*_: Any, **__: Any) -> bytes:
        raise pickle.PicklingError("cannot pickle it")

    monkeypatch.setattr("tuner.execution.worker.to_bytes", unpicklable)
    result = study(tmp_path / "out", {"name": "a"})
    assert [row["error"] for row in result.rows] == ["weights not kept: PicklingError: cannot pickle it"]
    assert (result.rows[0]["status"], result.exit_code) == ("completed", 1)


def test_a_functions_checkpoint_that_could_not_be_written_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def train(config: dict[str, Any]) -> None:
        tuner.report({"score": 1.0}, checkpoint={"weights": torch.ones(1)})

    monkeypatch.setattr("tuner.training.program_checkpoints._write", full)
    options = {"metric": "score", "direction": "max", "output": tmp_path / "out", "in_process": True}
    result = tuner.run(train, space={"n": {"choice": [1]}}, **options)
    lost = "weights not kept: checkpoint not written: [Errno 28] No space left on device"
    assert [(row.status, row.error) for row in result.study.unkept] == [("completed", lost)]


def test_weights_of_a_worse_trial_are_not_missed(tmp_path: Path) -> None:
    result = study(tmp_path / "out", {"name": "a"}, {"name": "b", "epochs": 2})
    best, worse = result.trials
    lost = "weights not kept: No space left on device"
    told = replace(result.study, attempts=[best, replace(worse, error=lost)])
    assert replace(result, study=told).exit_code == 0
    assert replace(told, attempts=[replace(best, error=lost), worse]).unkept == [replace(best, error=lost)]
