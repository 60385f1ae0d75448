"""Windows of CAN frames as graphs: a node for each ID of a window, an edge from each frame's ID to the next one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can_frames import Frames
from tuner.datasets.spans import starts

FEATURES = (*(f"mean of byte {byte}" for byte in range(8)), "frames", "last position")


@dataclass(frozen=True, eq=False)
class Windows:
    """G graphs with N nodes and E edges in all; a graph's nodes are in the order of their IDs, and counted from 0.

    Attributes:
        identifier: (N,) int32, the nodes' CAN IDs.
        features: (N, 10) float32, see ``FEATURES``: bytes by 255, frames and position by the window's length.
        nodes: (G,) int64, how many each graph has.
        edge: (2, E) int32, from a frame's ID to the next one's; each pair once, and a pair may be of one ID.
        edge_count: (E,) float32, how often.
        edges: (G,) int64, how many each graph has.
        label: (G,) int8, 1 where a frame of the window was injected.
    """

    identifier: NDArray[np.int32]
    features: NDArray[np.float32]
    nodes: NDArray[np.int64]
    edge: NDArray[np.int32]
    edge_count: NDArray[np.float32]
    edges: NDArray[np.int64]
    label: NDArray[np.int8]


def window_graphs(frames: Frames, window: int) -> Windows:
    """The graphs of a recording's windows, which do not overlap; frames after the last whole window are left out.

    Args:
        frames: in order of time.
        window: frames in each, 2 or more.
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

    Args:
        node: of each frame, counted from 0 in its window: less than ``window``.
        window: frames in each.
    """
    rows = node.reshape(-1, window)
    pair = rows[:, :-1] * window + rows[:, 1:]
    graph = np.arange(len(rows))[:, None] * window**2
    found, count = np.unique(graph + pair, return_counts=True)
    of_graph, pair_of_graph = np.divmod(found, window**2)
    edge = np.stack(np.divmod(pair_of_graph, window)).astype(np.int32)
    return edge, count.astype(np.float32), np.bincount(of_graph, minlength=len(rows))


def joined(parts: Sequence[Windows]) -> Windows:
    """The graphs of all parts, one after another."""
    listed = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Windows)}
    return Windows(
        **{name: np.concatenate(arrays, axis=1 if name == "edge" else 0) for name, arrays in listed.items()}
    )
