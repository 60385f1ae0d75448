"""Studies with constraints: what is known to break one is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tuner

SPACE = {"hidden": {"logint": [8, 4096]}, "lr": {"uniform": [0.0, 1.0]}}
OPTIONS: dict[str, Any] = {"space": SPACE, "metric": "loss", "direction": "minimize", "in_process": True}
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
    asked = {"search": search, "num_samples": 8, "output": tmp_path / "out"}
    result = tuner.run(train, **kept, **asked, **OPTIONS)
    ran = [row for row in result.trials if row.attempts]
    left_out = [row for row in result.trials if not row.attempts]
    assert len(ran) == 8 and left_out and {row.status for row in left_out} == {"infeasible"}
    assert all(row.error.startswith("not run: parameters is ") for row in left_out)
    assert result.best_config["hidden"] < 200
    assert all(row.metrics["parameters"] <= LIMIT for row in ran)


def test_a_resumed_study_counts_what_was_left_out(tmp_path: Path) -> None:
    kept = {"constraints": f"parameters <= {LIMIT}", "estimate": build, "report": False}
    first = tuner.run(train, search="tpe", num_samples=4, output=tmp_path / "out", **kept, **OPTIONS)
    again = tuner.run(train, resume=tmp_path / "out", num_samples=6, estimate=build, in_process=True, report=False)
    assert [sum(bool(row.attempts) for row in result.trials) for result in (first, again)] == [4, 6]


def test_a_constraint_on_what_is_not_known_before_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tuner.InputError, match="parameters of train is not known before it runs: give estimate"):
        tuner.run(train, num_samples=3, constraints="parameters < 5", output=tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()
