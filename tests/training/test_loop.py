from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from tests.support.toy import Toy
from tuner.datasets.ratings import RatingData
from tuner.search.configurations import complete
from tuner.training.checkpoints import Checkpoint
from tuner.training.endings import Diverged, Fit, phase_of
from tuner.training.loop import fit, train_epoch
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import representative_batches
from tuner.training.step import Steps
from tuner.trial import ACCUMULATION, Config, EpochReport, Trial
from tuner.workloads.base import Batch
from tuner.workloads.graphsage.model import HiddenLayer
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.micro_batches import halved, micro_batch


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


def test_the_learning_rate_falls_linearly() -> None:
    rates = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            rates.append(self.param_groups[0]["lr"])

    class Recorded(Toy):
        def optimizer(self, model: torch.nn.Module, config: Config) -> Recorder:
            return Recorder(model.parameters(), lr=float(config["lr"]))

    config = complete({"epochs": 4, "lr": 1.0}, Toy.hyperparameters)
    list(fit(Recorded(), Trial("001", "recorded", "t", config, seed=0), None, "cpu"))
    assert rates[::4] == [1.0, 0.75, 0.5, 0.25]


def test_a_loss_that_is_not_finite_ends_the_trial() -> None:
    with pytest.raises(Diverged, match="became nan in epoch 1: lower lr") as caught:
        train(fault=3)
    assert phase_of(caught.value) == "training"


