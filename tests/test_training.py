from __future__ import annotations

import pytest
import torch

from tests.toy import Toy
from tuner.space import complete
from tuner.training import Diverged, Fit, fit
from tuner.trial import EpochReport, Trial


def train(**values: float) -> tuple[list[EpochReport], Fit]:
    config = complete(values, Toy.hyperparameters)
    *reports, result = fit(Toy(), Trial("001", "toy", "t", config, seed=int(values.get("seed", 0))), None, "cpu")
    assert isinstance(result, Fit)
    return [report for report in reports if isinstance(report, EpochReport)], result


def test_every_epoch_is_reported_after_the_start() -> None:
    reports, _ = train(epochs=3)
    assert [report.epoch for report in reports] == [0, 1, 2, 3]
    assert set(reports[-1].metrics) == {"train_loss", "val_loss"}


def test_the_best_epoch_on_validation_is_kept_with_its_weights() -> None:
    reports, result = train(epochs=8, lr=3.0)
    best = min(reports[1:], key=lambda report: report.metrics["val_loss"])
    assert result.metrics["best_epoch"] == best.epoch
    assert result.metrics["val_loss"] == best.metrics["val_loss"]
    predicted = result.weights["weight"].sum() + result.weights["bias"].sum()
    assert float((predicted - 2).abs()) == pytest.approx(result.metrics["test_loss"])


def test_the_same_seed_gives_the_same_figures() -> None:
    assert train(seed=1)[1].metrics == train(seed=1)[1].metrics != train(seed=2)[1].metrics


def test_the_learning_rate_falls_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            rates.append(self.param_groups[0]["lr"])

    monkeypatch.setattr("tuner.training.build_optimizer", lambda model, config: Recorder(model.parameters()))
    train(epochs=4, lr=1.0)
    assert rates[::4] == [1.0, 0.75, 0.5, 0.25]


def test_a_loss_that_is_not_finite_ends_the_trial() -> None:
    with pytest.raises(Diverged, match="became nan in epoch 1: lower lr"):
        train(fault=3)
