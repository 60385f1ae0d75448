"""Windows of CAN frames as graphs: a node for each ID of a window, an edge from each frame's ID to the next one's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can_frames import Frames
from tuner.datasets.spans import starts

FEATURES = (*(f"mean of byte {byte}" for byte in range(8)), "frames", "last position")


@dataclass(frozen=True, eq=False)
class Windows:
    """G graphs with N nodes and E edges in total. A graph's nodes are in the order of their IDs, numbered from 0."""

    identifier: NDArray[np.int32]  # (N,) the nodes' CAN IDs
    features: NDArray[np.float32]  # (N, 10) ``FEATURES``: bytes / 255, frames and position / the window's length
    nodes: NDArray[np.int64]  # (G,) the number of nodes of each graph
    edge: NDArray[np.int32]  # (2, E) from a frame's ID to the next one's; each pair once; loops are possible
    edge_count: NDArray[np.float32]  # (E,) how often each pair occurred
    edges: NDArray[np.int64]  # (G,) the number of edges of each graph
    label: NDArray[np.int8]  # (G,) 1 if a frame of the window was injected


def window_graphs(frames: Frames, window: int) -> Windows:
    """The graphs of a recording's windows of ``window`` frames, without overlap and without a last partial window."""
    graphs = len(frames) // window
    used = slice(0, graphs * window)
    graph, position = np.divmod(np.arange(graphs * window), window)
    # Sorting numbers made of graph and ID gives the final order of the nodes.
    node_of_all, node, frames_of = np.unique(
        (graph << 32) | frames.identifier[used], return_inverse=True, return_counts=True
    )
    nodes = np.bincount(node_of_all >> 32, minlength=graphs)
    last = np.zeros(len(node_of_all))
    last[node] = position  # the last frame of an ID wins
    data = frames.data[used]
    means = [np.bincount(node, data[:, byte], len(node_of_all)) / frames_of / 255 for byte in range(data.shape[1])]
    edge, edge_count, edges = _edges(node - starts(nodes)[graph], window)
    return Windows(
        identifier=(node_of_all & 0xFFFFFFFF).astype(np.int32),
        features=np.stack([*means, frames_of / window, last / window], axis=1).astype(np.float32),
        nodes=nodes,
        edge=edge,
        edge_count=edge_count,
        edges=edges,
        label=np.asarray(frames.injected[used].reshape(graphs, window).any(axis=1), dtype=np.int8),
    )


def _edges(node: NDArray[np.int64], window: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Pairs of nodes that follow each other, their counts, and the number of pairs of each graph.

    ``node`` is each frame's node, numbered from 0 in its window.
    """
    rows = node.reshape(-1, window)
    pair = rows[:, :-1] * window + rows[:, 1:]
    graph = np.arange(len(rows))[:, None] * window**2
    pairs, count = np.unique(graph + pair, return_counts=True)
    of_graph, pair_of_graph = np.divmod(pairs, window**2)
    edge = np.stack(np.divmod(pair_of_graph, window)).astype(np.int32)
    return edge, count.astype(np.float32), np.bincount(of_graph, minlength=len(rows))
