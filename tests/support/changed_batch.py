"""Copies of batches with other values."""

from __future__ import annotations

import copy

from torch import Tensor
from torch_geometric.data import Batch


def changed(batch: Batch, /, **values: Tensor) -> Batch:
    """A copy of a batch with other values."""
    again = copy.copy(batch)
    for name, value in values.items():
        again[name] = value
    return again
