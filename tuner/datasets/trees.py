"""Geometric trees as arrays that all trials of a machine share: the common form of all sources of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.arrays import cached, file_key, spans, starts
from tuner.datasets.swc import Tree, find_files, preorder, read_folder
from tuner.errors import DataError, InputError

FEATURES = ("is root", "radius", "branch points above", "path length to the root", "distance from the root")
VERSION = "4"  # of the cache: increase it when the built data change
HELD_OUT = 0.15  # the share of the trees for validation, and the same for the test
CLASSES = ("bushy", "stemmed")
STEM = (0.0, 0.7)  # for each type, the probability that the latest tip branches instead of a random one
STRAIGHT = (0.5, 1.2)  # for each type, the weight of the old direction
_FEWEST, _MOST = 25, 90  # the number of a tree's branchings
Index = NDArray[np.int64]
MAX_PATHS = 50_000_000  # 1.6 GB of indices; a dense graph of a thousand nodes has a thousand times as many paths


# eq=False, since the comparison of arrays has no single truth value.
@dataclass(frozen=True, eq=False)
class TreeData:
    """T trees with N nodes and P paths in total. A tree's nodes are in preorder, numbered from 0 in each tree."""

    position: NDArray[np.float32]  # (N, 3) from the tree's root, in units of the data set's mean edge
    features: NDArray[np.float32]  # (N, 5) ``FEATURES``, which do not depend on a node's descendants
    parent: NDArray[np.int32]  # (N,); -1 for a root
    end: NDArray[np.int32]  # (N,) the node after the last descendant
    first: NDArray[np.int64]  # (T + 1,) the start of each tree's nodes
    path: NDArray[np.int32]  # (4, P) third-order paths, see ``third_order_paths``
    first_path: NDArray[np.int64]  # (T + 1,) the start of each tree's paths
    label: NDArray[np.int32]  # (T,) an index into ``classes``
    train: NDArray[np.int64]  # trees for pretraining
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    name: str  # of the data set
    classes: tuple[str, ...]  # the names of the labels
    bad: int = 0  # the number of files that were left out
    notes: tuple[str, ...] = ()  # the faults of these

    def __getstate__(self) -> dict[str, object]:
        """Without notes: studies of earlier versions know their data by the pickle."""
        return {name: value for name, value in vars(self).items() if name != "notes"}

    def __len__(self) -> int:
        """Number of trees."""
        return len(self.label)

    def take(self, trees: NDArray[np.int64]) -> TreeData:
        """Some of the trees, which are in all three splits."""
        every, nodes, paths = np.arange(len(trees)), spans(self.first, trees), spans(self.first_path, trees)
        return replace(
            self,
            position=self.position[nodes],
            features=self.features[nodes],
            parent=self.parent[nodes],
            end=self.end[nodes],
            first=starts(np.diff(self.first)[trees]),
            path=self.path[:, paths],
            first_path=starts(np.diff(self.first_path)[trees]),
            label=self.label[trees],
            train=every,
            validation=every,
            test=every,
        )


def load_trees(
    source: str, *, seed: int, skip_bad: bool = False, label_level: int = 1, largest_tree: bool = False
) -> TreeData:
    """Trees by name or path; raises ``DataError`` if the folder or a file in it is invalid.

    ``source`` is ``synthetic`` (generated), or a folder of SWC files. Their labels are the names of the sub-folders
    of level ``label_level``, counted from 1. ``seed`` is that of the split; ``skip_bad`` leaves out invalid files;
    ``largest_tree`` keeps the largest tree of a file that has several.
    """
    if source == "synthetic":
        if label_level != 1:
            raise DataError(f"label_level {label_level}: generated trees are in no folders: leave it out")
        trees, labels, classes = synthetic_trees()
        return split(build(trees, labels, "synthetic trees", classes), seed)
    folder = Path(source).expanduser()

    def read() -> TreeData:
        swc = read_folder(folder, skip_bad=skip_bad, label_level=label_level, largest_tree=largest_tree)
        data = build(swc.trees, swc.labels, folder.resolve().name, swc.classes, len(swc.bad))
        return replace(data, notes=tuple(swc.bad))

    key = file_key(folder, find_files(folder), VERSION, skip_bad, label_level, largest_tree)
    return split(cached(TreeData, key, read), seed)


def build(
    trees: Sequence[Tree], labels: NDArray[np.int64], name: str, classes: Sequence[str], bad: int = 0
) -> TreeData:
    """The arrays of at least one tree, with all trees for training; see the fields of ``TreeData``."""
    edges = np.concatenate([_edge_lengths(tree) for tree in trees])
    scale = float(edges.mean()) if edges.size and edges.mean() > 0 else 1.0
    paths = [third_order_paths(_edges(tree), len(tree)) for tree in trees]
    return TreeData(
        position=np.concatenate([(tree.position - tree.position[0]) / scale for tree in trees]).astype(np.float32),
        features=np.concatenate([_features(tree, scale) for tree in trees]).astype(np.float32),
        parent=np.concatenate([tree.parent for tree in trees]).astype(np.int32),
        end=np.concatenate([_ends(tree) for tree in trees]).astype(np.int32),
        first=starts([len(tree) for tree in trees]),
        path=np.concatenate(paths, axis=1).astype(np.int32),
        first_path=starts([path.shape[1] for path in paths]),
        label=labels.astype(np.int32),
        train=np.arange(len(trees)),
        validation=np.arange(0),
        test=np.arange(0),
        name=name,
        classes=tuple(classes),
        bad=bad,
    )


