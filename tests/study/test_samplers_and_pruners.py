"""Every sampler and pruner of Optuna runs once in a study of a function, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
from tests.support.commands import refused
from tuner.errors import InputError
from tuner.search.optuna_names import SAMPLERS, SEARCHES

SPACE: dict[str, Any] = {
    "x": {"uniform": [0, 1], "step": 0.25},
    "kind": {"choice": ["a", "b"]},
    "y": {"int": [1, 2], "if": {"kind": "b"}},
}
COMPARED: dict[str, Any] = {"metric": "score", "direction": "minimize"}
CALL: dict[str, Any] = {
    **COMPARED,
    **{"in_process": True, "device": "cpu", "gpu_memory_buffer_gb": 0, "memory_gb": 0.1, "report": False, "seed": 3},
}


def train(config: dict[str, Any]) -> None:
    """Reports four times how far x is from 0.25, the third time with a worse score than before."""
    for epoch, more in enumerate((1.0, 0.5, 0.75, 0.25), 1):
        tuner.report(score=(config["x"] - 0.25) ** 2 + more, epoch=epoch)


def searched(folder: Path, number: int | None = 12, **options: Any) -> Any:
    return tuner.run(train, space=SPACE, num_samples=number, output=folder, **CALL, **options)


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_runs(search: str, tmp_path: Path) -> None:
    result = searched(tmp_path / "out", None if search == "grid" else 12, search=search)
    assert {row.status for row in result.trials} == {"completed"}
    assert len(result.trials) == (15 if search == "grid" else 12)
    assert ("y" in result.best_config) == (result.best_config["kind"] == "b")
    different = {str(dict(row.config)) for row in result.trials}
    assert len(different) == len(result.trials) or search in SAMPLERS.keys() - {"random", "bruteforce"}


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("asha", {"min_resource": 2}),
        ("successive-halving", {}),
        ("hyperband", {"max_resource": 4}),
        ("median", {"n_startup_trials": 2}),
        ("percentile", {"percentile": 25.0, "n_startup_trials": 2}),
        ("patient", {"patience": 0}),
        ("patient", {"patience": 0, "wrapped_pruner": "median"}),
        ("threshold", {"upper": 1.1}),
        ("wilcoxon", {"p_threshold": 0.4}),
    ],
)
def test_every_scheduler_ends_bad_trials(scheduler: str, options: dict[str, Any], tmp_path: Path) -> None:
    result = searched(tmp_path / "out", search="random", scheduler=scheduler, scheduler_options=options)
    pruned = [row for row in result.trials if row.status == "pruned"]
    assert {row.status for row in result.trials} <= {"completed", "pruned"}
    name = "asha" if scheduler == "successive-halving" else scheduler
    assert all(row.error.startswith(f"{name} ended it after {row.epochs} epoch") for row in pruned)
    assert pruned
    assert len(pruned) < 12 or scheduler == "patient", "which by itself ends each trial that gets worse"


def test_objects_of_optuna_are_used_as_they_are_and_given_again_to_resume(tmp_path: Path) -> None:
    given = {"search": optuna.samplers.RandomSampler(seed=1), "scheduler": optuna.pruners.ThresholdPruner(upper=1.01)}
    result = searched(tmp_path / "out", 4, **given)
    assert any(row.error.startswith("ThresholdPruner ended it") for row in result.trials)
    needed = "its search RandomSampler and scheduler ThresholdPruner must be given again"
    with pytest.raises(InputError, match=needed):
        tuner.run(train, resume=tmp_path / "out", num_samples=6)
    result = tuner.run(train, resume=tmp_path / "out", num_samples=6, **given)
    assert len({row.config["x"] for row in result.trials}) > 1 and len(result.trials) == 6


def test_options_of_another_scheduler_do_not_follow_to_a_resumed_study(tmp_path: Path) -> None:
    options = {"scheduler": "threshold", "scheduler_options": {"upper": 2.0}}
    searched(tmp_path / "out", 2, search="random", **options)
    result = tuner.run(train, resume=tmp_path / "out", num_samples=6, scheduler="asha")
    assert any(row.error.startswith("asha ended it") for row in result.trials)


def test_wrong_options_are_told_in_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "space.yaml").write_text("lr: {loguniform: [0.001, 0.1]}\n")
    study = f"--space {tmp_path}/space.yaml --num-samples 2 --output {tmp_path}/out".split()
    for words, message in {
        "--search tpe --search-option n_startup_trials=many": "--search-option n_startup_trials=many: must be a",
        "--search gp --search-option startup=3": "--search-option startup=3: GPSampler has no option 'startup'",
        "--scheduler percentile": "PercentilePruner needs percentile: give --scheduler-option percentile=…",
    }.items():
        assert message in refused(capsys, *study, *words.split())
    assert not (tmp_path / "out").exists()


def test_a_plan_is_of_the_configurations_of_a_space(tmp_path: Path) -> None:
    space = {"hidden_dim": {"choice": [8, 16, 32]}}
    common: dict[str, Any] = {"space": space, "model_memory_gb": 1.0, "device": "cpu"}
    assert len(tuner.plan("graphsage", **common).requests) == 3
    forecast = tuner.plan("graphsage", **common, search="tpe", num_samples=2)
    assert len(forecast.requests) == 2 and forecast.searched.startswith("tpe: planned by random points")
    with pytest.raises(InputError, match="TPESampler has no option 'gama'"):
        tuner.plan("graphsage", **common, search="tpe", num_samples=2, search_options={"gama": 3})
    with pytest.raises(InputError, match="num_samples=2: has no effect without space or search"):
        tuner.plan(num_samples=2)
