"""Makes batches from shared tree arrays: selects trees, their paths, and pairs to order.

All of this is NumPy on the CPU, so that only a batch's structure takes memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tuner.datasets.trees import FEATURES, TreeData
from tuner.workloads.gt_ssl.model import TreeBatch

Index = NDArray[np.int64]
Array = NDArray[np.int64] | NDArray[np.float32]


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


def batches(data: TreeData, trees: Sequence[int], limits: Limits, random: Generator) -> Iterator[TreeBatch]:
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


def collate(data: TreeData, trees: Sequence[int], limits: Limits, random: Generator) -> TreeBatch:
    """A batch of these trees (at least one). ``random`` draws paths and pairs within the limits."""
    parts = []
    nodes = 0
    for tree in trees:
        part = _one(data, tree, limits, len(trees), random)
        parts.append({name: value + nodes if _is_index(value) else value for name, value in part.items()})
        nodes += len(part["features"])
    arrays = {name: [part[name] for part in parts] for name in parts[0]}
    joined = {name: np.concatenate(each, axis=-1 if _is_index(each[0]) else 0) for name, each in arrays.items()}
    return TreeBatch(**{name: torch.from_numpy(value) for name, value in joined.items()})


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


def _one(data: TreeData, tree: int, limits: Limits, trees: int, random: Generator) -> dict[str, Array]:
    rows = slice(int(data.first[tree]), int(data.first[tree + 1]))
    parent, end = data.parent[rows].astype(np.int64), data.end[rows]
    path, weight = _paths(data, tree, limits.paths, random)
    edge = np.stack([parent[1:], np.arange(1, len(parent))])
    inner = np.bincount(parent[1:], minlength=len(parent)) > 0
    positive = edge
    if 0 < limits.positives < edge.shape[1]:
        positive = edge[:, random.permutation(edge.shape[1])[: limits.positives]]
    negative = negative_pairs(end, limits.negatives, random)
    return {
        "graph": np.ones(1, dtype=np.float32),
        "features": data.features[rows],
        "position": data.position[rows],
        "path": path,
        "weight": np.full((len(parent), 1), weight, dtype=np.float32),
        "chain": ancestor_chains(parent),
        "edge": edge,
        "growth_weight": (inner / (max(1, inner.sum()) * trees)).astype(np.float32),
        "positive": positive,
        "positive_weight": _equal(positive, trees),
        "negative": negative,
        "negative_weight": _equal(negative, trees),
    }


def _paths(data: TreeData, tree: int, most: int, random: Generator) -> tuple[Index, float]:
    """A tree's paths and their weight. If there are too many, some are drawn at random and weighted for all."""
    path = data.path[:, int(data.first_path[tree]) : int(data.first_path[tree + 1])].astype(np.int64)
    count = path.shape[1]
    if count <= most:
        return path, 1.0
    return path[:, random.permutation(count)[:most]], count / most


def _equal(pairs: Index, trees: int) -> NDArray[np.float32]:
    return np.full(pairs.shape[1], 1 / max(1, pairs.shape[1] * trees), dtype=np.float32)


def _is_index(array: Array) -> bool:
    return array.dtype == np.int64
