"""Makes batches of PyG from shared tree arrays: selects trees, their paths, and pairs to order.

All of this is NumPy on the CPU, so that only a batch's structure takes memory of a GPU. A tree with N nodes and P
paths is a ``torch_geometric.data.Data``. Nodes in its indices are numbered over a batch, by PyG's rule for names with
"index".

- ``x`` (N, 5) and ``pos`` (N, 3): features and positions of ``TreeData``
- ``path_index`` (4, P): i, j, k, p
- ``path_weight`` (1,): the weight of the messages; above 1 if only some of the tree's paths were drawn
- ``chain_index`` (4, C): node, parent, grandparent, great-grandparent; and (v, v, v, v) for each node
- ``edge_index`` (2, E): parent and child
- ``positive_index`` (2, M): pairs of a parent and its child
- ``negative_index`` (2, K): pairs whose first node is not an ancestor of the second
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data

from tuner.datasets.trees import FEATURES, TreeData
from tuner.workloads.batches import to_tensor

Index = NDArray[np.int64]


class Limits(NamedTuple):
    """The limits of a batch."""

    trees: int  # the maximum number of trees
    paths: int  # the maximum number of paths; they are drawn at random from a tree that has more
    positives: int  # pairs of a parent and its child for each tree; 0 takes all
    negatives: int  # unordered pairs for each tree


def group_trees(data: TreeData, trees: Sequence[int], limits: Limits) -> Iterator[list[int]]:
    """The trees of each batch, in their order, each batch as full as the limits allow."""
    sizes = np.diff(data.first_path).tolist()
    chosen: list[int] = []
    paths = 0
    for tree in trees:
        size = min(sizes[tree], limits.paths)
        if chosen and (len(chosen) == limits.trees or paths + size > limits.paths):
            yield chosen
            chosen, paths = [], 0
        chosen.append(tree)
        paths += size
    if chosen:
        yield chosen


def batches(data: TreeData, trees: Sequence[int], limits: Limits, random: Generator) -> Iterator[Batch]:
    """Batches of the trees, grouped by ``group_trees``."""
    for chosen in group_trees(data, trees, limits):
        yield collate(data, chosen, limits, random)


def largest(data: TreeData, trees: Index, limits: Limits) -> list[int]:
    """Trees that take at least as much memory as any batch: those with the most paths and chains.

    Other trees might fill the limit on paths better. So the smallest tree that did not fit is added, which makes more
    paths than in any batch.
    """
    paths = np.minimum(np.diff(data.first_path)[trees], limits.paths)
    size = paths + _chains(data)[trees]
    chosen: list[int] = []
    too_large: list[int] = []
    room = limits.paths
    for index in np.argsort(-size, kind="stable").tolist():
        if len(chosen) == limits.trees:
            break
        if paths[index] <= room:
            chosen.append(int(trees[index]))
            room -= int(paths[index])
        else:
            too_large.append(index)
    if too_large and len(chosen) < limits.trees:
        chosen.append(int(trees[min(too_large, key=lambda index: int(size[index]))]))
    return chosen


def _chains(data: TreeData) -> Index:
    """The number of ancestor chains in each tree: one for each node, and one more for each deeper than 2."""
    depth = np.expm1(data.features[:, FEATURES.index("branch points above")])
    deep = np.concatenate([[0], np.cumsum(depth > 2.5)])
    return np.diff(data.first) + np.diff(deep[data.first])


def collate(data: TreeData, trees: Sequence[int], limits: Limits, random: Generator) -> Batch:
    """A batch of these trees (at least one). ``random`` draws paths and pairs within the limits."""
    return Batch.from_data_list([tree_graph(data, tree, limits, random) for tree in trees])


def tree_graph(data: TreeData, tree: int, limits: Limits, random: Generator) -> Data:
    """A tree with its paths and pairs."""
    rows = slice(int(data.first[tree]), int(data.first[tree + 1]))
    parent = data.parent[rows].astype(np.int64)
    edge = positive = np.stack([parent[1:], np.arange(1, len(parent))])
    path = data.path[:, int(data.first_path[tree]) : int(data.first_path[tree + 1])].astype(np.int64)
    weight = 1.0
    if path.shape[1] > limits.paths:
        weight = path.shape[1] / limits.paths
        path = path[:, random.permutation(path.shape[1])[: limits.paths]]
    if 0 < limits.positives < edge.shape[1]:
        positive = edge[:, random.permutation(edge.shape[1])[: limits.positives]]
    arrays: dict[str, NDArray[np.generic]] = {
        "x": data.features[rows],
        "pos": data.position[rows],
        "path_index": path,
        "path_weight": np.array([weight], dtype=np.float32),
        "chain_index": ancestor_chains(parent),
        "edge_index": edge,
        "positive_index": positive,
        "negative_index": negative_pairs(data.end[rows], limits.negatives, random),
    }
    return Data(**{name: to_tensor(array) for name, array in arrays.items()})


def negative_pairs(end: NDArray[np.integer], count: int, random: Generator) -> Index:
    """Uniformly drawn pairs of nodes whose first is not an ancestor of the second: (2, count) int64.

    In preorder the nodes u to end[u] - 1 are u and its descendants. A tree with one node has no pairs.
    """
    nodes = len(end)
    if nodes < 2 or not count:
        return np.zeros((2, 0), dtype=np.int64)
    subtree = end - np.arange(nodes)
    others = nodes - subtree  # for each u, the v outside of its subtree
    first = random.choice(nodes, count, p=others / others.sum())
    rank = random.integers(others[first])
    return np.stack([first, np.where(rank < first, rank, rank + subtree[first])]).astype(np.int64)


def ancestor_chains(parent: NDArray[np.integer]) -> Index:
    """Paths node → parent → grandparent → great-grandparent where all exist, and (v, v, v, v) for each node.

    ``parent`` is -1 for the root; the result is (4, C) int64.
    """
    node = np.arange(len(parent))
    chain = [node]
    for _ in range(3):
        chain.append(np.where(chain[-1] < 0, -1, parent[chain[-1]]))
    stacked = np.stack(chain)
    return np.concatenate([stacked[:, stacked[3] >= 0], np.tile(node, (4, 1))], axis=1).astype(np.int64)
