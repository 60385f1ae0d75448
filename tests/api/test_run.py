"""The Python call, as a notebook makes it, on a real Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray
import torch

import tuner
from tests.support.toy import Toy
from tuner.api.run import run_given
from tuner.errors import InputError
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.result import StudyResult


def table(seed: int, rows: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user_id": random.choice(["ann", "bob", "cy"], rows),
            "item_id": random.integers(10, 60, rows),
            "rating": random.integers(1, 6, rows),
        }
    )


USERS = pd.DataFrame({"age": [30, 40, 50]}, index=["ann", "bob", "cy"])
ITEMS = pd.DataFrame(np.eye(50), index=range(10, 60))
CONFIGURATIONS = [{"name": "a", "hidden_dim": 4, "epochs": 2}, {"name": "b", "hidden_dim": 8, "epochs": 2}]


@pytest.mark.ray
def test_a_notebook_gets_a_frame_and_its_best_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    frame = tuner.tune_hyperparameters_parallel(
        table(0, 200), table(1, 50), USERS, ITEMS, CONFIGURATIONS, 0.5, 0.5, max_workers=2, output=str(out)
    )
    assert not ray.is_initialized(), "no Ray is left"
    assert (frame.status.tolist(), frame.attrs["folder"]) == (["completed"] * 2, str(out))
    assert frame.val_rmse.is_monotonic_increasing
    written = pd.read_csv(out / "results.csv", keep_default_na=False).set_index("trial_id")
    shown = frame.set_index("trial_id").sort_index().astype(object).fillna("")  # nothing beside a GPU: peak_ram_gb
    pd.testing.assert_frame_equal(shown, written, check_dtype=False)
    assert capfd.readouterr().err == "", "neither Ray's banner nor its warnings show"
    model = tuner.load_best(out)
    file = tuner.load_best(f"{out}/best.pt").state_dict()
    assert all(torch.equal(weight, file[name]) for name, weight in model.state_dict().items())
    assert model(torch.tensor([0, 2]), torch.tensor([4, 0])).shape == (2,)
    assert not model.training


def test_a_notebooks_seeds_share_one_split_and_python_is_known_from_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def run_study(selected: StudySpec, executor: Any = None) -> StudyResult:
        seen.update(vars(selected), data=selected.selections[0].load_data())
        return StudyResult(plan=None, estimates={})  # type: ignore[arg-type]

    monkeypatch.setattr("tuner.api.run.run_study", run_study)
    monkeypatch.setattr("tuner.datasets.ratings.from_tables", lambda *_, seed: seed)
    tuner.tune_hyperparameters_parallel(0, 0, 0, 0, [{}], seed=3, seeds=2, time_limit=60)
    assert (seen["data"], seen["settings"].seeds, seen["settings"].time_limit_seconds) == (3, 2, 60)
    tuner.tune_hyperparameters_parallel(0, 0, 0, 0, [{}], seed=3, split_seed=1)
    assert seen["data"] == 1
    assert seen["from_python"], "texts name parameters"
    tuner.run(limit=1)
    assert seen["from_python"]
    run_given(Settings())
    assert not seen["from_python"]


def test_an_id_without_features_is_named(tmp_path: Path) -> None:
    ratings = table(0, 20)
    ratings.loc[3, "user_id"] = "dan"
    with pytest.raises(InputError, match="'dan'"):
        tuner.tune_hyperparameters_parallel(ratings, table(1, 5), USERS, ITEMS, CONFIGURATIONS)


def test_best_weights_that_are_missing_or_not_ours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        tuner.load_best(tmp_path)
    (tmp_path / "best.pt").write_bytes(b"PK not a file of weights")
    with pytest.raises(InputError, match="cannot be loaded"):
        tuner.load_best(tmp_path)
    torch.save({"workload": "graphsage", "config": {}, "weights": {}}, tmp_path / "best.pt")
    with pytest.raises(InputError, match="cannot be loaded"):
        tuner.load_best(tmp_path)


def test_weights_that_would_run_code_are_refused(tmp_path: Path) -> None:
    torch.save({"workload": print}, tmp_path / "best.pt")
    with pytest.raises(InputError, match="more than weights and plain values"):
        tuner.load_best(tmp_path)


@pytest.mark.ray
def test_studies_run_on_the_ray_that_a_notebook_has_started(tmp_path: Path, shared_ray: None) -> None:
    here: dict[str, Any] = {"device": "cpu", "gpu_memory_buffer_gb": 0, "model_memory_gb": 0.5, "max_workers": 2}
    for name in ("first", "second"):
        found = tuner.run(Toy, config=[{"epochs": 1}, {"epochs": 2}], output=tmp_path / name, **here)
        assert [row["status"] for row in found.rows] == ["completed"] * 2
        assert found.folder == tmp_path / name
    assert ray.is_initialized()
