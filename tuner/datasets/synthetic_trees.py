"""Synthetic geometric trees of two growth types, for demonstrations and tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.swc import Tree, preorder
from tuner.errors import InputError

CLASSES = ("bushy", "stemmed")
STEM = (0.0, 0.7)  # for each type, the probability that the latest tip branches instead of a random one
STRAIGHT = (0.5, 1.2)  # for each type, the weight of the old direction
_FEWEST, _MOST = 25, 90  # the number of a tree's branchings


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
