from __future__ import annotations

import torch

from tuner.workloads.graphsage.sparse import Csr, bipartite_mean, csr_matmul

USER, ITEM = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 1])  # item 2 has no rating


def dense(graph: Csr) -> torch.Tensor:
    return csr_matmul(*graph, torch.eye(6))


def test_the_matrix_averages_over_neighbours() -> None:
    expected = torch.tensor(
        [
            [0, 0, 0, 1 / 2, 1 / 2, 0],
            [0, 0, 0, 0, 1, 0],
            [0, 0, 0, 0, 1, 0],
            [1, 0, 0, 0, 0, 0],
            [1 / 3, 1 / 3, 1 / 3, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
        ]
    )
    torch.testing.assert_close(dense(bipartite_mean(USER, ITEM, 3, 3)), expected)


def test_the_second_half_is_the_transposed_matrix() -> None:
    graph = bipartite_mean(USER, ITEM, 3, 3)
    torch.testing.assert_close(dense(Csr(*graph[3:], *graph[:3])), dense(graph).T)


def test_the_gradient_is_right() -> None:
    graph = bipartite_mean(USER, ITEM, 3, 3)
    double = graph._replace(value=graph.value.double(), value_t=graph.value_t.double())
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: csr_matmul(*double, x), (x,))


def test_the_operator_keeps_torchs_rules_for_custom_operators() -> None:
    graph = bipartite_mean(USER, ITEM, 3, 3)
    torch.library.opcheck(torch.ops.tuner.csr_matmul.default, (*graph, torch.randn(6, 4, requires_grad=True)))
