"""Batches of graphs of CAN traffic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tuner.datasets.can import CanData
from tuner.datasets.spans import spans
from tuner.workloads.kd_gat.graphs import Index
from tuner.workloads.kd_gat.sizes import CHUNK


class CanBatch(NamedTuple):
    """B graphs with N nodes and E edges in total; nodes are numbered over the batch."""

    graph: Tensor  # (B,) int64: the index of each graph in the data set
    label: Tensor  # (B,) int64: 1 with an injected frame, otherwise 0
    node_graph: Tensor  # (N,) int64: each node's graph in the batch
    ids: Tensor  # (N,) int64: the vocabulary's index of each node's CAN ID; 0 for an unknown ID
    features: Tensor  # (N, 10) in [0, 1]: 8 byte means, scaled count, last position
    edge: Tensor  # (2, E) int64: source and target node; each pair once; loops only where an ID follows itself
    edge_count: Tensor  # (E, 1): how often the target followed the source


def collate(data: CanData, graphs: Index) -> CanBatch:
    """A batch of these graphs (at least one) in their order, on the CPU."""
    nodes, edges = spans(data.first, graphs), spans(data.first_edge, graphs)
    size, degree = (first[graphs + 1] - first[graphs] for first in (data.first, data.first_edge))
    begin = np.repeat(np.cumsum(size) - size, degree)  # for each edge, the first node of its graph in the batch
    return CanBatch(
        graph=torch.from_numpy(graphs.astype(np.int64)),
        label=torch.from_numpy(data.label[graphs].astype(np.int64)),
        node_graph=torch.from_numpy(np.repeat(np.arange(len(graphs)), size)),
        ids=torch.from_numpy(data.ids[nodes].astype(np.int64)),
        features=torch.from_numpy(data.features[nodes]),
        edge=torch.from_numpy(data.edge[:, edges] + begin),
        edge_count=torch.from_numpy(data.edge_count[edges][:, None]),
    )


def chunks(data: CanData, graphs: Index, device: torch.device | str, size: int = CHUNK) -> Iterator[CanBatch]:
    """Batches of ``size`` graphs in their order, on the device."""
    for begin in range(0, len(graphs), size):
        batch = collate(data, graphs[begin : begin + size])
        yield CanBatch(*(part.to(device) for part in batch))


def parts(batch: CanBatch, count: int) -> Iterator[CanBatch]:
    """Splits a batch into at most ``count`` batches with about the same number of graphs.

    Nodes and edges must be in the order of their graphs, as ``collate`` returns them.
    """
    size = -(-len(batch.graph) // count)
    graphs = [*range(0, len(batch.graph), size), len(batch.graph)]
    bounds = torch.tensor(graphs, device=batch.graph.device)
    graph_of_edge = batch.node_graph[batch.edge[0]]
    nodes, edges = (torch.searchsorted(of, bounds).tolist() for of in (batch.node_graph, graph_of_edge))
    for begin, end in pairwise(zip(graphs, nodes, edges, strict=True)):
        (graph, node, edge), (to_graph, to_node, to_edge) = begin, end
        yield CanBatch(
            graph=batch.graph[graph:to_graph],
            label=batch.label[graph:to_graph],
            node_graph=batch.node_graph[node:to_node] - graph,
            ids=batch.ids[node:to_node],
            features=batch.features[node:to_node],
            edge=batch.edge[:, edge:to_edge] - node,
            edge_count=batch.edge_count[edge:to_edge],
        )
