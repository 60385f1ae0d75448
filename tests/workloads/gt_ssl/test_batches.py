from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.random import Generator
from torch_geometric.data import Batch

from tuner.datasets.swc import Tree
from tuner.datasets.trees import TreeData, build, synthetic_trees
from tuner.workloads.gt_ssl.batches import Limits, ancestor_chains, batches, collate, largest, negative_pairs

ALL = Limits(trees=100, paths=10**9, positives=0, negatives=16)


def random() -> Generator:
    return np.random.default_rng(0)


def paths_of(data: TreeData, tree: int) -> int:
    return int(data.first_path[tree + 1] - data.first_path[tree])


def star(leaves: int) -> Tree:
    position = np.random.default_rng(leaves).normal(size=(leaves + 1, 3))
    return Tree(position, np.ones(leaves + 1), np.array([-1] + [0] * leaves))


def above(parent: torch.Tensor, node: int) -> list[int]:
    found = [node]
    while parent[found[-1]] >= 0:
        found.append(int(parent[found[-1]]))
    return found


# ------------------------------------------------------------------------------------------------ pairs and chains


def test_a_negative_pair_is_never_in_order(trees: TreeData) -> None:
    rows = slice(0, int(trees.first[1]))
    parent = torch.from_numpy(trees.parent[rows])
    pairs = negative_pairs(trees.end[rows], 3000, random())
    for first, second in set(zip(*pairs.tolist(), strict=True)):
        assert first not in above(parent, second)  # of which second itself is one


def test_all_other_pairs_are_equally_likely() -> None:
    end = np.array([7, 4, 3, 4, 7, 6, 7])  # the binary tree of 7 nodes in preorder
    valid = {(u, v) for u in range(7) for v in range(7) if not u <= v < end[u]}
    counts = Counter(zip(*negative_pairs(end, 300 * len(valid), random()).tolist(), strict=True))
    assert set(counts) == valid
    assert min(counts.values()) > 220
    assert max(counts.values()) < 380


@pytest.mark.parametrize(("nodes", "count"), [(1, 5), (9, 0)])
def test_there_may_be_no_negative_pair(nodes: int, count: int) -> None:
    assert negative_pairs(np.full(nodes, nodes), count, random()).shape == (2, 0)


def test_in_an_unbranched_tree_only_descendants_come_first() -> None:
    first, second = negative_pairs(np.full(5, 5), 200, random())
    assert (first > second).all()
    assert len(set(zip(first, second, strict=True))) == 10


def test_chains_go_from_a_node_to_its_great_grandparent() -> None:
    chains = ancestor_chains(np.array([-1, 0, 1, 2, 3, 2, 0]))
    simple, own = chains[:, :-7], chains[:, -7:]
    assert simple.T.tolist() == [[3, 2, 1, 0], [4, 3, 2, 1], [5, 2, 1, 0]]
    assert (own == np.arange(7)).all()
    assert ancestor_chains(np.array([-1])).tolist() == [[0]] * 4


# ------------------------------------------------------------------------------------------------ one batch


def test_nodes_are_counted_over_the_batch(trees: TreeData) -> None:
    both, one, other = (collate(trees, which, ALL._replace(negatives=0), random()) for which in ([3, 5], [3], [5]))
    nodes = len(one.x)
    for name in ("path_index", "chain_index", "edge_index", "positive_index"):
        expected = torch.cat([getattr(one, name), getattr(other, name) + nodes], dim=1)
        assert torch.equal(getattr(both, name), expected), name
    assert torch.equal(both.pos, torch.cat([one.pos, other.pos]))
    assert both.num_graphs == 2


def test_positive_pairs_are_all_edges_or_so_many_of_them(trees: TreeData) -> None:
    every, some = (collate(trees, [0], ALL._replace(positives=count), random()) for count in (0, 5))
    assert torch.equal(every.positive_index, every.edge_index)
    assert some.positive_index.shape == (2, 5)
    assert set(zip(*some.positive_index.tolist(), strict=True)) < set(zip(*every.edge_index.tolist(), strict=True))
    assert collate(trees, [0], ALL._replace(positives=10**6), random()).positive_index.shape == every.edge_index.shape


def test_a_tree_within_the_limit_has_all_its_paths(trees: TreeData) -> None:
    batch = collate(trees, [0], ALL._replace(paths=paths_of(trees, 0)), random())
    assert batch.path_index.shape[1] == paths_of(trees, 0)
    assert batch.path_weight.tolist() == [1]


@pytest.mark.parametrize("limit", [16, 200])
def test_of_a_larger_tree_paths_are_drawn_and_stand_for_all(trees: TreeData, limit: int) -> None:
    batch = collate(trees, [0], ALL._replace(paths=limit), random())
    every = collate(trees, [0], ALL, random()).path_index
    assert batch.path_index.shape[1] == limit
    assert len(set(zip(*batch.path_index.tolist(), strict=True)) & set(zip(*every.tolist(), strict=True))) == limit
    assert float(batch.path_weight[0]) == pytest.approx(every.shape[1] / limit)


