"""Synthetic ratings with the shape of MovieLens-100K, for demonstrations and tests."""

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.ratings import RatingData, Ratings, rating_data, split_validation
from tuner.errors import InputError

_LATENT = 8
_OCCUPATIONS = 21
_GENRES = 19
_FEWEST = 5

# Standard deviations in stars. They were chosen so that the measured test RMSE is 1.09 for the global mean, 1.05 for
# a linear model of the features, 0.945 for user and item biases and 0.90 for biased matrix factorisation.
_USER_BIAS = 0.45
_ITEM_BIAS = 0.45
_TASTE = 0.57
_NOISE = 0.79
_MEAN = 3.5

Matrix = NDArray[np.float32]


def synthetic_ratings(
    num_users: int = 943, num_items: int = 1682, num_ratings: int = 100_000, *, seed: int = 0, split_seed: int = 0
) -> RatingData:
    """Ratings from a latent-factor model with biases; the activity of users and items follows power laws.

    r = clip(round(3.5 + b_user + b_item + <p_user, q_item> + noise), 1, 5). Features are noisy readings of the latent
    factors with the shape of ML-100K's: user_features (num_users, 23) are age, gender and 21 occupations,
    item_features (num_items, 19) are genre flags. A fifth of the ratings is the test split.

    Every user has at least a few ratings if `num_ratings` allows it; some items may have none. ``split_seed`` is
    the seed of the training/validation split. Raises ``InputError`` for a size below 1, or more ratings than pairs.
    """
    if min(num_users, num_items, num_ratings) < 1 or num_ratings > num_users * num_items:
        raise InputError(
            f"cannot draw {num_ratings} ratings by {num_users} users of {num_items} items: "
            "sizes must be at least 1, and ratings at most users x items"
        )
    rng = np.random.default_rng(seed)
    users = rng.standard_normal((num_users, _LATENT), dtype=np.float32)
    items = rng.standard_normal((num_items, _LATENT), dtype=np.float32)
    user, item = _pairs(rng, num_users, num_items, num_ratings)
    user_bias, item_bias = _bias(rng, users, _USER_BIAS), _bias(rng, items, _ITEM_BIAS)
    stars = _NOISE * rng.standard_normal(num_ratings, dtype=np.float32)
    taste = np.einsum("nk,nk->n", users[user], items[item])
    stars += _MEAN + user_bias[user] + item_bias[item] + _TASTE / _LATENT**0.5 * taste
    ratings = Ratings(user, item, np.clip(np.rint(stars), 1, 5).astype(np.float32))
    train, test = split_validation(ratings, 0.2, seed)
    return rating_data(
        "synthetic", train, test, _user_features(rng, users), _item_features(rng, items), seed=split_seed
    )


def _pairs(
    rng: np.random.Generator, num_users: int, num_items: int, count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distinct pairs, weighted by activity x popularity, in random order.

    The `count` largest values of log(weight) + Gumbel noise are a weighted sample without replacement (Efraimidis and
    Spirakis 2006, "Weighted random sampling with a reservoir", in its Gumbel form).
    """
    exponential = rng.standard_exponential((num_users, num_items), dtype=np.float32)
    scores = -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))
    scores += _power_law(rng, num_users, 0.7)[:, None] + _power_law(rng, num_items, 0.9)
    few = min(_FEWEST, count // num_users, num_items)
    if few:
        best = np.argpartition(scores, -few, axis=1)[:, -few:]
        np.put_along_axis(scores, best, np.float32(np.inf), axis=1)
    chosen = rng.permutation(np.argpartition(scores, -count, axis=None)[-count:])
    user, item = np.divmod(chosen, num_items)
    return user.astype(np.int32), item.astype(np.int32)


def _power_law(rng: np.random.Generator, count: int, exponent: float) -> Matrix:
    """Logarithms of the weights rank^-exponent in random order. An offset of the ranks limits the largest weights."""
    ranks = rng.permutation(count).astype(np.float32)
    return np.asarray(-exponent * np.log(ranks + 1 + 0.01 * count), dtype=np.float32)


def _bias(rng: np.random.Generator, latent: Matrix, deviation: float) -> Matrix:
    """Biases with half of their variance from the latent factors, so that features predict them partly."""
    independent = rng.standard_normal(len(latent), dtype=np.float32)
    bias: Matrix = deviation * 0.5**0.5 * (_readings(rng, latent, 1)[:, 0] + independent)
    return bias


def _readings(rng: np.random.Generator, latent: Matrix, count: int, noise: float = 0.0) -> Matrix:
    """Noisy readings along `count` random directions of the latent space: (rows, count), unit variance plus noise."""
    directions = rng.standard_normal((latent.shape[1], count), dtype=np.float32)
    directions /= np.linalg.norm(directions, axis=0)
    readings: Matrix = latent @ directions
    readings += noise * rng.standard_normal((len(latent), count), dtype=np.float32)
    return readings


def _user_features(rng: np.random.Generator, users: Matrix) -> Matrix:
    age = _readings(rng, users, 1, noise=0.3)
    gender = _readings(rng, users, 1, noise=0.3) > 0.5
    occupation = _readings(rng, users, _OCCUPATIONS, noise=0.3).argmax(axis=1)
    one_hot = np.eye(_OCCUPATIONS, dtype=np.float32)[occupation]
    return np.hstack([(age - age.mean()) / max(age.std(), 1e-6), gender, one_hot]).astype(np.float32)


def _item_features(rng: np.random.Generator, items: Matrix) -> Matrix:
    affinity = _readings(rng, items, _GENRES, noise=0.3)
    # The strongest genre and other strong ones: about two flags for each item, as in ML-100K.
    flags = (affinity > 1.6) | (affinity == affinity.max(axis=1, keepdims=True))
    return np.asarray(flags, dtype=np.float32)
