"""Graphs of CAN traffic as the models take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CanBatch(NamedTuple):
    """B graphs with N nodes and E edges in all; nodes are counted over the batch."""

    graph: Tensor  # (B,) int64: index of each graph in the data set
    label: Tensor  # (B,) int64: 1 with an injected frame, else 0
    node_graph: Tensor  # (N,) int64: which graph of the batch a node is in
    ids: Tensor  # (N,) int64: the vocabulary's index of a node's CAN ID; 0 for an ID that is not in it
    features: Tensor  # (N, 10) in [0, 1]: 8 byte means, scaled count, last position
    edge: Tensor  # (2, E) int64: from node, to node; no pair twice; a node leads to itself only if that was seen
    edge_count: Tensor  # (E, 1): how often the one was followed by the other
