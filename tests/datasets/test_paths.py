from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tuner
from tuner.datasets.swc import find_files, read_swc
from tuner.datasets.trees import third_order_paths
from tuner.errors import InputError

CTX2 = Path(tuner.__file__).parents[1].parent / "shared/data/swc/ctx2"


def random_tree(nodes: int, seed: int) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    parents = [int(random.integers(node)) for node in range(1, nodes)]
    return random.permutation(nodes)[np.array([parents, range(1, nodes)], dtype=np.int64)]


def random_graph(nodes: int, seed: int, density: float = 0.5) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    pairs = np.array(np.triu_indices(nodes, 1))[:, random.random(nodes * (nodes - 1) // 2) < density]
    return np.where(random.random(pairs.shape[1]) < 0.5, pairs, pairs[::-1])


def by_brute_force(edges: NDArray[Any], nodes: int) -> list[tuple[int, ...]]:
    joined = {(a, b) for a, b in edges.T.tolist()} | {(b, a) for a, b in edges.T.tolist()}
    simple = (
        path
        for path in permutations(range(nodes), 4)
        if (path[0], path[1]) in joined and (path[1], path[2]) in joined and (path[2], path[3]) in joined
    )
    return sorted([*simple, *((node,) * 4 for node in range(nodes))])


def formula(edges: NDArray[Any], nodes: int) -> int:
    degree = np.bincount(edges.ravel(), minlength=nodes)
    return int((2 * (degree[edges[0]] - 1) * (degree[edges[1]] - 1)).sum()) + nodes


def as_sorted(paths: NDArray[np.int64]) -> list[tuple[int, ...]]:
    return sorted(tuple(path) for path in paths.T.tolist())


@pytest.mark.parametrize("seed", range(8))
def test_the_paths_of_a_tree_are_those_of_a_brute_force_search(seed: int) -> None:
    nodes = 2 + seed
    edges = random_tree(nodes, seed)
    paths = third_order_paths(edges, nodes)
    assert as_sorted(paths) == by_brute_force(edges, nodes)
    assert paths.shape[1] == formula(edges, nodes)


@pytest.mark.parametrize("seed", range(8))
def test_the_paths_of_a_graph_are_too_and_triangles_are_none(seed: int) -> None:
    edges = random_graph(8, seed)
    assert as_sorted(third_order_paths(edges, 8)) == by_brute_force(edges, 8)


def test_a_triangle_and_a_square() -> None:
    triangle, square = np.array([[0, 1, 2], [1, 2, 0]]), np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    assert third_order_paths(triangle, 3).shape[1] == 3
    assert third_order_paths(square, 4).shape[1] == 8 + 4


@pytest.mark.parametrize("seed", range(3))
def test_a_path_has_four_nodes_and_is_there_in_both_directions(seed: int) -> None:
    paths = third_order_paths(random_tree(200, seed), 200)
    simple, own = paths[:, :-200], paths[:, -200:]
    assert (np.diff(np.sort(simple, axis=0), axis=0) > 0).all()
    assert (own == np.arange(200)).all()
    assert as_sorted(simple) == as_sorted(simple[::-1])
    assert len(set(as_sorted(simple))) == simple.shape[1]


@pytest.mark.parametrize("nodes", [1, 5])
def test_nodes_without_edges_have_their_own_path(nodes: int) -> None:
    assert third_order_paths(np.zeros((2, 0), dtype=np.int64), nodes).tolist() == [list(range(nodes))] * 4


@pytest.mark.skipif(not CTX2.is_dir(), reason=f"the reconstructions are not in {CTX2}")
def test_raw_reconstructions_have_as_many_paths_as_the_formula_says() -> None:
    files = find_files(CTX2)
    for path in files:
        parent = read_swc(path).parent
        edges = np.stack([parent[1:], np.arange(1, len(parent))])
        assert third_order_paths(edges, len(parent)).shape[1] == formula(edges, len(parent)), path.name
    assert len(files) == 80


def test_too_many_paths_are_refused_before_they_are_made() -> None:
    edges = np.array(np.triu_indices(1000, 1))  # all of them would take 32 TB
    with pytest.raises(InputError, match=r"995,007,996,000 .* more than 50,000,000: reduce it to a spanning tree"):
        third_order_paths(edges, 1000)
    with pytest.raises(InputError, match="raise max_paths"):
        third_order_paths(np.array([[0, 1, 2], [1, 2, 3]]), 4, max_paths=1)
    assert third_order_paths(np.array([[0, 1, 2], [1, 2, 3]]), 4, max_paths=2).shape[1] == 2 + 4
