from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integrations.trackers.test_tensorboard import LISTED
from tests.study.test_study import Interrupted, study
from tests.support.attempts import attempt
from tuner.errors import InputError
from tuner.integrations.trackers.mlflow import MLflow
from tuner.records.epochs import read_epochs
from tuner.trial import GB, Trial

if TYPE_CHECKING:  # collecting the tests is not to take MLflow's seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file store, as a database's tables take seconds to make."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def client_of(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def runs(uri: str) -> dict[str, MlflowRun]:
    """The runs of the only study, by trial id; a trial with two is an error."""
    client = client_of(uri)
    experiment = client.get_experiment_by_name("out")
    tracked = client.search_runs([experiment.experiment_id])
    by_id = {run.data.tags["tuner.trial_id"]: run for run in tracked}
    assert len(by_id) == len(tracked)
    return by_id


def steps(uri: str, run: MlflowRun, metric: str) -> dict[int, float]:
    """A metric's values by step; a step that is there twice is an error."""
    history = client_of(uri).get_metric_history(run.info.run_id, metric)
    assert len({point.step for point in history}) == len(history)
    return {point.step: point.value for point in history}


def test_a_store_holds_the_figures_of_the_csv_and_of_every_epoch(tmp_path: Path, uri: str) -> None:
    study(tmp_path / "out", *LISTED, {"name": "bad", "fault": 2}, mlflow=uri)
    tracked = runs(uri)
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [tracked[row["trial_id"]].info.status for row in rows] == ["FINISHED", "FINISHED", "FAILED"]
    texts = ("workload", "name", "status", "device", "error")
    for row in rows:
        run = tracked[row["trial_id"]]
        numbers = {key: value for key, value in row.items() if key not in (*texts, "trial_id", "seed")}
        config = {key.removeprefix("config/"): numbers.pop(key) for key in list(numbers) if key.startswith("config/")}
        told = {key: value for key, value in run.data.metrics.items() if "/" not in key}
        assert told == {key: float(value) for key, value in numbers.items() if value}
        assert run.data.params == {**config, "seed": row["seed"]}
        assert {key: run.data.tags.get(f"tuner.{key}", "") for key in texts} == {key: row[key] for key in texts}
    lines = {line.epoch: line for line in read_epochs(tmp_path / "out" / "epochs.jsonl") if line.trial_id == "t001"}
    for metric in ("val_loss", "train_loss"):
        assert steps(uri, tracked["t001"], f"epoch/{metric}") == {n: lines[n].metrics[metric] for n in (1, 2, 3)}
    assert steps(uri, tracked["t001"], "memory/taken_gb") == {n: lines[n].memory_bytes / GB for n in (1, 2, 3)}
    assert steps(uri, tracked["t001"], "memory/share_gb") == {1: 0.1, 2: 0.1, 3: 0.1}


def test_a_study_that_is_gone_on_with_has_every_trial_and_epoch_once(tmp_path: Path, uri: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *LISTED, {"name": "d"}, executor=Interrupted, mlflow=uri)
    before = runs(uri)
    ended = {"t001": "FINISHED", "t002": "KILLED", "t003": "KILLED"}
    assert {trial: run.info.status for trial, run in before.items()} == ended
    study(tmp_path / "out", *LISTED, {"name": "d"}, output=None, resume=str(tmp_path / "out"), mlflow=uri)
    after = runs(uri)
    assert {trial: run.info.status for trial, run in after.items()} == dict.fromkeys(
        ["t001", "t002", "t003"], "FINISHED"
    )
    assert after["t001"].info.run_id == before["t001"].info.run_id, "it had ended"
    assert [list(steps(uri, after[trial], "epoch/val_loss")) for trial in after] == [[1, 2, 3]] * 3
    assert after["t002"].data.tags["tuner.status"] == "completed"


def begin_trial(uri: str, folder: Path) -> MLflow:
    tracker = MLflow(uri)
    tracker.connect()
    tracker.open("out", "id", folder)
    tracker.begin(Trial("t001", "toy", "a", {"lr@0": 0.1}, 0))
    return tracker


def test_a_trial_that_begins_again_continues_its_run(tmp_path: Path, uri: str) -> None:
    tracker = begin_trial(uri, tmp_path)
    tracker.log("t001", 1, {"epoch/val_recall@10": 0.5})
    tracker.end(attempt(trial_id="t001", status="interrupted", **{"config/lr@0": 0.1}))
    tracker = begin_trial(uri, tmp_path)
    assert runs(uri)["t001"].info.status == "RUNNING"
    tracker.log("t001", 2, {"epoch/val_recall@10": 0.25})
    tracker.end(attempt(trial_id="t001", attempts=2, **{"config/lr@0": 0.2, "val_recall@10": 0.25}))
    (run,) = runs(uri).values()
    assert steps(uri, run, "epoch/val_recall_10") == {1: 0.5, 2: 0.25}, "MLflow takes no @"
    assert (run.info.status, run.data.metrics["val_recall_10"]) == ("FINISHED", 0.25)
    assert run.data.params == {"lr_0": "0.1", "seed": "0"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nonsense://x", "give a server such as http://"),
        ("http://127.0.0.1:9", "Connection refused"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_before_anything_is_written(
    wrong: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"^mlflow='{wrong}': cannot be used: .*{said}"):
        study(tmp_path / "out", *LISTED, mlflow=wrong)
    assert not (tmp_path / "out").exists()
