"""Optimizers, learning rates and patience: by a configuration's keys, and of a workload's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tests.support.own_loop import OwnOptimizer, OwnSchedule
from tests.support.toy import Toy
from tuner.errors import InputError, WorkloadError
from tuner.search.configurations import complete, configurations
from tuner.training.checkpoints import Checkpoint
from tuner.training.loop import Fit, fit
from tuner.training.optimizers import Adam, LearningRates, build_optimizer
from tuner.trial import EpochReport, Trial
from tuner.workloads.base import Split
from tuner.workloads.task import Selection


def trial(workload: Toy, **values: Any) -> Trial:
    return Trial("t001", workload.name, "t", complete({"epochs": 6, **values}, workload.schema), seed=0)


def train(workload: Toy, folder: Path | None = None, **values: Any) -> Any:
    one = trial(workload, **values)
    return fit(workload, one, None, "cpu", Checkpoint(folder, one, every_seconds=0) if folder else None)


def rates(workload: Toy, **values: Any) -> list[list[float]]:
    """The learning rates of each epoch, by group."""
    config = trial(workload, **values).config
    optimizer = build_optimizer(workload, nn.Linear(1, 1), config)
    schedule, found = LearningRates(workload, optimizer, config), []
    for epoch in range(1, int(config["epochs"]) + 1):
        schedule.begin(epoch)
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.end({"val_loss": 1.0})
    return found


@pytest.mark.parametrize(
    ("values", "kind", "state"),
    [
        ({}, Adam, {"step", "exp_avg", "exp_avg_sq"}),
        ({"optimizer": "adamw"}, torch.optim.AdamW, {"step", "exp_avg", "exp_avg_sq"}),
        ({"optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum_buffer"}),
        ({"optimizer": "sgd"}, torch.optim.SGD, set()),
    ],
)
def test_a_configuration_chooses_its_optimizer(values: dict[str, Any], kind: type, state: set[str]) -> None:
    config = trial(Toy(), lr=0.5, weight_decay=0.25, **values).config
    model = nn.Linear(1, 1)
    optimizer = build_optimizer(Toy(), model, config)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert isinstance(optimizer, kind)
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.5, 0.25)
    kept = {name for state in optimizer.state.values() for name, value in state.items() if value is not None}
    assert kept == state


def test_a_configuration_chooses_how_the_learning_rate_falls() -> None:
    assert rates(Toy(), epochs=4, lr=1.0) == [[1.0], [0.75], [0.5], [0.25]]
    assert rates(Toy(), epochs=3, lr=0.5, lr_schedule="constant") == [[0.5]] * 3
    expected = [(1 + math.cos(math.pi * part)) / 2 for part in (0, 0.25, 0.5, 0.75)]
    assert [rate for (rate,) in rates(Toy(), epochs=4, lr=1.0, lr_schedule="cosine")] == pytest.approx(expected)


def test_the_groups_of_an_own_optimizer_keep_their_rates_to_each_other() -> None:
    found = rates(OwnOptimizer(), epochs=2, lr=1.0)
    assert found == [[1.0, 0.01], [0.5, 0.005]]


def test_an_own_schedule_is_stepped_after_each_epoch() -> None:
    found = rates(OwnSchedule("MultiStepLR"), epochs=5, lr=1.0)
    assert [first for first, _ in found] == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01])
    assert [first for first, _ in rates(OwnSchedule("ReduceLROnPlateau"), epochs=3, lr=1.0)] == [1.0, 1.0, 0.1]


WAYS: list[tuple[Toy, dict[str, Any]]] = [
    (Toy(), {"optimizer": "adamw", "lr_schedule": "cosine"}),
    (Toy(), {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05}),
    (Toy(), {"patience": 1, "lr": 2.0}),
    (OwnOptimizer(), {"lr": 0.05}),
    *((OwnSchedule(kind), {}) for kind in ("OneCycleLR", "ReduceLROnPlateau", "MultiStepLR", "SequentialLR")),
]


@pytest.mark.parametrize(("workload", "values"), WAYS)
@pytest.mark.parametrize("epoch", [1, 3, 5])
def test_a_resumed_training_ends_as_if_it_had_not_been_interrupted(
    workload: Toy, values: dict[str, Any], epoch: int, tmp_path: Path
) -> None:
    whole = list(train(workload, **values))
    halved = train(workload, tmp_path, **values)
    epoch = min(epoch, len(whole) - 2)
    assert [next(halved) for _ in range(epoch + 1)] == whole[: epoch + 1]
    halved.close()
    torch.manual_seed(99)
    first, *reports, last = train(workload, tmp_path, **values)
    reports = [report for report in reports if not report.again]
    assert (first.epoch, reports) == (epoch, whole[epoch + 1 : -1])
    assert last.metrics == whole[-1].metrics
    assert all(torch.equal(last.weights[name], value) for name, value in whole[-1].weights.items())


class Listed(Toy):
    """A toy whose metric is listed, epoch by epoch."""

    name: ClassVar[str] = "listed"

    def __init__(self, *values: float) -> None:
        self.values = iter(values)

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return {"loss": next(self.values) if split == "validation" else 0.0}


@pytest.mark.parametrize(
    ("patience", "values", "stopped", "best"),
    [
        (0, (3, 2, 2, 2, 2, 2), 6, 2),
        (2, (3, 2, 2, 2, 2, 2), 4, 2),
        (2, (3, 2, 4, 1, 1, 1), 6, 4),
        (1, (3, math.nan), 2, 1),
    ],
)
def test_patience_ends_a_training_that_gets_no_better(
    patience: int, values: tuple[float, ...], stopped: int, best: int
) -> None:
    *_, report, result = train(Listed(*values), patience=patience)
    assert isinstance(report, EpochReport) and isinstance(result, Fit)
    assert (report.epoch, result.metrics["best_epoch"], result.metrics["test_loss"]) == (stopped, best, 0.0)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optimizer", "lion", r"optimizer = 'lion' is not allowed \(allowed: adam, adamw, sgd\)"),
        ("lr_schedule", "step", r"lr_schedule = 'step' is not allowed \(allowed: linear, constant, cosine\)"),
        ("momentum", 1, r"momentum = 1 is out of range \(allowed: a number from 0 to 0\.9999\)"),
        ("patience", -1, "patience = -1 is out of range"),
    ],
)
def test_a_bad_value_is_refused_with_the_choices(key: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        configurations([{key: value}], Toy().schema, source="here", finish=dict)


@pytest.mark.parametrize(
    ("workload", "values", "message"),
    [
        (Toy(), {"momentum": 0.9}, r"momentum 0\.9: only the optimizer sgd has it: add optimizer: sgd"),
        (OwnOptimizer(), {"optimizer": "sgd"}, "optimizer sgd: workload own-optimizer has its own method optimizer"),
        (OwnSchedule(), {"lr_schedule": "cosine"}, "lr_schedule cosine: workload own-schedule has its own method"),
    ],
)
def test_a_value_without_effect_is_refused(workload: Toy, values: dict[str, Any], message: str) -> None:
    found = configurations([values], workload.schema, source="here", finish=dict)
    with pytest.raises(InputError, match=message):
        Selection(workload, lambda: None, found)


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        (
            "optimizer",
            lambda *_: None,
            r"workload mine: optimizer returned None: expected torch's Optimizer",
        ),
        (
            "lr_schedule",
            lambda *_: 0.1,
            r"workload mine: lr_schedule returned a float: expected torch's LRScheduler",
        ),
    ],
)
def test_an_own_method_that_returns_something_else_is_refused(method: str, wrong: Any, message: str) -> None:
    workload = type("Mine", (Toy,), {method: wrong})()
    with pytest.raises(WorkloadError, match=message):
        list(train(workload))
