"""Third-order paths i→j→k→p of a graph, by vectorised expansion: time and memory are linear in their number."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InputError

Index = NDArray[np.int64]
IntT = TypeVar("IntT", bound=np.integer)
MAX_PATHS = 50_000_000  # 1.6 GB of indices: a dense graph of a thousand nodes would have a thousand times as many


def third_order_paths(edges: NDArray[np.integer], num_nodes: int, *, max_paths: int = MAX_PATHS) -> Index:
    """All simple paths of four nodes, in both directions, then a path (v, v, v, v) for each node: (4, P) int64.

    The latter are there so that a node of no longer path has one too. On a tree there are Σ over edges {j, k} of
    2 (deg j - 1)(deg k - 1) simple ones. The edges (2, E) are undirected: no loops, none twice or in both directions.

    Raises ``InputError``, before they are made, if there are more than ``max_paths``.
    """
    source, target = (np.concatenate([edges[a], edges[b]]).astype(np.int64) for a, b in ((0, 1), (1, 0)))
    order = np.lexsort((target, source))
    j, k = source[order], target[order]  # neighbours of j are in a row, sorted
    degree = np.bincount(j, minlength=num_nodes)
    first = np.concatenate([[0], np.cumsum(degree)])
    counts = (degree[j] - 1) * (degree[k] - 1)
    if (total := int(counts.sum())) > max_paths:
        raise InputError(
            f"the graph has {total:,} third-order paths, more than {max_paths:,}: reduce it by "
            "random_spanning_tree, or raise max_paths"
        )
    reverse = np.lexsort((j, k))  # the position of (k, j): pairs sorted by their second node, then their first
    middle = np.repeat(np.arange(len(j)), counts)
    rank = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    j, k, width = j[middle], k[middle], degree[k[middle]] - 1
    # The rank-th neighbours, leaving out the one that is the path's own middle.
    i = k_th(first[j], rank // np.maximum(width, 1), middle)
    p = k_th(first[k], rank % np.maximum(width, 1), reverse[middle])
    neighbour = target[order]
    found = np.stack([neighbour[i], j, k, neighbour[p]])
    found = found[:, found[0] != found[3]]  # a triangle is no path
    own = np.broadcast_to(np.arange(num_nodes), (4, num_nodes))
    return np.concatenate([found, own], axis=1)


def k_th(first: Index, rank: Index, left_out: Index) -> Index:
    """Positions ``first + rank``, counted as if the position ``left_out`` were not there."""
    position = first + rank
    shifted: Index = position + (position >= left_out)
    return shifted


def random_spanning_tree(edges: NDArray[IntT], num_nodes: int, seed: int) -> NDArray[IntT]:
    """The edges (2, …) of a random spanning tree (of a forest, where the graph is not connected), as they were given.

    The minimum spanning tree for random weights (Kruskal). SGMP (Zhang and Zhao, NeurIPS 2021) reduces general graphs
    by such trees, as their paths grow with the nodes and not with their third power.
    """
    parent = list(range(num_nodes))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    kept = []
    for edge in np.random.default_rng(seed).permutation(edges.shape[1]):
        a, b = find(int(edges[0, edge])), find(int(edges[1, edge]))
        if a != b:
            parent[a] = b
            kept.append(edge)
    return edges[:, np.sort(np.array(kept, dtype=np.int64))]
