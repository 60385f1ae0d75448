"""Tables in memory become rating data, or an error that names what is wrong with them."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tuner.datasets.movielens import load_ratings
from tuner.datasets.ratings import Ratings, from_tables, rating_data, split_validation
from tuner.errors import DataError, InputError

USERS = pd.DataFrame({"age": [0.1, 0.2, 0.3]}, index=["ann", "bob", "cy"])
ITEMS = pd.DataFrame({"comedy": [True, False], "year": [1990, 2000]}, index=[10, 20])
TRAIN = pd.DataFrame(
    {
        "user_id": ["ann", "bob", "bob", "cy"],
        "item_id": [10, 10, 20, 20],
        "rating": [1.0, 2.5, 3.0, 5.0],
        "when": "now",
    }
)
TEST = pd.DataFrame({"user_id": ["ann", "cy"], "item_id": [20, 10], "rating": [1.0, 2.5]})


def ratings(count: int) -> Ratings:
    rows = np.arange(count, dtype=np.int32)
    return Ratings(rows, rows, rows.astype(np.float32))


def test_rating_data_that_were_copied_can_be_copied_again() -> None:
    data = from_tables(TRAIN, TEST, USERS, ITEMS, seed=0)
    again = copy.deepcopy(copy.deepcopy(data))
    assert (again.repeats, again.graph.col.tolist()) == (0, data.graph.col.tolist())


def test_labels_of_any_kind_become_rows_of_the_features() -> None:
    data = from_tables(TRAIN, TEST, USERS, ITEMS, seed=0)
    assert (data.num_users, data.num_items) == (3, 2)
    assert data.test.user.tolist() == [0, 2]
    assert data.test.item.tolist() == [1, 0]
    assert data.test.rating.tolist() == [1.0, 2.5]
    assert len(data.train) == 3
    assert len(data.validation) == 1
    assert data.item_features.tolist() == [[1, 1990], [0, 2000]]
    assert data.user_features.dtype == data.test.rating.dtype == np.float32
    assert data.test.user.dtype == data.test.item.dtype == np.int32


@pytest.mark.parametrize("make", [np.array, list, lambda rows: [tuple(row) for row in rows]])
def test_three_columns_without_names_are_user_item_rating(make) -> None:  # type: ignore[no-untyped-def]
    rows, others = make([[0, 1, 4.5], [1, 0, 2.0], [2, 1, 1.0]]), [[0, 0, 3.0], [1, 1, 4.0]]
    data = from_tables(others, rows, np.eye(3), [[1, 2], [3, 4]], seed=0)
    assert data.test.user.tolist() == [0, 1, 2]
    assert data.test.item.tolist() == [1, 0, 1]
    assert data.test.rating.tolist() == [4.5, 2.0, 1.0]


def test_lists_may_mix_texts_and_numbers() -> None:
    data = from_tables([("ann", 10, 4.0), ("cy", 20, 2.0)], [("bob", 20, 3.0)], USERS, ITEMS, seed=0)
    assert data.test.user.tolist() == [1]
    assert data.test.rating.tolist() == [3.0]


class Interchanged:
    """A table of another library, with nothing but the protocol of dataframes."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.table = pa.Table.from_pandas(frame, preserve_index=False)

    def __dataframe__(self, **options: object) -> object:
        return self.table.__dataframe__(**options)


