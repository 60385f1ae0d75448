"""Ratings of items by users with features of both: the common form of all rating sources."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.datasets.arrays import joined
from tuner.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    Table: TypeAlias = pd.DataFrame | ArrayLike
    Ids: TypeAlias = pd.Index[str] | pd.Index[int]

SMALL_GRAPH = 2**20  # training ratings
_COLUMNS = ("user_id", "item_id", "rating")


# eq=False here and below, since the comparison of arrays has no single truth value.
@dataclass(frozen=True, eq=False)
class Ratings:
    """User `user[k]` gave item `item[k]` the rating `rating[k]`. The arrays have the same length."""

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float32]

    def __len__(self) -> int:
        """Number of ratings."""
        return len(self.rating)

    def __getitem__(self, rows: NDArray[np.bool_]) -> Ratings:
        """The ratings where `rows`, a mask of this length, is true."""
        return Ratings(self.user[rows], self.item[rows], self.rating[rows])


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A graph in CSR form: edges in both directions for each rating. Its nodes are the users, then the items."""

    crow: NDArray[np.int32]  # (users + items + 1,): the start of each node's neighbours
    col: NDArray[np.int32]  # (2 · ratings,): the neighbours

    @classmethod
    def of(cls, ratings: Ratings, num_users: int, num_items: int) -> Adjacency:
        """Raises ``InputError`` if there are too many ratings for indices of 32 bits."""
        if 2 * len(ratings) > np.iinfo(np.int32).max:
            raise InputError(f"{len(ratings):,} training ratings: at most 1,073,741,823 are supported; give fewer")
        degrees = np.bincount(ratings.user, minlength=num_users), np.bincount(ratings.item, minlength=num_items)
        # One after the other, since an order has 64 bits a rating.
        items = ratings.item[np.argsort(ratings.user, kind="stable")] + np.int32(num_users)
        users = ratings.user[np.argsort(ratings.item, kind="stable")]
        return cls(np.concatenate([[0], *degrees]).cumsum().astype(np.int32), np.concatenate([items, users]))


@dataclass(frozen=True, eq=False)
class RatingData:
    """Ratings in three disjoint splits, and the graph of the training ratings.

    Users and items are rows of the feature matrices.
    """

    name: str
    train: Ratings
    validation: Ratings
    test: Ratings
    user_features: NDArray[np.float32]
    item_features: NDArray[np.float32]
    graph: Adjacency
    repeats: int = 0  # ratings of a user and an item that have been read before
    dropped: int = 0  # training ratings that were left out, as a test rating is of the same user and item

    def __getstate__(self) -> dict[str, object]:
        """Without a small graph and counts of 0: studies of earlier versions know their data by the pickle."""
        small = len(self.train) <= SMALL_GRAPH
        left_out = [name for name in ("repeats", "dropped") if not getattr(self, name)] + ["graph"] * small
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        """Makes a small graph again. Larger ones are shared by a machine's processes."""
        vars(self).update(state)
        if "graph" not in state:
            vars(self)["graph"] = Adjacency.of(self.train, self.num_users, self.num_items)

    def all_training(self) -> RatingData:
        """All ratings as training ratings, and so as edges of the graph."""
        train = joined([self.train, self.validation, self.test])
        return replace(self, train=train, graph=Adjacency.of(train, self.num_users, self.num_items))

    @property
    def num_users(self) -> int:
        """The number of rows of `user_features`."""
        return len(self.user_features)

    @property
    def num_items(self) -> int:
        """The number of rows of `item_features`."""
        return len(self.item_features)


def split_validation(train: Ratings, fraction: float, seed: int) -> tuple[Ratings, Ratings]:
    """Holds out a random `fraction`, at least one rating; returns (kept, held out), each in its old order.

    Ratings of the same user and item are on the same side, and count as one. Raises ``InputError`` if the fraction is
    not between 0 and 1, or a part would be empty.
    """
    if not 0 < fraction < 1:
        raise InputError(f"the fraction to hold out must lie between 0 and 1, but got {fraction}")
    rows, first = _copies(train)
    later = rows[rows != first]
    count = len(train) - len(later)
    held_out = max(1, round(fraction * count))
    if held_out >= count:
        again = f" ({len(later)} more repeat a user and an item)" if len(later) else ""
        raise InputError(f"{count} ratings{again} are too few to hold out {fraction:g} of them; give more ratings")
    chosen = np.random.default_rng(seed).permutation(count)[:held_out]
    mask = np.zeros(len(train), dtype=bool)
    mask[np.delete(np.arange(len(train)), later)[chosen] if len(later) else chosen] = True
    mask[rows] = mask[first]
    return train[~mask], train[mask]


