"""Studies with constraints: what is known to break one is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import tuner
from tuner.decisions.events import Concluded, Ended, Planned
from tuner.decisions.state import State, apply
from tuner.objective import Objective
from tuner.spec.settings import Settings
from tuner.study.pruning import Pruning
from tuner.trial import GB, AttemptResult, MemoryEstimate, Request, Trial

SPACE = {"hidden": {"choice": [2**n for n in range(3, 13)]}, "lr": {"uniform": [0.0, 1.0]}}
QUICK: dict[str, Any] = {"in_process": True, "max_workers": 1}
OPTIONS: dict[str, Any] = {"space": SPACE, "metric": "loss", "direction": "minimize", **QUICK}
LIMIT = 20_000


def build(config: dict[str, Any]) -> Any:
    model = nn.Sequential(nn.Linear(64, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))
    return model, None, lambda: model(torch.randn(8, 64)).square().mean()


def train(config: dict[str, Any]) -> None:
    size = sum(parameter.numel() for parameter in build(config)[0].parameters())
    assert size <= LIMIT, "it was trained in vain"
    tuner.report(loss=1000 / config["hidden"] + config["lr"], ms=config["hidden"] / 100)


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_what_is_known_to_break_a_constraint_is_not_run_and_does_not_count(search: str, tmp_path: Path) -> None:
    kept = {"constraints": [f"parameters <= {LIMIT / 1000}K", "ms < 2"], "estimate": build, "report": False}
    asked = {"search": search, "num_samples": 5, "output": tmp_path / "out"}
    result = tuner.run(train, **kept, **asked, **OPTIONS)
    ran = [row for row in result.trials if row.attempts]
    left_out = [row for row in result.trials if not row.attempts]
    assert len(ran) == 5 and left_out and {row.status for row in left_out} == {"infeasible"}
    assert all(row.error.startswith("not run: parameters is ") for row in left_out)
    assert result.best_config["hidden"] <= 256
    assert all(row.metrics["parameters"] <= LIMIT for row in ran)


def test_a_resumed_study_counts_what_was_left_out(tmp_path: Path) -> None:
    kept = {"constraints": f"parameters <= {LIMIT}", "estimate": build, "report": False}
    first = tuner.run(train, search="tpe", num_samples=2, output=tmp_path / "out", **kept, **OPTIONS)
    again = tuner.run(train, resume=tmp_path / "out", num_samples=3, estimate=build, report=False, **QUICK)
    assert [sum(bool(row.attempts) for row in result.trials) for result in (first, again)] == [2, 3]


def test_a_search_is_told_a_trials_size_as_it_was_estimated_when_it_ran() -> None:
    told: list[Any] = []
    searcher = Mock(tell=lambda *_, excess: told.append(excess))
    settings = Settings(search="tpe", constraints="estimated_gb <= 1")
    now, trial = MemoryEstimate("static", context_bytes=GB), Trial("t001", "toy", "a", {}, 0)
    state = apply(State(), Planned((Request(trial, now, GB),), {}))
    ended = Ended(trial, AttemptResult("completed"), {"loss": 1.0}, estimated_bytes=3 * GB)
    Pruning({"toy": Objective("loss")}, settings, searcher).hear(state, Concluded(ended))
    assert told == [[2.0]]


def test_a_constraint_on_what_is_not_known_before_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tuner.InputError, match="parameters of train is not known before it runs: give estimate"):
        tuner.run(train, num_samples=3, constraints="parameters < 5", output=tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_the_memory_of_a_forward_pass_is_known_before_a_trial_runs(tmp_path: Path) -> None:
    space = {"hidden": {"int": [8, 2**20]}}
    options = {**OPTIONS, "space": space, "num_samples": 3, "search": "tpe", "estimate": build, "report": False}
    result = tuner.run(reports, constraints="inference_gb <= 0.3", output=tmp_path / "out", **options)
    ran = sorted((row.config["hidden"], row.metrics["inference_gb"]) for row in result.trials if row.attempts)
    assert len(ran) == 3 and ran == sorted(ran, key=lambda pair: pair[1]) and ran[-1][1] <= 0.3
    assert any(row.error.startswith("not run: inference_gb is") for row in result.trials)


def test_a_study_of_which_no_trial_can_keep_a_constraint_is_refused(tmp_path: Path) -> None:
    options = {**OPTIONS, "num_samples": 1, "estimate": build, "output": tmp_path / "out"}
    with pytest.raises(tuner.InputError, match=r"no trial keeps all: of \d+, the smallest: parameters is"):
        tuner.run(train, constraints="parameters < 5", **options)
    assert not (tmp_path / "out").exists()


def reports(config: dict[str, Any]) -> None:
    tuner.report(loss=1.0 / config["hidden"])


def test_a_batch_of_a_forward_pass_that_nobody_compares_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        tuner.InputError, match="has no effect where nothing is compared by inference_gb: leave it out"
    ):
        tuner.run(train, num_samples=1, inference_batch=1, output=tmp_path / "out", **OPTIONS)
    options = {**OPTIONS, "num_samples": 1, "estimate": build, "constraints": "inference_gb <= 9"}
    with pytest.raises(tuner.InputError, match="train names no key as its batch size: leave it out"):
        tuner.run(train, inference_batch=1, output=tmp_path / "out", **options)