class Exploding(Toy):
    """Its loss is as many times that of a toy as ``factors`` say, epoch by epoch."""

    name: ClassVar[str] = "exploding"

    def __init__(self, *factors: float) -> None:
        self.factors = factors
        self.epoch = -1

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        self.epoch += 1
        return super().batches(config, data)

    def loss(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * 0 + self.factors[self.epoch]


@pytest.mark.parametrize("first", [2.0, -2.0])
def test_a_loss_that_explodes_ends_the_trial(first: float) -> None:
    config = complete({"epochs": 3}, Toy.hyperparameters)
    with pytest.raises(Diverged, match=rf"rose from {first:g} to 2.1e\+06 in epoch 3: lower lr"):
        list(fit(Exploding(first, 1.9e6, 2.1e6), Trial("001", "toy", "t", config, seed=0), None, "cpu"))


def test_a_first_epoch_that_is_wild_beside_a_constant_prediction_ends_the_trial() -> None:
    class Known(Exploding):
        def constant_loss(self, data: object) -> float:
            return 2.0

    trial = Trial("001", "toy", "t", complete({"epochs": 2}, Toy.hyperparameters), seed=0)
    assert isinstance([*fit(Known(1.9e6, 1.0), trial, None, "cpu")][-1], Fit)
    with pytest.raises(Diverged, match=r"to 2.1e\+06 in epoch 1; a constant prediction has 2: lower lr"):
        list(fit(Known(2.1e6, 1.0), trial, None, "cpu"))


def sage(ratings: RatingData, checkpoint: Checkpoint | None = None, **values: Any) -> Iterator[EpochReport | Fit]:
    """A trial whose batches have 96 ratings, but for the last."""
    config = complete({"epochs": 4, "batch_size": 96, **values}, GraphSAGE().schema)
    trial = Trial("t001", "graphsage", "t", config, seed=0)
    return fit(GraphSAGE(), trial, ratings, "cpu", checkpoint)


def test_a_trial_in_micro_batches_is_the_trial_in_whole_ones(ratings: RatingData) -> None:
    *_, whole = sage(ratings, dropout=0.0)
    *_, parts = sage(ratings, dropout=0.0, accumulation=2)
    assert isinstance(whole, Fit)
    assert isinstance(parts, Fit)
    assert len(ratings.train) % 96 % 48, "the last micro-batch is odd"
    for name, value in whole.weights.items():
        # Adam's first steps turn the rounding of a gradient near 0 into a twentieth of a learning rate of 0.01.
        torch.testing.assert_close(parts.weights[name], value, rtol=1e-3, atol=5e-4)
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-4)


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32(
    ratings: RatingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[torch.dtype] = set()
    forward = HiddenLayer.forward

    def watched(self: HiddenLayer, *arguments: Any) -> Tensor:
        out = forward(self, *arguments)
        seen.add(out.dtype)
        return out

    *_, full = sage(ratings)
    monkeypatch.setattr(HiddenLayer, "forward", watched)
    *_, mixed = sage(ratings, amp=1)
    assert isinstance(full, Fit)
    assert isinstance(mixed, Fit)
    assert seen == {torch.bfloat16, torch.float32}  # in training and in evaluation
    assert {value.dtype for value in mixed.weights.values() if value.is_floating_point()} == {torch.float32}
    assert mixed.metrics["val_rmse"] == pytest.approx(full.metrics["val_rmse"], rel=0.05)


@pytest.mark.parametrize("every", [0, 1, 4])
def test_a_gpus_cache_is_cleared_after_so_many_steps(
    ratings: RatingData, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    cleared: list[bool] = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: cleared.append(True))
    config = complete({"batch_size": 96, "clear_cache_every_n": every}, GraphSAGE().schema)
    model = GraphSAGE().build_model(config, ratings)
    step = Steps(GraphSAGE(), model, build_optimizer(GraphSAGE(), model, config), config)
    train_epoch(GraphSAGE(), step, config, ratings, "cuda:0", lambda phase: None, count(1))
    steps = -(-len(ratings.train) // 96)
    assert len(cleared) == (steps // every if every else 0)


@pytest.mark.parametrize("sizes", [(32, 32, 32), (40, 40, 7), (1, 90)])
def test_gradients_of_micro_batches_count_by_their_samples(ratings: RatingData, sizes: tuple[int, ...]) -> None:
    config = complete({"dropout": 0.0}, GraphSAGE.hyperparameters)
    batch = next(GraphSAGE().batches({**config, "batch_size": sum(sizes)}, ratings))
    columns = {name: value.split(sizes) for name, value in batch.to_dict().items()}
    parts = [Data(**{name: column[place] for name, column in columns.items()}) for place in range(len(sizes))]
    gradients, losses = [], []
    for batches in ([batch], parts):
        torch.manual_seed(0)
        model = GraphSAGE().build_model(config, ratings)
        losses.append(Steps(GraphSAGE(), model, build_optimizer(GraphSAGE(), model, config), config)(*batches))
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_memory_is_judged_by_whole_batches_and_not_by_what_is_left_of_an_epoch(ratings: RatingData) -> None:
    config = complete({"batch_size": len(ratings.train) - 1}, GraphSAGE().schema)
    listed = islice(representative_batches(GraphSAGE(), config, ratings), 3)
    assert [len(batch.rating) for batch in listed] == [len(ratings.train) - 1] * 3


def test_every_micro_batch_is_halved_until_its_size_is_odd() -> None:
    config: Config | None = complete({"batch_size": 24}, GraphSAGE.hyperparameters)
    found = []
    while config := halved(GraphSAGE(), config) if config else None:
        found.append((config[ACCUMULATION], micro_batch(GraphSAGE(), config)["batch_size"]))
    assert found == [(2, 12), (4, 6), (8, 3)]
    assert halved(Toy(), complete({}, Toy.hyperparameters)) is None


@pytest.mark.parametrize("epoch", range(5))
def test_a_trial_interrupted_after_any_epoch_ends_as_if_it_had_not_been(
    ratings: RatingData, tmp_path: Path, epoch: int
) -> None:
    def kept() -> Checkpoint:
        return Checkpoint(tmp_path, Trial("t001", "graphsage", "t", config, seed=0), every_seconds=0)

    config = complete({"epochs": 4, "batch_size": 96}, GraphSAGE.hyperparameters)
    whole = list(sage(ratings))
    halved = sage(ratings, kept())
    assert [next(halved) for _ in range(epoch + 1)] == whole[: epoch + 1]
    halved.close()  # type: ignore[attr-defined]
    torch.manual_seed(99)
    first, *reports, last = sage(ratings, kept())
    assert isinstance(first, EpochReport)
    assert isinstance(last, Fit)
    assert isinstance(whole[-1], Fit)
    again = [replace(report, again=False) for report in reports[:epoch] if isinstance(report, EpochReport)]
    assert (first.epoch, [*again, *reports[epoch:]]) == (epoch, whole[1:-1]), "those before are told again"
    assert last.metrics == whole[-1].metrics
    assert all(torch.equal(last.weights[name], value) for name, value in whole[-1].weights.items())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"lr": 0.5}, ("checkpoint t001.pt not used: it belongs to another training",)),
        ({ACCUMULATION: 2}, ()),
    ],
)
def test_a_checkpoint_serves_the_same_training_only(
    ratings: RatingData, tmp_path: Path, change: dict[str, Any], fault: tuple[str, ...]
) -> None:
    config = complete({"epochs": 4, "batch_size": 96}, GraphSAGE.hyperparameters)
    trial = Trial("t001", "graphsage", "t", config, seed=0)
    list(sage(ratings, Checkpoint(tmp_path, trial, every_seconds=0)))
    again = Checkpoint(tmp_path, Trial("t001", "graphsage", "t", {**config, **change}, seed=0), every_seconds=0)
    first = next(sage(ratings, again, **change))
    assert isinstance(first, EpochReport)
    assert (first.epoch, again.faults) == (0 if fault else 4, fault)


