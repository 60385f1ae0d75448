from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from tests.study.test_study import Interrupted, study
from tuner.records.epochs import read_epochs
from tuner.trial import GB

LISTED = ({"name": "a"}, {"name": "b c", "lr": 0.01})


def read(folder: Path, trial_id: str) -> Any:
    """A trial's run, by TensorBoard's own reader."""
    (run,) = (folder / "tensorboard").glob(f"{trial_id}-*")
    accumulator = EventAccumulator(str(run))
    accumulator.Reload()
    return accumulator


def curve(run: Any, tag: str) -> dict[int, float]:
    """Values by step; a step that is there twice is an error."""
    points = run.Scalars(tag)
    assert len({point.step for point in points}) == len(points)
    return {point.step: point.value for point in points}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def single(value: Any) -> float:
    """As event files hold it."""
    return float(np.float32(value))


def test_event_files_hold_the_figures_of_the_csv_and_of_every_epoch(tmp_path: Path) -> None:
    study(tmp_path / "out", *LISTED, tensorboard=True)
    lines = read_epochs(tmp_path / "out" / "epochs.jsonl")
    for row in rows(tmp_path / "out"):
        run = read(tmp_path / "out", row["trial_id"])
        for name in ("val_loss", "test_loss", "best_epoch", "duration_s", "peak_memory_gb", "gpu_fraction"):
            assert curve(run, name) == {3: single(row[name])}
        own_lines = {line.epoch: line for line in lines if line.trial_id == row["trial_id"] and line.metrics}
        assert curve(run, "epoch/val_loss") == {
            step: single(own_lines[step].metrics["val_loss"]) for step in (1, 2, 3)
        }
        assert curve(run, "memory/taken_gb") == {
            step: single(own_lines[step].memory_bytes / GB) for step in (1, 2, 3)
        }
        assert list(curve(run, "memory/share_gb").values()) == [single(0.1)] * 3


def test_hparams_has_the_hyperparameters_of_each_trial(tmp_path: Path) -> None:
    study(tmp_path / "out", {"name": "good", "lr": 0.01}, {"name": "bad", "fault": 1}, tensorboard=True)
    for trial_id, lr in (("t001", 0.01), ("t002", 0.1)):
        data = read(tmp_path / "out", trial_id).summary_metadata
        content = data["_hparams_/session_start_info"].plugin_data.content
        hparams = metadata.parse_session_start_info_plugin_data(content).hparams
        assert {key: value.number_value for key, value in hparams.items()} == pytest.approx(
            {"lr": lr, "weight_decay": 0, "epochs": 3, "fault": float(trial_id == "t002"), "seed": 0}
        )


def test_a_study_that_is_gone_on_with_has_every_epoch_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *LISTED, executor=Interrupted, tensorboard=True)
    assert list(curve(read(tmp_path / "out", "t002"), "epoch/val_loss")) == [1]
    study(tmp_path / "out", *LISTED, output=None, resume=str(tmp_path / "out"), tensorboard=True)
    run = read(tmp_path / "out", "t002")
    assert list(curve(run, "epoch/val_loss")) == [1, 2, 3]
    assert curve(run, "test_loss") == {3: single(rows(tmp_path / "out")[1]["test_loss"])}
    assert curve(run, "epoch/train_loss")[1] == single(
        [
            line.metrics["train_loss"]
            for line in read_epochs(tmp_path / "out" / "epochs.jsonl")
            if line.epoch == 1 and line.metrics
        ][-1]
    )
