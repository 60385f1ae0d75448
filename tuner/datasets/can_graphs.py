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
    """G graphs with N nodes and E edges in all; a graph's nodes are in the order of their IDs, and counted from 0."""

    identifier: NDArray[np.int32]  # (N,) the nodes' CAN IDs
    features: NDArray[
        np.float32
    ]  # (N, 10) see ``FEATURES``: bytes by 255, frames and position by the window's length
    nodes: NDArray[np.int64]  # (G,) how many each graph has
    edge: NDArray[np.int32]  # (2, E) from a frame's ID to the next one's; each pair once, and a pair may be of one ID
    edge_count: NDArray[np.float32]  # (E,) how often
    edges: NDArray[np.int64]  # (G,) how many each graph has
    label: NDArray[np.int8]  # (G,) 1 where a frame of the window was injected


def window_graphs(frames: Frames, window: int) -> Windows:
    """The graphs of a recording's windows, of ``window`` frames each, which do not overlap.

    Frames after the last whole window are left out.
    """
    graphs = len(frames) // window
    used = slice(0, graphs * window)
    graph, position = np.divmod(np.arange(graphs * window), window)
    # Sorting numbers that hold both graph and ID puts the nodes in the order in which they are kept.
    node_of_all, node, frames_of = np.unique(
        (graph << 32) | frames.identifier[used], return_inverse=True, return_counts=True
    )
    nodes = np.bincount(node_of_all >> 32, minlength=graphs)
    last = np.zeros(len(node_of_all))
    last[node] = position  # of several frames the last one stays
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
    """Pairs of nodes that follow each other, how often, and how many pairs each graph has.

    ``node`` is that of each frame, counted from 0 in its window.
    """
    rows = node.reshape(-1, window)
    pair = rows[:, :-1] * window + rows[:, 1:]
    graph = np.arange(len(rows))[:, None] * window**2
    found, count = np.unique(graph + pair, return_counts=True)
    of_graph, pair_of_graph = np.divmod(found, window**2)
    edge = np.stack(np.divmod(pair_of_graph, window)).astype(np.int32)
    return edge, count.astype(np.float32), np.bincount(of_graph, minlength=len(rows))
