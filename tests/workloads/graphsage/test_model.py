from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

from tuner.datasets.ratings import RatingData
from tuner.search.configurations import complete
from tuner.workloads.graphsage.model import SAGEConvOnCSR, adjacency, dropout
from tuner.workloads.graphsage.workload import GraphSAGE

# Users 0 to 2, items 3 to 5: user 0 has rated items 3 and 4, users 1 and 2 item 4.
CROW, COL = torch.tensor([0, 2, 3, 4, 5, 8, 8]).int(), torch.tensor([3, 4, 4, 4, 0, 0, 1, 2]).int()
EDGES = torch.stack([COL.long(), torch.repeat_interleave(torch.arange(6), CROW.diff())])
TARGETS = torch.tensor([4, 0, 4])  # a bipartite graph from all nodes to these
SAMPLED = adjacency(torch.tensor([0, 2, 3, 5]).int(), torch.tensor([0, 1, 4, 2, 2]).int(), 6)
SAMPLED_EDGES = torch.tensor([[0, 1, 4, 2, 2], [0, 0, 1, 2, 2]])


def outputs(layer: SAGEConv, x: Tensor, graphs: tuple[Tensor, Tensor]) -> Tensor:
    """The layer on the graph, and on the bipartite one."""
    whole, sampled = graphs
    return torch.cat([layer(x, whole), layer((x, x[TARGETS]), sampled)])


def test_a_layer_and_its_gradients_agree_with_pygs_on_the_same_weights() -> None:
    theirs, ours = SAGEConv(4, 3), SAGEConvOnCSR(4, 3)
    ours.load_state_dict(theirs.state_dict())
    found = []
    for layer, graphs in ((theirs, (EDGES, SAMPLED_EDGES)), (ours, (adjacency(CROW, COL, 6), SAMPLED))):
        x = torch.arange(24.0).view(6, 4).requires_grad_()
        out = outputs(layer, x, graphs)
        (out * torch.arange(27.0).view(9, 3)).sum().backward()
        found.append([out, x.grad, *(parameter.grad for parameter in layer.parameters())])
    torch.testing.assert_close(*found)


def test_the_gradient_of_the_mean_is_right() -> None:
    layer = SAGEConvOnCSR(4, 3).double()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: outputs(layer, x, (adjacency(CROW, COL, 6), SAMPLED)), (x,))


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    x = torch.ones(100_000, requires_grad=True)
    y = dropout(x, 0.3, True)
    y.sum().backward()
    assert float((y == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(y.detach().mean()) == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(x.grad, y.detach())
    assert torch.equal(dropout(x, 0.0, True), x)
    assert dropout(x, 0.3, False) is x


def test_sampled_neighbours_are_drawn_evenly_and_with_replacement(ratings: RatingData) -> None:
    model = GraphSAGE().build_model(complete({}, GraphSAGE.hyperparameters), ratings)
    model.crow, model.col = CROW, COL
    torch.manual_seed(0)
    drawn = model._sample(torch.tensor([4, 1]).int(), 3000)
    assert drawn.dtype == torch.int32
    counts = drawn[:3000].bincount(minlength=6)
    assert counts[3:].tolist() == [0, 0, 0]
    assert all(850 < count < 1150 for count in counts[:3].tolist())
    assert set(drawn[3000:].tolist()) == {4}