def _copies(ratings: Ratings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of users and items that are rated more than once, and the first row of each row's pair."""
    pairs = _pairs(ratings, int(ratings.item.max(initial=0)) + 1)
    rows = np.flatnonzero(_among(pairs, np.unique(_repeated(pairs))))
    _, first, pair = np.unique(pairs[rows], return_index=True, return_inverse=True)
    return rows, rows[first][pair]


def _pairs(ratings: Ratings, num_items: int) -> NDArray[np.int64]:
    """A number for each rating's user and item."""
    return ratings.user.astype(np.int64) * num_items + ratings.item


def _repeated(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each pair as often as it occurs beyond the first time, in ascending order."""
    ordered = np.sort(pairs)
    again: NDArray[np.int64] = ordered[1:][ordered[1:] == ordered[:-1]]
    return again


def _among(pairs: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which pairs are in ``wanted``. Only ``wanted`` is hashed, so 25 million pairs take few bytes each."""
    import pandas as pd

    return pd.Series(pairs, copy=False).isin(wanted).to_numpy()


def rating_data(
    name: str,
    train: Ratings,
    test: Ratings,
    user_features: NDArray[np.float32],
    item_features: NDArray[np.float32],
    *,
    seed: int,
    validation_fraction: float = 0.05,
) -> RatingData:
    """Checks that ratings and features fit together, and holds out validation ratings of the training ones.

    Features are (num_users, Fu) and (num_items, Fi). Training ratings of a test rating's user and item are dropped,
    so that the test is of ratings that training has not seen. Raises ``InputError`` if ratings are missing, have
    unequal lengths or are not finite, or if users or items have no features.
    """
    _check_features(user_features, "user_features")
    _check_features(item_features, "item_features")
    for label, part in (("training", train), ("test", test)):
        _check_ratings(part, label, len(user_features), len(item_features))
    unseen, repeats = _unseen(train, test, len(item_features))
    if not unseen.any():
        raise InputError(
            "every training rating is of a user and an item in the test ratings; give other training ratings"
        )
    dropped = len(train) - int(unseen.sum())
    kept, validation = split_validation(train[unseen] if dropped else train, validation_fraction, seed)
    graph = Adjacency.of(kept, len(user_features), len(item_features))
    return RatingData(name, kept, validation, test, user_features, item_features, graph, repeats, dropped)


def _unseen(train: Ratings, test: Ratings, num_items: int) -> tuple[NDArray[np.bool_], int]:
    """Which training ratings are of no test rating's user and item, and how many of all ratings repeat a pair."""
    given, tested = _pairs(train, num_items), _pairs(test, num_items)
    repeated = _repeated(np.concatenate([given, tested]))
    distinct = np.unique(repeated)
    return ~_among(given, distinct[_among(distinct, np.unique(tested))]), len(repeated)


def _check_ratings(ratings: Ratings, label: str, num_users: int, num_items: int) -> None:
    lengths = len(ratings.user), len(ratings.item), len(ratings.rating)
    if lengths != (max(1, lengths[0]),) * 3:
        raise InputError(f"the {label} users, items and ratings must have one length, at least 1, but have {lengths}")
    _check_finite(ratings.rating, f"the {label} rating")
    for what, rows, count in (("user", ratings.user, num_users), ("item", ratings.item, num_items)):
        bad = np.flatnonzero((rows < 0) | (rows >= count))
        if bad.size:
            raise InputError(f"{label} {what} {rows[bad[0]]} has no features: there are rows 0 to {count - 1}")


def _check_features(features: NDArray[np.float32], label: str) -> None:
    if features.ndim != 2 or 0 in features.shape:
        shape = f"its shape is {features.shape}"
        raise InputError(f"{label} must be 2-D with a row for each id and at least one column, but {shape}")
    _check_finite(features, label)


def _check_finite(values: NDArray[np.float32], label: str) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        row, *column = bad[0].tolist()
        where = f"row {row}" + "".join(f", column {number}" for number in column)
        value = values[tuple(bad[0])]
        raise InputError(
            f"{label} is not finite at {len(bad)} places, the first in {where}: {value}; fill or drop it"
        )


def from_tables(
    trainset: Table, testset: Table, user_features: Table, item_features: Table, *, seed: int
) -> RatingData:
    """Rating data from tables in memory, for `tune_hyperparameters_parallel`.

    Ratings are a table with the columns `user_id`, `item_id`, `rating` (others are ignored): of pandas, polars, Arrow
    or others, or what `pandas.DataFrame` takes. Without names they are three columns in this order. Validation
    ratings are held out of ``trainset``. The ids of features are the index of a DataFrame, the column `user_id` or
    `item_id` of another table, or else the row numbers from 0.

    Raises ``InputError`` if a column or an id's features are missing, or values are empty, not numeric or not finite.
    """
    users, user_matrix = _features(user_features, "user_features", "user_id")
    items, item_matrix = _features(item_features, "item_features", "item_id")
    train = _ratings(trainset, "trainset", users, items)
    test = _ratings(testset, "testset", users, items)
    return rating_data("tables", train, test, user_matrix, item_matrix, seed=seed)


def _frame(table: Table, label: str) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa
    from pyarrow.interchange import from_dataframe

    if isinstance(table, pd.DataFrame):
        return table
    data: Any = table
    try:
        if hasattr(data, "__arrow_c_stream__"):  # of polars, Arrow, DuckDB and others, whose columns have names
            return cast("pd.DataFrame", pa.table(data).to_pandas())
        if hasattr(data, "to_pandas"):
            return pd.DataFrame(data.to_pandas())
        if hasattr(data, "__dataframe__"):
            return cast("pd.DataFrame", from_dataframe(data).to_pandas())
        # Lists are not converted by numpy, which would turn all numbers of [("ann", "film", 4.0)] into text.
        return pd.DataFrame(np.asarray(data) if hasattr(data, "__array__") else data)
    except (ValueError, TypeError, pa.ArrowException) as error:  # rows of unequal lengths, a tensor on a GPU
        raise InputError(f"{label} is not a table of rows and columns: {error}") from error


def _ratings(table: Table, label: str, users: Ids, items: Ids) -> Ratings:
    import pandas as pd

    frame = _frame(table, label)
    if frame is not table and frame.columns.equals(pd.RangeIndex(3)):  # an array-like has no names
        frame = frame.set_axis(list(_COLUMNS), axis=1)
    if any(list(frame.columns).count(column) != 1 for column in _COLUMNS):
        needed = ", ".join(_COLUMNS)
        raise InputError(
            f"{label} needs one column each of {needed}, but has {list(frame.columns)}; rename or add one"
        )
    user = _positions(frame["user_id"], label, users, "user_features")
    item = _positions(frame["item_id"], label, items, "item_features")
    return Ratings(user, item, _numbers(frame[["rating"]], label)[:, 0])


def _positions(ids: pd.Series, label: str, index: Ids, features: str) -> NDArray[np.int32]:
    """The row of every id in the features."""
    import pandas as pd

    rows = index.get_indexer(pd.Index(ids))
    bad = np.flatnonzero(rows < 0)
    if bad.size:
        unknown = ids.iloc[bad]
        held = f"{_plain(index[0])!r} to {_plain(index[-1])!r}" if len(index) else "nothing"
        remedy = "add their features or drop their ratings"
        if isinstance(index, pd.RangeIndex):
            remedy = "give a DataFrame whose index holds the ids, or drop their ratings"
        raise InputError(
            f"{ids.name} {_plain(unknown.iloc[0])!r} in {label} has no row in {features}, which holds {held} "
            f"({unknown.nunique(dropna=False)} such ids); {remedy}"
        )
    return rows.astype(np.int32)


def _plain(value: object) -> Hashable:
    """A numpy scalar as Python shows it: 7, not np.int64(7)."""
    return cast(Hashable, value.item() if isinstance(value, np.generic) else value)


def _features(table: Table, label: str, id_name: str) -> tuple[Ids, NDArray[np.float32]]:
    """The ids and the matrix of a table of features."""
    frame = _frame(table, label)
    if frame is not table and id_name in frame.columns:  # only pandas' tables have an index of their own
        frame = frame.set_index(id_name)
    if id_name in frame.columns:
        # Without this check the ids would be a feature, and the row numbers would be taken as ids.
        raise InputError(f"{label} has a column {id_name!r}; make it the index: .set_index({id_name!r})")
    if not frame.index.is_unique:
        twice = frame.index[frame.index.duplicated()]
        raise InputError(
            f"{label} has {len(twice)} duplicated labels, the first {_plain(twice[0])!r}; keep one row per id"
        )
    return frame.index, _numbers(frame, label)


def _numbers(frame: pd.DataFrame, label: str) -> NDArray[np.float32]:
    for column, dtype in frame.dtypes.items():
        if dtype.kind not in "biuf":
            raise InputError(
                f"{label} column {column!r} is not numeric ({dtype}); convert it with pandas.to_numeric, "
                "or categories with pandas.get_dummies"
            )
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused later
        return frame.to_numpy(dtype=np.float32, na_value=np.nan)
