"""Studies with several objectives: ranks by front, samplers of Optuna, and what they refuse."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import nn

import tuner
import tuner.optuna
from tests.support.commands import refused
from tuner.errors import InputError

NAMES = ("x0", "x1", "x2")
BOTH: dict[str, Any] = {"metric": ["f1", "f2"], "direction": ["min", "min"]}
QUICK: dict[str, Any] = {"in_process": True, "memory_gb": 4, "report": False}
OPTIONS: dict[str, Any] = {"space": {name: {"uniform": [0.0, 1.0]} for name in NAMES}, **BOTH, **QUICK}


def zdt1(x: dict[str, float]) -> tuple[float, float]:
    """Zitzler, Deb and Thiele 2000."""
    g = 1 + 9 * sum(x[name] for name in NAMES[1:]) / (len(NAMES) - 1)
    return x["x0"], g * (1 - math.sqrt(x["x0"] / g))


def train(config: dict[str, float]) -> None:
    f1, f2 = zdt1(config)
    tuner.report(f1=f1, f2=f2)


def reports_one(config: dict[str, float]) -> None:
    tuner.report(f1=config["x0"])


def build(config: dict[str, Any]) -> Any:
    model = nn.Linear(64, config["hidden"])
    return model, None, lambda: model(torch.randn(8, 64)).square().mean()


def shrinks(config: dict[str, Any]) -> None:
    tuner.report(loss=1 / config["hidden"])


def objective(trial: optuna.Trial) -> tuple[float, float]:
    return zdt1({name: trial.suggest_float(name, 0, 1) for name in NAMES})


def dominates(one: Any, other: Any) -> bool:
    return all(one.metrics[key] <= other.metrics[key] for key in ("f1", "f2")) and one.metrics != other.metrics


def test_trials_are_ranked_by_fronts(tmp_path: Path) -> None:
    result = tuner.run(train, search="nsgaii", num_samples=20, output=tmp_path / "out", **OPTIONS)
    fronts = [int(row.metrics["front"]) for row in result.trials]
    assert fronts == sorted(fronts) and fronts[0] == 1 and fronts[-1] > 1
    best = result.best_trials
    assert len(best) == fronts.count(1)
    assert not any(dominates(row, known) for row in result.trials for known in best)
    assert result.best["f1"] == min(row.metrics["f1"] for row in result.trials)
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = {row["trial_id"]: row["front"] for row in csv.DictReader(file)}
    assert rows == {row.trial_id: str(int(row.metrics["front"])) for row in result.trials}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sampler_suggests_what_optuna_alone_would(seed: int, tmp_path: Path) -> None:
    result = tuner.run(
        train, search="nsgaii", search_options={"population_size": 8}, num_samples=24, seed=seed,
        output=tmp_path / "out", **OPTIONS,
    )  # fmt: skip
    alone = optuna.create_study(
        directions=["minimize"] * 2, sampler=optuna.samplers.NSGAIISampler(seed=seed, population_size=8)
    )
    alone.optimize(objective, n_trials=24)
    found = sorted((row.trial_id, row.metrics["f1"], row.metrics["f2"]) for row in result.trials)
    assert [values for _, *values in found] == [trial.values for trial in alone.trials]


def test_a_figure_that_is_known_before_can_be_an_objective(tmp_path: Path) -> None:
    result = tuner.run(
        shrinks, space={"hidden": {"choice": [8, 16, 32]}}, metric=["loss", "parameters"], direction=["min", "min"],
        estimate=build, in_process=True, report=False, output=tmp_path / "out",
    )  # fmt: skip
    assert {row.metrics["parameters"] for row in result.best_trials} == {65 * 8, 65 * 16, 65 * 32}
    with pytest.raises(InputError, match="metric='parameters': parameters of train is not known before it runs"):
        tuner.run(train, num_samples=2, output=tmp_path / "no", **{**OPTIONS, "metric": ["f1", "parameters"]})


@pytest.mark.usefixtures("writes_pages")
def test_a_study_goes_on_with_its_objectives(tmp_path: Path) -> None:
    tuner.run(train, search="tpe", num_samples=4, output=tmp_path / "out", **OPTIONS)
    assert json.loads((tmp_path / "out" / "study.json").read_text())["further"] == {"train": {"f2": "minimize"}}
    again = tuner.run(train, resume=tmp_path / "out", num_samples=8, in_process=True, report=True)
    assert len(again.trials) == 8 and again.best_trials
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Fronts" in page and "Hypervolume" in page
    with pytest.raises(InputError, match="further metrics is"):
        tuner.run(train, resume=tmp_path / "out", num_samples=9, metric="f1", direction="min", in_process=True)


def test_a_users_own_study_is_shown_by_its_front(tmp_path: Path) -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    result = tuner.optuna.optimize(study, objective, n_trials=6, output=tmp_path / "out", **QUICK)
    numbers = {int(row.name.removeprefix("trial-")) for row in result.best_trials}
    assert numbers == {trial.number for trial in study.best_trials}


def test_it_is_exported_with_all_values(tmp_path: Path) -> None:
    tuner.run(train, search="random", num_samples=4, output=tmp_path / "out", **OPTIONS)
    url = f"sqlite:///{tmp_path}/optuna.db"
    tuner.export(tmp_path / "out", optuna=url)
    study = optuna.load_study(study_name="out", storage=url)
    assert study.metric_names == ["f1", "f2"]
    assert sorted(trial.values for trial in study.trials) == sorted(
        [row["f1"], row["f2"]] for row in tuner.results(tmp_path / "out").to_dict("records")
    )


def test_a_trial_without_one_of_the_metrics_ends_the_study(tmp_path: Path) -> None:
    result = tuner.run(reports_one, search="tpe", num_samples=4, output=tmp_path / "out", **OPTIONS)
    assert "reports_one reported f1, best_epoch, but not 'f2'" in result.trials[0].error
    assert [row.status for row in result.trials].count("failed") == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scheduler": "asha"}, "scheduler='asha': judges by one metric, not by 2 metrics"),
        ({"scheduler": "pbt"}, "scheduler='pbt': judges by one metric, not by 2 metrics"),
        ({"search": "cmaes"}, "search='cmaes': takes one metric, not 2 metrics"),
        ({"target": 0.5}, "target=0.5: is of one metric, and there are 2 metrics"),
        ({"seeds": 2}, "seeds=2: trials are ranked by fronts of 2 metrics, not by means"),
        (
            {"direction": "min"},
            "direction='minimize': it is given 1 times, and there are 2 metrics: give one for each",
        ),
        ({"metric": ["parameters", "f1"]}, "metric='parameters': is known before a trial runs"),
        ({"metric": ["f1", "f1"]}, "metric='f1': is given twice"),
    ],
)
def test_what_has_no_meaning_with_several_objectives_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        tuner.run(train, num_samples=2, output=tmp_path / "out", **{**OPTIONS, **change})
    assert not (tmp_path / "out").exists()


def test_patience_ends_a_study_whose_front_stays(tmp_path: Path) -> None:
    configs = [{"x0": 0.5, "x1": 0.0, "x2": 0.0}, {"x0": 0.1, "x1": 0.0, "x2": 0.0}]
    worse = [{"x0": 0.5 + number / 100, "x1": 1.0, "x2": 1.0} for number in range(1, 6)]
    result = tuner.run(train, config=configs + worse, patience=3, output=tmp_path / "out", **BOTH, **QUICK)
    assert [row.status for row in result.trials].count("completed") == 5


def test_the_terminal_takes_several_metrics_and_constraints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.json"
    space.write_text(json.dumps({"hidden_dim": {"choice": [16, 32]}}))
    common = ["--space", str(space), "--metric", "val_rmse", "--metric", "parameters", "--direction", "min"]
    assert "it is given 1 times, and there are 2 metrics" in refused(capsys, *common)
    wrong = ["--space", str(space), "--constraint", "parameters < 5", "--constraint", "nonsense"]
    assert "--constraint nonsense: expected a name" in refused(capsys, *wrong)


def ranked(config: dict[str, int]) -> None:
    f1, f2 = [(0.5, 3.0), (0.5, 1.0), (0.9, 0.5), (0.1, math.nan), (0.2, math.inf)][config["row"]]
    tuner.report(f1=f1, f2=f2, checkpoint=dict(config))


def test_the_best_is_the_first_ranked_also_where_values_are_equal_missing_or_infinite(tmp_path: Path) -> None:
    configs = [{"row": place} for place in range(5)]
    result = tuner.run(ranked, config=configs, output=tmp_path / "out", **BOTH, **QUICK)
    assert [row.status for row in result.trials] == ["completed"] * 5
    assert (result.best_config, result.best_value) == (result.trials[0].config, 0.5) == ({"row": 1}, 0.5)
    assert tuner.load_best(tmp_path / "out") == {"row": 1}
    assert "best: f1 0.5000, f2 1.0000" in repr(result)
