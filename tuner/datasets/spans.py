"""Runs of rows that lie one after another in an array, such as the nodes of each of many graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def starts(sizes: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """(G + 1,): where each of G runs of these sizes begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def spans(first: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of all rows of some runs, in the order in which these are given.

    Args:
        first: (G + 1,), where each run begins, as of ``starts``.
        chosen: which.
    """
    begins = np.asarray(first)[chosen]
    sizes = np.asarray(first)[np.asarray(chosen) + 1] - begins
    return np.arange(sizes.sum()) + np.repeat(begins - starts(sizes)[:-1], sizes)
