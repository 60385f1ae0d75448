"""Third-order paths i→j→k→p of a graph. Time and memory are linear in the number of paths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InputError

Index = NDArray[np.int64]
MAX_PATHS = 50_000_000  # 1.6 GB of indices; a dense graph of a thousand nodes has a thousand times as many paths


def third_order_paths(edges: NDArray[np.integer], num_nodes: int, *, max_paths: int = MAX_PATHS) -> Index:
    """All simple paths of four nodes, in both directions, then a path (v, v, v, v) for each node: (4, P) int64.

    So every node has a path. A tree has Σ over edges {j, k} of 2 (deg j - 1)(deg k - 1) simple paths. The edges
    (2, E) are undirected, without loops, and each occurs once in one direction. Raises ``InputError`` before paths
    are made if there are more than ``max_paths``.
    """
    source, target = (np.concatenate([edges[a], edges[b]]).astype(np.int64) for a, b in ((0, 1), (1, 0)))
    order = np.lexsort((target, source))
    j, k = source[order], target[order]  # the neighbours of j are consecutive and sorted
    degree = np.bincount(j, minlength=num_nodes)
    first = np.concatenate([[0], np.cumsum(degree)])
    counts = (degree[j] - 1) * (degree[k] - 1)
    if (total := int(counts.sum())) > max_paths:
        raise InputError(
            f"the graph has {total:,} third-order paths, more than {max_paths:,}: reduce it to a spanning tree, or "
            "raise max_paths"
        )
    reverse = np.lexsort((j, k))  # the position of (k, j): pairs sorted by their second node, then their first
    middle = np.repeat(np.arange(len(j)), counts)
    rank = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    j, k, width = j[middle], k[middle], degree[k[middle]] - 1
    # The rank-th neighbours, without the other middle node of the path.
    i = k_th(first[j], rank // np.maximum(width, 1), middle)
    p = k_th(first[k], rank % np.maximum(width, 1), reverse[middle])
    neighbour = target[order]
    paths = np.stack([neighbour[i], j, k, neighbour[p]])
    paths = paths[:, paths[0] != paths[3]]  # without triangles
    own = np.broadcast_to(np.arange(num_nodes), (4, num_nodes))
    return np.concatenate([paths, own], axis=1)


def k_th(first: Index, rank: Index, left_out: Index) -> Index:
    """Positions ``first + rank``, skipping the position ``left_out``."""
    position = first + rank
    shifted: Index = position + (position >= left_out)
    return shifted