def split(data: TreeData, seed: int) -> TreeData:
    """Holds out 15 % of the trees for validation and 15 % for the test; raises ``DataError`` below three trees."""
    if len(data) < 3:
        raise DataError(f"{data.name} holds {len(data)} trees: give three or more, for training, validation and test")
    order = np.random.default_rng(seed).permutation(len(data))
    held = max(1, round(HELD_OUT * len(data)))
    validation, test, train = (np.sort(part) for part in np.split(order, [held, 2 * held]))
    return replace(data, train=train, validation=validation, test=test)


def _edges(tree: Tree) -> NDArray[np.int64]:
    return np.stack([tree.parent[1:], np.arange(1, len(tree))])


def _edge_lengths(tree: Tree) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(tree.position[1:] - tree.position[tree.parent[1:]], axis=1)
    return lengths


def _features(tree: Tree, scale: float) -> NDArray[np.float64]:
    """``FEATURES``, with log(1 + x) of those that can be large, in the data set's units."""
    depth = np.zeros(len(tree))
    length = np.zeros(len(tree))
    edges = _edge_lengths(tree)
    for node, parent in enumerate(tree.parent[1:].tolist(), 1):
        depth[node] = depth[parent] + 1
        length[node] = length[parent] + edges[node - 1]
    root = np.zeros(len(tree))
    root[0] = 1
    distance = np.linalg.norm(tree.position - tree.position[0], axis=1)
    logs = [np.log1p(np.abs(value) / unit) for value, unit in ((tree.radius, scale), (depth, 1))]
    return np.stack([root, *logs, np.log1p(length / scale), np.log1p(distance / scale)], axis=1)


def _ends(tree: Tree) -> NDArray[np.int64]:
    """For each node, the node after its last descendant."""
    end = np.arange(1, len(tree) + 1)
    for node, parent in zip(range(len(tree) - 1, 0, -1), tree.parent[:0:-1].tolist(), strict=True):
        end[parent] = max(end[parent], end[node])
    return end


def synthetic_trees(num_trees: int = 80, *, seed: int = 0) -> tuple[list[Tree], NDArray[np.int64], tuple[str, ...]]:
    """Binary trees that grow tip by tip in space, their labels (num_trees,), and the names of their two types.

    Both types have the same distribution of edges. Bushy trees branch at any tip and change direction; stemmed trees
    mostly branch at the latest tip and keep it. Edges are log-normal about 30 µm; radii decrease with the distance
    from the root.
    """
    if num_trees < 1:
        raise InputError(f"num_trees {num_trees}: must be at least 1")
    random = np.random.default_rng(seed)
    labels = np.arange(num_trees, dtype=np.int64) % 2
    return [_grow(random, STEM[label], STRAIGHT[label]) for label in labels], labels, CLASSES


def _grow(random: np.random.Generator, stem: float, straight: float) -> Tree:
    position, parent, direction = [np.zeros(3)], [-1], [np.array([0.0, 0.0, 1.0])]
    tips = [0]
    for _ in range(int(random.integers(_FEWEST, _MOST))):
        tip = tips.pop(-1 if random.random() < stem else int(random.integers(len(tips))))
        for _ in range(2):
            heading = straight * direction[tip] + random.normal(size=3)
            heading /= np.linalg.norm(heading)
            tips.append(len(parent))
            position.append(position[tip] + heading * random.lognormal(np.log(30), 0.5))
            direction.append(heading)
            parent.append(tip)
    rows, parents = preorder(np.array(parent), 0)
    placed = np.array(position)[rows]
    radius = 1 / (1 + np.linalg.norm(placed, axis=1) / 100)
    return Tree(placed, radius, parents)


def third_order_paths(edges: NDArray[np.integer], num_nodes: int, *, max_paths: int = MAX_PATHS) -> Index:
    """All simple paths of four nodes, in both directions, then a path (v, v, v, v) for each node: (4, P) int64.

    So every node has a path. A tree has Σ over edges {j, k} of 2 (deg j - 1)(deg k - 1) simple paths. Time and memory
    are linear in their number. The edges (2, E) are undirected, without loops, and each occurs once in one direction.
    Raises ``InputError`` before paths are made if there are more than ``max_paths``.
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
    single = np.broadcast_to(np.arange(num_nodes), (4, num_nodes))
    return np.concatenate([paths, single], axis=1)


def k_th(first: Index, rank: Index, left_out: Index) -> Index:
    """Positions ``first + rank``, skipping the position ``left_out``."""
    position = first + rank
    shifted: Index = position + (position >= left_out)
    return shifted
