from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

from tuner.datasets.ratings import RatingData
from tuner.search.configurations import complete
from tuner.workloads.graphsage.model import GraphSAGEModel, SAGELayer, dropout
from tuner.workloads.graphsage.sparse import bipartite_mean
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.lookup import find_workload

CONFIG = complete({"hidden_dim": 8, "batch_size": 100}, GraphSAGE.hyperparameters)


@pytest.fixture
def model(ratings: RatingData) -> GraphSAGEModel:
    torch.manual_seed(0)
    return GraphSAGE().build_model(CONFIG, ratings)


def test_a_layer_agrees_with_pygs_on_the_same_weights(ratings: RatingData) -> None:
    from torch_geometric.nn import SAGEConv

    user, item = torch.from_numpy(ratings.train.user).long(), torch.from_numpy(ratings.train.item).long()
    theirs, ours = SAGEConv(16, 8), SAGELayer(16, 8)
    ours.load_state_dict(theirs.state_dict())
    both_ways = torch.cat([torch.stack([user, item + 40]), torch.stack([item + 40, user])], dim=1)
    x = torch.randn(100, 16)
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    y1, y2 = theirs(x1, both_ways), ours(x2, bipartite_mean(user, item, 40, 60))
    weight = torch.randn_like(y1)
    (y1 * weight).sum().backward()
    (y2 * weight).sum().backward()
    torch.testing.assert_close(y2, y1, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x2.grad, x1.grad, atol=1e-5, rtol=1e-5)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs.get_parameter(name).grad, atol=1e-5, rtol=1e-5)


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    x = torch.ones(100_000, requires_grad=True)
    y = dropout(x, 0.3)
    y.sum().backward()
    assert float((y == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(y.detach().mean()) == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(x.grad, y.detach())
    assert torch.equal(dropout(x, 0.0), x)


def test_neither_validation_nor_test_ratings_are_edges(model: GraphSAGEModel, ratings: RatingData) -> None:
    rows = torch.repeat_interleave(torch.arange(100), model.crow.diff().long())
    edges = set(zip(rows.tolist(), model.col.tolist(), strict=True))
    train = set(zip(ratings.train.user.tolist(), (ratings.train.item + 40).tolist(), strict=True))
    assert edges == train | {(item, user) for user, item in train}
    held_out = [*zip(ratings.test.user, ratings.test.item + 40, strict=True)]
    assert not edges & {(int(user), int(item)) for user, item in held_out}


def test_an_epoch_is_every_training_rating_once(ratings: RatingData) -> None:
    user, item, rating = (torch.cat(part) for part in zip(*GraphSAGE().batches(CONFIG, ratings), strict=True))
    seen = sorted(zip(user.tolist(), item.tolist(), rating.tolist(), strict=True))
    expected = zip(
        ratings.train.user.tolist(), ratings.train.item.tolist(), ratings.train.rating.tolist(), strict=True
    )
    assert seen == sorted(expected)


def test_the_rmse_is_over_the_whole_split(
    model: GraphSAGEModel, ratings: RatingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.eval()
    with torch.no_grad():
        predicted = model(torch.from_numpy(ratings.test.user), torch.from_numpy(ratings.test.item)).clamp(1, 5)
        expected = np.sqrt(np.mean((predicted.numpy() - ratings.test.rating) ** 2))
        monkeypatch.setattr("tuner.workloads.graphsage.workload.EVALUATION_PAIRS", 64)
        assert GraphSAGE().evaluate(model, ratings, "test") == {"rmse": pytest.approx(expected)}
        assert GraphSAGE().evaluate_in_parts(model, ratings, "test", 7) == {"rmse": pytest.approx(expected)}


def test_a_feature_of_any_scale_is_brought_to_one(ratings: RatingData) -> None:
    years = dataclasses.replace(ratings, item_features=np.full((60, 1), 1990, dtype=np.float32))
    assert GraphSAGE().build_model(CONFIG, years).item_features.unique().tolist() == [1.0]


def test_a_model_comes_back_from_its_weights_alone(model: GraphSAGEModel, ratings: RatingData) -> None:
    again = find_workload("graphsage").restore_model(CONFIG, model.state_dict())
    user, item = torch.from_numpy(ratings.test.user), torch.from_numpy(ratings.test.item)
    torch.testing.assert_close(again.eval()(user, item), model.eval()(user, item), rtol=0, atol=0)


def test_the_plan_tells_of_ratings_that_repeat_others(ratings: RatingData) -> None:
    assert "repeat" not in GraphSAGE().describe(ratings)
    said = GraphSAGE().describe(dataclasses.replace(ratings, repeats=1200, dropped=30))
    assert "report on; 1,200 repeat an earlier one's user and item, of which 30 are not trained on" in said


@pytest.mark.parametrize(
    ("count", "said"), [(49, "49 validation ratings, .* about 10%"), (1, "1 validation rating, "), (50, "^$")]
)
def test_few_validation_ratings_are_a_reason_for_doubt(count: int, said: str, ratings: RatingData) -> None:
    few = ratings.train[np.arange(len(ratings.train)) < count]
    assert re.search(said, GraphSAGE().caution(dataclasses.replace(ratings, validation=few)))