def test_a_checkpoint_has_no_constants_and_a_resumed_trial_has_the_datas(ratings: RatingData, tmp_path: Path) -> None:
    trial = Trial("t001", "graphsage", "t", complete({"epochs": 4}, GraphSAGE.hyperparameters), seed=0)
    list(sage(ratings, Checkpoint(tmp_path, trial, every_seconds=0), batch_size=2048))
    kept = torch.load(tmp_path / "t001.pt", weights_only=True)["progress"]["weights"]
    assert "embedding" in kept
    assert "col" not in kept
    checkpoint = Checkpoint(tmp_path, trial, every_seconds=3600)
    *_, fitted = sage(ratings, checkpoint, batch_size=2048)
    assert isinstance(fitted, Fit)
    assert checkpoint.faults == ()
    assert fitted.weights["col"].data_ptr() == ratings.graph.col.ctypes.data


def test_a_checkpoint_of_which_only_a_part_fits_does_no_harm(ratings: RatingData, tmp_path: Path) -> None:
    trial = Trial("t001", "graphsage", "t", complete({"epochs": 4}, GraphSAGE.hyperparameters), seed=0)
    list(sage(ratings, Checkpoint(tmp_path, trial, every_seconds=0), batch_size=2048))
    content = torch.load(tmp_path / "t001.pt", weights_only=True)
    content["optimizer"]["param_groups"] = []
    torch.save(content, tmp_path / "t001.pt")
    checkpoint = Checkpoint(tmp_path, trial, every_seconds=3600)
    assert list(sage(ratings, checkpoint, batch_size=2048))[:-1] == list(sage(ratings, batch_size=2048))[:-1]
    assert checkpoint.faults == ("checkpoint t001.pt not used: it is damaged, or of an earlier version (ValueError)",)


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(ratings: RatingData, tmp_path: Path) -> None:
    trial = Trial("t001", "graphsage", "t", complete({"epochs": 1}, GraphSAGE.hyperparameters), seed=0)
    os.mkfifo(tmp_path / "t001.pt")
    checkpoint = Checkpoint(tmp_path, trial, every_seconds=3600)
    list(sage(ratings, checkpoint, batch_size=2048))
    assert checkpoint.faults == ("checkpoint t001.pt not used: it is damaged, or of an earlier version (OSError)",)


def test_a_checkpoint_is_written_only_when_it_is_time(ratings: RatingData, tmp_path: Path) -> None:
    trial = Trial("t001", "graphsage", "t", complete({"epochs": 4, "batch_size": 96}, GraphSAGE.hyperparameters), 0)
    list(sage(ratings, Checkpoint(tmp_path, trial, every_seconds=3600)))
    assert list(tmp_path.iterdir()) == []
