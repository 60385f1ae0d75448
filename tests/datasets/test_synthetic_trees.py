from __future__ import annotations

import numpy as np
import pytest

from tuner.datasets.swc import reduce_tree
from tuner.datasets.trees import synthetic_trees
from tuner.errors import InputError


def test_half_of_the_trees_are_of_each_type() -> None:
    trees, labels, classes = synthetic_trees(10)
    assert (len(trees), labels.tolist(), classes) == (10, [0, 1] * 5, ("bushy", "stemmed"))


def test_the_same_seed_gives_the_same_trees() -> None:
    (first, *_), (again, *_), (other, *_) = (synthetic_trees(3, seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first.position, again.position)
    assert not np.array_equal(first.position[:9], other.position[:9])


def test_they_are_binary_and_in_preorder() -> None:
    for tree in synthetic_trees(6)[0]:
        children = np.bincount(tree.parent[1:], minlength=len(tree))
        assert set(children.tolist()) == {0, 2}
        assert (tree.parent[1:] < np.arange(1, len(tree))).all()
        assert np.array_equal(reduce_tree(tree).parent, tree.parent)
        assert np.isfinite(tree.position).all()
        order = np.argsort(np.linalg.norm(tree.position, axis=1))
        assert (np.diff(tree.radius[order]) < 0).all()


def test_types_differ_in_shape_and_neither_in_size_nor_in_edges() -> None:
    trees, labels, _ = synthetic_trees(80)
    lengths = [np.linalg.norm(tree.position[1:] - tree.position[tree.parent[1:]], axis=1) for tree in trees]
    reach = [np.linalg.norm(tree.position, axis=1).max() for tree in trees]
    for values, least in (([np.median(part) for part in lengths], 0.9), ([len(tree) for tree in trees], 0.8)):
        low, high = sorted(float(np.mean(np.array(values)[labels == label])) for label in (0, 1))
        assert low / high > least
    bushy, stemmed = (float(np.mean(np.array(reach)[labels == label])) for label in (0, 1))
    assert stemmed > 1.5 * bushy


def test_fewer_than_one_tree_is_refused() -> None:
    with pytest.raises(InputError, match="num_trees 0: must be at least 1"):
        synthetic_trees(0)
