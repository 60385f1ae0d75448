"""Geometric trees as arrays that all trials of a machine share: the common form of all sources of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.cache import cached, file_key
from tuner.datasets.paths import third_order_paths
from tuner.datasets.spans import spans, starts
from tuner.datasets.swc import Tree, find_files, read_folder
from tuner.errors import DataError

FEATURES = ("is root", "radius", "branch points above", "path length to the root", "distance from the root")
VERSION = "3"  # of the cache: increase it when the built data change
HELD_OUT = 0.15  # the share of the trees for validation, and the same for the test


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


def load_trees(source: str, *, seed: int, skip_bad: bool = False, label_level: int = 1) -> TreeData:
    """Trees by name or path; raises ``DataError`` if the folder or a file in it is invalid.

    ``source`` is ``synthetic`` (generated), or a folder of SWC files. Their labels are the names of the sub-folders
    of level ``label_level``, counted from 1. ``seed`` is that of the split; ``skip_bad`` leaves out invalid files.
    """
    if source == "synthetic":
        from tuner.datasets.synthetic_trees import synthetic_trees

        if label_level != 1:
            raise DataError(f"label_level {label_level}: generated trees are in no folders: leave it out")
        trees, labels, classes = synthetic_trees()
        return split(build(trees, labels, "synthetic trees", classes), seed)
    folder = Path(source).expanduser()

    def read() -> TreeData:
        swc = read_folder(folder, skip_bad=skip_bad, label_level=label_level)
        return build(swc.trees, swc.labels, folder.resolve().name, swc.classes, len(swc.bad))

    return split(cached(TreeData, file_key(folder, find_files(folder), VERSION, skip_bad, label_level), read), seed)


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
        raise DataError(f"{data.name} holds {len(data)} trees: give at least three, to train, choose and report on")
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
