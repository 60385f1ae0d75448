"""Generated ratings look like MovieLens and carry signal that a model can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.datasets.ratings import RatingData, Ratings
from tuner.datasets.synthetic import synthetic_ratings
from tuner.errors import InputError


@pytest.fixture(scope="module")
def data() -> RatingData:
    return synthetic_ratings()


def everything(data: RatingData) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    parts = data.train, data.validation, data.test
    user, item, rating = ([getattr(part, name) for part in parts] for name in ("user", "item", "rating"))
    return np.concatenate(user), np.concatenate(item), np.concatenate(rating)


def rmse(predicted: Any, ratings: Ratings) -> float:
    return float(np.sqrt(np.mean((predicted - ratings.rating) ** 2)))


def biases(data: RatingData) -> NDArray[np.float64]:
    """Test predictions from shrunk user and item biases."""
    train, test = data.train, data.test
    mean, item_bias = train.rating.mean(), np.zeros(data.num_items)
    for _ in range(5):
        user_bias = shrunk(train.user, train.rating - mean - item_bias[train.item], data.num_users)
        item_bias = shrunk(train.item, train.rating - mean - user_bias[train.user], data.num_items)
    return np.asarray(mean + user_bias[test.user] + item_bias[test.item])


def shrunk(rows: NDArray[np.int32], residual: Any, count: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(rows, residual, count) / (np.bincount(rows, minlength=count) + 5))


def test_the_shape_is_that_of_ml_100k(data: RatingData) -> None:
    user, item, rating = everything(data)
    assert data.user_features.shape == (943, 23)
    assert data.item_features.shape == (1682, 19)
    assert len(data.test) == 20_000
    assert len(rating) == 100_000
    assert np.unique(user.astype(np.int64) * 1682 + item).size == 100_000, "pairs are distinct"
    assert np.unique(rating).tolist() == [1, 2, 3, 4, 5]
    assert set(np.unique(data.item_features)) == set(np.unique(data.user_features[:, 1:])) == {0, 1}
    assert (data.user_features[:, 2:].sum(axis=1) == 1).all()
    assert (data.item_features.sum(axis=1) >= 1).all()


def test_popularity_is_skewed_and_everyone_has_a_few_ratings(data: RatingData) -> None:
    user, item, _ = everything(data)
    by_user, by_item = np.bincount(user, minlength=943), np.bincount(item, minlength=1682)
    assert by_user.min() >= 5
    assert by_item.max() > 10 * np.median(by_item)
    assert by_user.max() > 5 * np.median(by_user)
    sparse, _, _ = everything(synthetic_ratings(100, 500, 600))
    assert np.bincount(sparse, minlength=100).min() >= 5


def test_biases_beat_the_mean_by_as_much_as_in_ml_100k(data: RatingData) -> None:
    assert rmse(data.train.rating.mean(), data.test) == pytest.approx(1.09, abs=0.03)
    assert rmse(biases(data), data.test) == pytest.approx(0.945, abs=0.02)


def test_a_linear_model_of_the_features_alone_beats_the_mean(data: RatingData) -> None:
    def inputs(part: Ratings) -> NDArray[np.float32]:
        return np.column_stack([np.ones(len(part)), data.user_features[part.user], data.item_features[part.item]])

    weights = np.linalg.lstsq(inputs(data.train), data.train.rating, rcond=None)[0]
    assert rmse(inputs(data.test) @ weights, data.test) < rmse(data.train.rating.mean(), data.test) - 0.02


def test_the_data_depend_on_the_seed_and_the_validation_part_on_its_own() -> None:
    one, again, other, split = (
        synthetic_ratings(50, 60, 900, seed=seed, split_seed=split)
        for seed, split in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert np.array_equal(one.train.rating, again.train.rating)
    assert not np.array_equal(one.user_features, other.user_features)
    assert np.array_equal(one.test.user, split.test.user)
    assert np.array_equal(one.test.rating, split.test.rating)
    assert not np.array_equal(one.validation.user, split.validation.user)


@pytest.mark.parametrize("sizes", [(2, 3, 6), (10, 10, 100), (1, 50, 10), (50, 1, 10), (30, 30, 20)])
def test_small_and_full_tables_can_be_drawn(sizes: tuple[int, int, int]) -> None:
    assert len(everything(synthetic_ratings(*sizes))[0]) == sizes[2]


@pytest.mark.parametrize("sizes", [(0, 5, 5), (5, 5, 0), (5, 5, 26)])
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match=f"cannot draw {sizes[2]} ratings by {sizes[0]} users"):
        synthetic_ratings(*sizes)
