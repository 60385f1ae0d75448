from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integrations.trackers.test_tensorboard import LISTED
from tests.study.test_study import Interrupted, study
from tests.support.attempts import attempt
from tuner.errors import InputError
from tuner.integrations.trackers.base import TrackedStudy, TrackedTrial
from tuner.integrations.trackers.mlflow import MLflow
from tuner.records.epochs import read_epochs
from tuner.trial import Trial

if TYPE_CHECKING:  # collecting the tests is not to take MLflow's seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


class Kept(Interrupted):
    """Keeps a checkpoint after every epoch."""

    def __init__(self) -> None:
        super().__init__(checkpoint_seconds=0)


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
    found = client.search_runs([experiment.experiment_id])
    by_id = {run.data.tags["tuner.trial_id"]: run for run in found}
    assert len(by_id) == len(found)
    return by_id


def steps(uri: str, run: MlflowRun, metric: str) -> dict[int, float]:
    """A metric's values by step; a step that is there twice is an error."""
    history = client_of(uri).get_metric_history(run.info.run_id, metric)
    assert len({each.step for each in history}) == len(history)
    return {each.step: each.value for each in history}


def test_a_store_holds_the_figures_of_the_csv_and_of_every_epoch(tmp_path: Path, uri: str) -> None:
    study(tmp_path / "out", *LISTED, {"name": "bad", "fault": 2}, mlflow=uri)
    found = runs(uri)
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [found[row["trial_id"]].info.status for row in rows] == ["FINISHED", "FINISHED", "FAILED"]
    texts = ("workload", "name", "status", "device", "error")
    for row in rows:
        run = found[row["trial_id"]]
        numbers = {key: value for key, value in row.items() if key not in (*texts, "trial_id", "seed")}
        config = {key.removeprefix("config/"): numbers.pop(key) for key in list(numbers) if key.startswith("config/")}
        told = {key: value for key, value in run.data.metrics.items() if "/" not in key}
        assert told == {key: float(value) for key, value in numbers.items() if value}
        assert run.data.params == {**config, "seed": row["seed"]}
        assert {key: run.data.tags.get(f"tuner.{key}", "") for key in texts} == {key: row[key] for key in texts}
    lines = {line.epoch: line for line in read_epochs(tmp_path / "out" / "epochs.jsonl") if line.trial_id == "t001"}
    for metric in ("val_loss", "train_loss"):
        assert steps(uri, found["t001"], f"epoch/{metric}") == {n: lines[n].metrics[metric] for n in (1, 2, 3)}
    assert steps(uri, found["t001"], "memory/taken_gb") == {n: lines[n].memory_gb for n in (1, 2, 3)}
    assert steps(uri, found["t001"], "memory/share_gb") == {1: 0.1, 2: 0.1, 3: 0.1}


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
    assert after["t001"].info.run_id == before["t001"].info.run_id
    assert [list(steps(uri, after[trial], "epoch/val_loss")) for trial in after] == [[1, 2, 3]] * 3
    assert after["t002"].data.tags["tuner.status"] == "completed"


def test_a_trial_that_goes_on_from_a_checkpoint_keeps_its_run(tmp_path: Path, uri: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *LISTED, executor=Kept, mlflow=uri)
    before = runs(uri)["t002"]
    study(tmp_path / "out", *LISTED, output=None, resume=str(tmp_path / "out"), mlflow=uri)
    after = runs(uri)["t002"]
    assert (before.info.status, after.info.status) == ("KILLED", "FINISHED")
    assert after.info.run_id == before.info.run_id
    assert list(steps(uri, after, "epoch/val_loss")) == [1, 2, 3]


def test_an_attempt_that_trains_epochs_again_replaces_them(tmp_path: Path, uri: str) -> None:
    tracker, trial = MLflow(uri), Trial("t001", "toy", "a", {"lr": 0.1}, 0)
    tracker.connect()
    tracker.open(TrackedStudy("out", "id", tmp_path))
    tracker.begin(TrackedTrial(trial, "cpu", 0, {}))
    for epoch in (1, 2):
        tracker.log("t001", epoch, {"epoch/val_loss": 0.5})
    tracker.begin(TrackedTrial(replace(trial, attempt=2), "cpu", 1, {1: {"epoch/val_loss": 0.5}}))
    for epoch in (2, 3):
        tracker.log("t001", epoch, {"epoch/val_loss": 0.25})
    tracker.end(attempt(trial_id="t001", attempts=2, **{"config/lr": 0.1}))
    (run,) = runs(uri).values()
    assert steps(uri, run, "epoch/val_loss") == {1: 0.5, 2: 0.25, 3: 0.25}
    assert run.info.status == "FINISHED"


def test_a_name_that_mlflow_does_not_take_costs_its_signs_alone(tmp_path: Path, uri: str) -> None:
    for epoch in (0, 1):  # the second goes on with the run
        tracker, trial = MLflow(uri), Trial("t001", "toy", "a", {"lr@0": 0.1}, 0)
        tracker.connect()
        tracker.open(TrackedStudy("out", "id", tmp_path))
        tracker.begin(TrackedTrial(trial, "cpu", epoch, {}))
        tracker.log("t001", epoch + 1, {"epoch/val_recall@10": 0.5})
        tracker.end(attempt(trial_id="t001", **{"config/lr@0": 0.1, "val_recall@10": 0.5}))
    (run,) = runs(uri).values()
    assert steps(uri, run, "epoch/val_recall_10") == {1: 0.5, 2: 0.5}
    assert run.data.metrics["val_recall_10"] == 0.5
    assert run.data.params == {"lr_0": "0.1", "seed": "0"}
    deleted = client_of(uri).search_runs([run.info.experiment_id], run_view_type=2)  # ViewType.DELETED_ONLY
    assert deleted == [], "nor was it made anew"


def test_a_store_that_mlflow_has_no_use_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^mlflow='nonsense://x': cannot be used: .* give a server such as http://"):
        study(tmp_path / "out", *LISTED, mlflow="nonsense://x")
    assert not (tmp_path / "out").exists()


def test_a_server_that_does_not_answer_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^mlflow='http://127.0.0.1:9': nothing answers there \(Connection refused\)"
    ):
        study(tmp_path / "out", *LISTED, mlflow="http://127.0.0.1:9")
    assert not (tmp_path / "out").exists()
