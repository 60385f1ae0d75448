from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

from tuner.datasets.ratings import Adjacency, RatingData, Ratings
from tuner.errors import InputError
from tuner.search.configurations import complete, configurations
from tuner.workloads.graphsage.model import GraphSAGEModel
from tuner.workloads.graphsage.workload import GraphSAGE

CONFIG = complete({"hidden_dim": 8, "batch_size": 100}, GraphSAGE.hyperparameters)


@pytest.fixture
def model(ratings: RatingData) -> GraphSAGEModel:
    torch.manual_seed(0)
    return GraphSAGE().build_model(CONFIG, ratings)


def test_neither_validation_nor_test_ratings_are_edges(model: GraphSAGEModel, ratings: RatingData) -> None:
    rows = torch.repeat_interleave(torch.arange(100), model.crow.diff().long())
    edges = set(zip(rows.tolist(), model.col.tolist(), strict=True))
    train = set(zip(ratings.train.user.tolist(), (ratings.train.item + 40).tolist(), strict=True))
    assert edges == train | {(item, user) for user, item in train}
    held_out = [*zip(ratings.test.user, ratings.test.item + 40, strict=True)]
    assert not edges & {(int(user), int(item)) for user, item in held_out}


def test_an_epoch_is_every_training_rating_once(ratings: RatingData) -> None:
    batches = [(batch.user, batch.item, batch.rating) for batch in GraphSAGE().batches(CONFIG, ratings)]
    seen = zip(*(torch.cat(part).tolist() for part in zip(*batches, strict=True)), strict=True)
    train = ratings.train
    assert sorted(seen) == sorted(zip(*map(list, (train.user, train.item, train.rating)), strict=True))


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
    workload = GraphSAGE()
    again = workload.restore_model(CONFIG, {**model.state_dict(), **workload.constants(model)})
    user, item = torch.from_numpy(ratings.test.user), torch.from_numpy(ratings.test.item)
    torch.testing.assert_close(again.eval()(user, item), model.eval()(user, item), rtol=0, atol=0)


def predicted(model: GraphSAGEModel, pairs: int) -> torch.Tensor:
    """The predictions in training for so many pairs of users and items."""
    return model.train()(torch.arange(pairs).int() % 40, torch.arange(pairs).int() % 60)


def build(ratings: RatingData, **values: object) -> GraphSAGEModel:
    torch.manual_seed(0)
    config = complete({"hidden_dim": 8, "num_layers": 3, "dropout": 0.0, **values}, GraphSAGE.hyperparameters)
    return GraphSAGE().build_model(config, ratings)


@pytest.mark.parametrize("pairs", [20, 200])
def test_training_predicts_as_evaluation_does(pairs: int, ratings: RatingData) -> None:
    model = build(ratings, fanout="all")
    trained = predicted(model, pairs).clamp(1, 5)
    users, items = torch.arange(pairs).int() % 40, torch.arange(pairs).int() % 60
    torch.testing.assert_close(trained, model.eval()(users, items))


def test_samples_of_a_single_neighbour_are_that_neighbour(ratings: RatingData) -> None:
    once = Ratings(np.arange(40, dtype=np.int32), np.arange(40, dtype=np.int32), np.ones(40, dtype=np.float32))
    alone = dataclasses.replace(ratings, graph=Adjacency.of(once, 40, 60))
    whole, sampled = build(alone, fanout="all"), build(alone, fanout="3,2,4")
    torch.testing.assert_close(predicted(sampled, 40), predicted(whole, 40))
    predicted(sampled, 40).sum().backward()
    predicted(whole, 40).sum().backward()
    torch.testing.assert_close(sampled.embedding.grad, whole.embedding.grad)


def test_many_samples_come_close_to_all_neighbours(ratings: RatingData) -> None:
    whole, sampled = build(ratings, num_layers=1, fanout="all"), build(ratings, num_layers=1, fanout=5000)
    torch.testing.assert_close(predicted(sampled, 10), predicted(whole, 10), atol=0.01, rtol=0)


def test_the_graphs_size_decides_by_default(ratings: RatingData, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not build(ratings).fanout
    monkeypatch.setattr("tuner.workloads.graphsage.workload.WHOLE_GRAPH", 100)
    chosen = [build(ratings, num_layers=layers).fanout for layers in (1, 2, 3, 4)]
    assert chosen == [(25,), (5, 5), (3, 3, 3), (2, 2, 2, 2)]
    assert build(ratings, fanout="all").fanout == ()


@pytest.mark.parametrize("fanout", ["none", "10,10", "10,,10", "0", "-1", "1.5", "²", "9" * 5000])
def test_a_fanout_that_fits_no_layer_is_refused(fanout: str) -> None:
    with pytest.raises(InputError, match=r"fanout = .* is not allowed \(allowed: all, by-size, .* as in 3,3,3\)"):
        GraphSAGE().finish({"fanout": fanout, "num_layers": 3})


def test_a_fanout_of_half_a_neighbour_is_refused() -> None:
    with pytest.raises(InputError, match=r"fanout = 5.5 is neither text nor a whole number"):
        configurations([{"fanout": 5.5}], GraphSAGE.hyperparameters)


def test_the_plan_tells_of_ratings_that_repeat_others(ratings: RatingData) -> None:
    assert "repeat" not in GraphSAGE().describe(ratings)
    said = GraphSAGE().describe(dataclasses.replace(ratings, repeats=1200, dropped=30))
    assert "200 test ratings; 1,200 repeat an earlier one's user and item, of which 30 are left out" in said


@pytest.mark.parametrize(
    ("count", "said"), [(49, "49 validation ratings, .* about 10%"), (1, "1 validation rating, "), (50, "^$")]
)
def test_few_validation_ratings_are_a_reason_for_doubt(count: int, said: str, ratings: RatingData) -> None:
    few = ratings.train[np.arange(len(ratings.train)) < count]
    assert re.search(said, GraphSAGE().caution(dataclasses.replace(ratings, validation=few)))


def test_data_of_which_training_samples_say_so(ratings: RatingData, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "samples neighbours" not in GraphSAGE().describe(ratings)
    monkeypatch.setattr("tuner.workloads.graphsage.workload.WHOLE_GRAPH", 100)
    assert "samples neighbours" in GraphSAGE().describe(ratings)
