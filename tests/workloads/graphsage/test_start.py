"""The first epoch of a model that the configuration makes wide or deep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tuner.datasets.ratings import RatingData
from tuner.search.configurations import complete
from tuner.training.endings import Diverged
from tuner.training.loop import fit
from tuner.training.optimizers import build_optimizer
from tuner.trial import Config, EpochReport, Trial
from tuner.workloads.graphsage.model import GraphSAGEModel
from tuner.workloads.graphsage.workload import GraphSAGE


def config(**values: float | str) -> Config:
    return GraphSAGE().finish(complete({"epochs": 1, "batch_size": 64, **values}, GraphSAGE().schema))


def first_loss(data: RatingData, workload: GraphSAGE, **values: float | str) -> float:
    _, report, _ = fit(workload, Trial("t", "graphsage", "t", config(**values), seed=0), data, "cpu")
    assert isinstance(report, EpochReport)
    return report.metrics["train_loss"]


def features(kind: str, rows: int) -> NDArray[np.float32]:
    if kind == "one-hot":
        return np.eye(rows, 20, dtype=np.float32)
    return np.ones((rows, {"constant": 1, "many": 500}[kind]), np.float32)


@pytest.mark.parametrize(
    ("kind", "hidden_dim", "num_layers"),
    [
        *(
            (kind, *size)
            for kind in ("one-hot", "constant", "many")
            for size in ((8, 1), (64, 5), (256, 3), (1024, 1))
        ),
        ("many", 1024, 5),
    ],
)
def test_the_first_epoch_is_no_worse_than_twice_a_constant_prediction(
    kind: str, hidden_dim: int, num_layers: int, ratings: RatingData
) -> None:
    of_users, of_items = features(kind, ratings.num_users), features(kind, ratings.num_items)
    data, workload = replace(ratings, user_features=of_users, item_features=of_items), GraphSAGE()
    loss = first_loss(data, workload, hidden_dim=hidden_dim, num_layers=num_layers)
    assert loss < 2 * workload.constant_loss(data)


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({"hidden_dim": 64}, [0.01, 0.01, 0.01]),
        ({"hidden_dim": 256}, [0.01, 0.005, 0.0025]),
        ({"hidden_dim": 256, "optimizer": "sgd"}, [0.01, 0.01, 0.01]),
    ],
)
def test_rates_fall_with_the_width(values: dict[str, float | str], rates: list[float], ratings: RatingData) -> None:
    model = GraphSAGE().build_model(config(**values), ratings)
    groups = build_optimizer(GraphSAGE(), model, config(**values)).param_groups
    assert [group["lr"] for group in groups] == pytest.approx(rates)
    assert {value.ndim for value in groups[-1]["params"]} == {2}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_first_epoch_that_is_wild_ends_the_trial(ratings: RatingData) -> None:
    class Wild(GraphSAGE):
        def build_model(self, config: Config, data: RatingData) -> GraphSAGEModel:
            model = super().build_model(config, data)
            torch.nn.init.normal_(model.embedding, std=10.0)
            return model

    constant = rf"a constant prediction has {np.var(ratings.train.rating):.3g}: lower lr"
    with pytest.raises(Diverged, match=constant):
        first_loss(ratings, Wild())