def test_what_drawn_paths_stand_for_is_right_on_average(trees: TreeData) -> None:
    every = collate(trees, [0], ALL, random()).path_index[0].bincount(minlength=int(trees.first[1])).double()
    draws, found = random(), torch.zeros_like(every)
    for _ in range(400):
        batch = collate(trees, [0], ALL._replace(paths=100), draws)
        found += batch.path_weight[0] * batch.path_index[0].bincount(minlength=len(every)) / 400
    torch.testing.assert_close(found, every, rtol=0.2, atol=0.6)


def test_the_largest_batch_has_more_paths_than_any_other_where_the_limit_binds() -> None:
    listed, labels, classes = synthetic_trees(12)
    data = build(listed, labels, "t", classes)
    sizes = np.diff(data.first_path)
    for limit in (int(sizes.max()) + 1, int(1.5 * sizes.max()), int(2.2 * sizes.max())):
        limits = Limits(3, limit, 0, 0)
        most = max(
            sum(sizes[list(trees)])
            for count in (1, 2, 3)
            for trees in combinations(range(12), count)
            if sum(sizes[list(trees)]) <= limit
        )
        assert sum(sizes[largest(data, np.arange(12), limits)]) >= most


def test_a_tree_of_one_node_is_a_batch() -> None:
    dot = build([star(0)], np.zeros(1, dtype=np.int64), "dot", ("",))
    batch = collate(dot, [0], ALL, random())
    assert (len(batch.x), batch.path_index.tolist(), batch.edge_index.shape) == (1, [[0]] * 4, (2, 0))


# ------------------------------------------------------------------------------------------------ an epoch


@pytest.mark.parametrize(("most", "paths"), [(1, 10**9), (5, 10**9), (5, 1600), (100, 700), (100, 10**9)])
def test_every_tree_is_in_one_batch_within_the_limits(most: int, paths: int, trees: TreeData) -> None:
    order = list(reversed(range(len(trees))))
    found = list(batches(trees, order, Limits(most, paths, 0, 0), random()))
    assert all(batch.num_graphs <= most and batch.path_index.shape[1] <= paths for batch in found)
    expected = np.concatenate([np.arange(trees.first[tree], trees.first[tree + 1]) for tree in order])
    assert torch.equal(torch.cat([batch.x for batch in found]), torch.from_numpy(trees.features[expected]))


def test_batches_are_as_full_as_the_limits_allow(trees: TreeData) -> None:
    found = list(batches(trees, range(12), ALL._replace(trees=5), random()))
    assert [batch.num_graphs for batch in found] == [5, 5, 2]
    limit = 2000
    filled = [batch.num_graphs for batch in batches(trees, range(12), ALL._replace(paths=limit), random())]
    after = np.cumsum(filled)[:-1].tolist()
    for count, end in zip(filled, after, strict=False):
        assert sum(paths_of(trees, tree) for tree in range(end - count, end + 1)) > limit


def test_no_trees_are_no_batches(trees: TreeData) -> None:
    assert list(batches(trees, [], ALL, random())) == []


# ------------------------------------------------------------------------------------------------ the largest


def test_the_largest_batch_has_the_trees_of_most_paths(trees: TreeData) -> None:
    sizes = {int(tree): paths_of(trees, int(tree)) for tree in trees.train}
    expected = sorted(sizes, key=lambda tree: -sizes[tree])[:3]
    assert largest(trees, trees.train, ALL._replace(trees=3)) == expected
    assert set(largest(trees, trees.train, ALL)) == set(sizes)


@pytest.mark.parametrize(
    ("limits", "slack"), [(Limits(4, 10**9, 0, 8), 1), (Limits(4, 300, 0, 8), 1), (Limits(4, 1500, 0, 8), 1)]
)
def test_no_batch_of_an_epoch_is_larger(limits: Limits, slack: float, trees: TreeData) -> None:
    """Where several trees share the paths, they may fill the limit a little better than the largest do."""
    most = slack * size(collate(trees, largest(trees, trees.train, limits), limits, random()))
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(trees.train)
        for batch in batches(trees, order.tolist(), limits, random()):
            assert size(batch) <= most


def size(batch: Batch) -> int:
    """What a batch's memory goes by: the rows of messages."""
    return batch.path_index.shape[1] + batch.chain_index.shape[1]


def test_of_trees_over_the_limit_that_of_most_nodes_is_the_largest() -> None:
    data = build([star(30), star(80), star(50)], np.zeros(3, dtype=np.int64), "stars", ("",))
    assert largest(data, np.arange(3), Limits(1, 20, 0, 0)) == [1]


def test_trees_that_are_mapped_for_reading_alone_become_batches_without_a_warning() -> None:
    data = build([star(3), star(4)], np.zeros(2, dtype=np.int64), "two", ("",))
    for array in (data.features, data.position):
        array.flags.writeable = False
    (batch,) = batches(data, range(2), Limits(trees=2, paths=10**9, positives=0, negatives=4), random())
    assert batch.x.shape[0] == 9