NAMED = {
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "the protocol of dataframes": Interchanged,
    "a record array": lambda frame: frame.to_records(index=False),
    "dicts": lambda frame: frame.to_dict("records"),
    "a dict of lists": lambda frame: frame.to_dict("list"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_names_count_in_every_table_that_has_names(kind: str) -> None:
    make, order = NAMED[kind], ["rating", "item_id", "user_id"]
    users = USERS.iloc[::-1].reset_index(names="user_id")
    data = from_tables(make(TRAIN[order]), make(TEST[order]), make(users), ITEMS, seed=0)
    assert (data.test.user.tolist(), data.test.item.tolist(), data.test.rating.tolist()) == ([2, 0], [1, 0], [1, 2.5])
    assert np.allclose(data.user_features[:, 0], [0.3, 0.2, 0.1])
    with pytest.raises(InputError, match=r"trainset needs one column each of .*, but has \['a', 'b', 'c'\]"):
        from_tables(make(TRAIN[order].set_axis(["a", "b", "c"], axis=1)), TEST, USERS, ITEMS, seed=0)


def test_categorical_and_nullable_columns_are_read_as_their_values() -> None:
    train = TRAIN.astype({"user_id": "category", "item_id": "Int64", "rating": "Float64"})
    assert from_tables(train, TEST, USERS, ITEMS.astype("Int64"), seed=0).num_items == 2


def test_a_dataframe_of_labels_is_not_read_by_position() -> None:
    data = from_tables(TRAIN, TEST, USERS, ITEMS.iloc[::-1], seed=0)
    assert data.test.item.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainset": TRAIN.drop(columns="rating")}, r"trainset needs one column each of .*, but has \['user_id'"),
        (
            {"trainset": TRAIN.iloc[:0]},
            r"training users, items and ratings must have one length, at least 1, .* \(0, 0, 0\)",
        ),
        ({"testset": []}, "testset needs one column each of user_id, item_id, rating"),
        ({"testset": 7}, "testset is not a table"),
        ({"testset": np.zeros((3, 2))}, "testset needs one column each of user_id, item_id, rating"),
        (
            {"trainset": TRAIN.replace("bob", "zed")},
            r"user_id 'zed' in trainset has no row .* \(1 such ids\)",
        ),
        ({"testset": TEST.assign(item_id=[30, 40])}, r"item_id 30 in testset .* 10 to 20 \(2 such ids\)"),
        ({"testset": TEST.assign(item_id=[np.nan, 10])}, "item_id nan in testset has no row in item_features"),
        (
            {"testset": TEST.assign(rating=[1, np.nan])},
            "the test rating is not finite at 1 places, the first in row 1",
        ),
        ({"testset": TEST.assign(rating=["good", "bad"])}, "testset column 'rating' is not numeric"),
        ({"user_features": USERS.assign(age=["a", "b", "c"])}, "user_features column 'age' is not numeric"),
        ({"user_features": np.array([["a"], ["b"]])}, "user_features column 0 is not numeric"),
        ({"user_features": np.zeros((3, 1, 1))}, "user_features is not a table of rows and columns"),
        ({"user_features": USERS[[]]}, r"user_features must be 2-D .*, but its shape is \(3, 0\)"),
        ({"user_features": USERS.reset_index(names="user_id")}, r"set_index\('user_id'\)"),
        ({"item_features": ITEMS * np.inf}, "item_features is not finite at .* row 0, column 0"),
        ({"item_features": ITEMS * 1e300}, "item_features is not finite"),
        ({"item_features": ITEMS.set_axis([10, 10])}, "item_features has 1 duplicated labels, the first 10"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(change: dict[str, object], message: str) -> None:
    tables = {"trainset": TRAIN, "testset": TEST, "user_features": USERS, "item_features": ITEMS} | change
    with pytest.raises(InputError, match=message):
        from_tables(**tables, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (1.5, "user_id 1.5 in trainset has no row in user_features"),
        (3, r"user_id 3.0 in trainset has no row in user_features, which holds 0 to 2 \(1 such"),
        (-1, "user_id -1.0 in trainset has no row"),
        (np.nan, "user_id nan in trainset has no row in user_features"),
        ("0", "user_id '0' in trainset has no row in .*; give a DataFrame whose index holds the ids"),
    ],
)
def test_positions_are_whole_numbers_within_the_features(first: object, message: str) -> None:
    train = pd.DataFrame({"user_id": [first, 0.0], "item_id": [0, 0], "rating": [1.0, 2.0]})
    with pytest.raises(InputError, match=message):
        from_tables(train, [(0, 0, 1)], np.eye(3), np.eye(2), seed=0)


def test_the_split_is_disjoint_complete_and_seeded() -> None:
    kept, held_out = split_validation(ratings(100), 0.2, seed=3)
    assert (len(kept), len(held_out)) == (80, 20)
    assert sorted([*kept.user, *held_out.user]) == list(range(100))
    assert np.array_equal(held_out.user, split_validation(ratings(100), 0.2, seed=3)[1].user)
    assert not np.array_equal(held_out.user, split_validation(ratings(100), 0.2, seed=4)[1].user)


def test_a_split_needs_ratings_on_both_sides() -> None:
    assert len(split_validation(ratings(2), 0.05, seed=0)[1]) == 1
    with pytest.raises(InputError, match="1 ratings are too few"):
        split_validation(ratings(1), 0.05, seed=0)
    with pytest.raises(InputError, match=r"between 0 and 1, but got 1.5"):
        split_validation(ratings(9), 1.5, seed=0)


def rated(pairs: list[tuple[int, int]]) -> Ratings:
    user, item = np.array(pairs, dtype=np.int32).T
    return Ratings(user, item, np.arange(len(pairs), dtype=np.float32))


def pairs(ratings: Ratings) -> set[tuple[int, int]]:
    return set(zip(ratings.user.tolist(), ratings.item.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_ratings_of_one_user_and_item_stay_in_one_split(seed: int) -> None:
    random = np.random.default_rng(seed)
    given = rated([(int(user), int(item)) for user, item in random.integers(0, 9, (300, 2))])
    kept, held_out = split_validation(given, 0.2, seed)
    assert sorted([*kept.rating, *held_out.rating]) == list(range(300))
    assert not pairs(kept) & pairs(held_out)
    assert len(pairs(held_out)) == round(0.2 * len(pairs(given)))


def test_two_pairs_are_enough_and_one_is_not_however_often_it_is_rated() -> None:
    kept, held_out = split_validation(rated([(0, 1)] * 5 + [(1, 0)]), 0.05, seed=0)
    assert {len(kept), len(held_out)} == {5, 1}
    with pytest.raises(InputError, match=r"1 ratings \(8 more repeat a user and an item\) are too few to hold out"):
        split_validation(rated([(0, 1)] * 9), 0.05, seed=0)


def test_training_ratings_of_what_is_tested_are_dropped_and_counted() -> None:
    eye = np.eye(3, dtype=np.float32)
    train = rated([(0, 0), (0, 1), (0, 1), (1, 2), (2, 2), (2, 2)])
    data = rating_data("x", train, rated([(0, 1), (1, 1), (1, 1)]), eye, eye, seed=0)
    assert pairs(data.train) | pairs(data.validation) == {(0, 0), (1, 2), (2, 2)}
    assert (data.repeats, data.dropped, len(data.test)) == (4, 2, 3)
    with pytest.raises(InputError, match="every training rating is of a user and an item in the test ratings"):
        rating_data("x", train, train, eye, eye, seed=0)


def test_ratings_must_fit_the_features_and_each_other() -> None:
    eye = np.eye(4, dtype=np.float32)
    with pytest.raises(InputError, match="training user 4 has no features: there are rows 0 to 3"):
        rating_data("x", ratings(5), ratings(4), eye, eye, seed=0)
    with pytest.raises(InputError, match=r"must have one length, .* \(4, 2, 4\)"):
        rating_data("x", replace(ratings(4), item=ratings(2).item), ratings(4), eye, eye, seed=0)


def test_sources_are_known_by_name_or_folder() -> None:
    assert load_ratings("synthetic", seed=1).name == "synthetic"
    with pytest.raises(DataError, match="no folder 'ml-1000k'"):
        load_ratings("ml-1000k", seed=1)
