"""Consecutive runs of rows in an array, such as the nodes of many graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)


def starts(sizes: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """(G + 1,): the starts of G runs of these sizes, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def spans(first: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of all rows of the chosen runs, in their order; ``first`` comes from ``starts``."""
    begins = np.asarray(first)[chosen]
    sizes = np.asarray(first)[np.asarray(chosen) + 1] - begins
    return np.arange(sizes.sum()) + np.repeat(begins - starts(sizes)[:-1], sizes)


def joined(parts: Sequence[T], **axes: int) -> T:
    """Concatenates dataclasses of arrays along their first axes, or those in ``axes``."""
    kind, names = type(parts[0]), [field.name for field in fields(parts[0])]
    return kind(
        **{name: np.concatenate([getattr(part, name) for part in parts], axes.get(name, 0)) for name in names}
    )
