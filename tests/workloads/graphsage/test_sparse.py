from __future__ import annotations

import torch

from tuner.workloads.graphsage.sparse import bag_sum, csr_sum, graph_of

# Users 0 to 2, items 3 to 5: user 0 has rated items 3 and 4, users 1 and 2 item 4.
GRAPH = graph_of(torch.tensor([0, 2, 3, 4, 5, 8, 8]).int(), torch.tensor([3, 4, 4, 4, 0, 0, 1, 2]).int())
BAGS = [(torch.tensor([1, 4]).int(), 1), (torch.tensor([0, 0, 4, 2, 3, 4]).int(), 3)]


def test_the_mean_is_over_each_nodes_neighbours() -> None:
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
    torch.testing.assert_close(GRAPH.mean(torch.eye(6)), expected)


def test_the_gradients_are_right() -> None:
    double = GRAPH._replace(inverse=GRAPH.inverse.double())
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(double.mean, (x,))
    assert torch.autograd.gradcheck(lambda x: bag_sum(BAGS, x), (x,))


def test_bags_are_sums_of_rows() -> None:
    x = torch.randn(6, 4)
    expected = torch.stack([x[1], x[4], 2 * x[0] + x[4], x[2] + x[3] + x[4]])
    torch.testing.assert_close(bag_sum(BAGS, x), expected)


def test_the_operator_keeps_torchs_rules_for_custom_operators() -> None:
    graph = GRAPH.crow, GRAPH.col, GRAPH.crow, GRAPH.col
    torch.library.opcheck(torch.ops.tuner.csr_sum.default, (*graph, torch.randn(6, 4, requires_grad=True)))
    torch.testing.assert_close(csr_sum(*graph, torch.eye(6))[0], torch.tensor([0.0, 0, 0, 1, 1, 0]))


def test_sampled_neighbours_are_drawn_evenly_and_with_replacement() -> None:
    torch.manual_seed(0)
    drawn = GRAPH.sample(torch.tensor([4, 1]).int(), 3000)
    assert drawn.dtype == torch.int32
    counts = drawn[:3000].bincount(minlength=6)
    assert counts[3:].tolist() == [0, 0, 0]
    assert all(850 < count < 1150 for count in counts[:3].tolist())
    assert set(drawn[3000:].tolist()) == {4}
