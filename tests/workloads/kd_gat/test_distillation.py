from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch

from tests.support.can_graphs import NUM_IDS, random_batch, random_graphs
from tests.support.changed_batch import changed
from tuner.workloads.kd_gat.distillation import (
    distilled_gat_loss,
    distilled_vgae_loss,
    gat_loss,
    neighbour_ids,
    vgae_loss,
)
from tuner.workloads.kd_gat.networks import VGAE, VgaeOutput


def output_of(batch: Batch, *, ids: bool = True) -> VgaeOutput:
    torch.manual_seed(0)
    nodes = len(batch.ids)
    logits = torch.randn(2, nodes, NUM_IDS)
    mean, log_variance = torch.randn(2, nodes, 4)
    of_ids = (logits[0], logits[1]) if ids else (None, None)
    return VgaeOutput(torch.rand(nodes, 10), *of_ids, mean, log_variance, mean)


def equal_sizes() -> Batch:
    """Graphs of as many nodes each, so that means over graphs are means over nodes."""
    graphs = [graph for graph in random_graphs(30) if len(graph.ids) == NUM_IDS]
    return Batch.from_data_list(graphs[:4])


@pytest.mark.parametrize("ids", [True, False])
def test_a_vgaes_loss_is_that_of_the_paper(ids: bool) -> None:
    batch = equal_sizes()
    output = output_of(batch, ids=ids)
    normal = torch.distributions.Normal(output.mean, (0.5 * output.log_variance).exp())
    divergence = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).mean()
    expected = F.mse_loss(output.features, batch.x) + 0.01 * divergence
    if output.ids is not None and output.neighbours is not None:
        target = torch.zeros(len(batch.ids), NUM_IDS)
        for before, after in batch.edge_index.T.tolist():
            target[after, batch.ids[before]] = target[before, batch.ids[after]] = 1.0
        expected += 0.1 * F.cross_entropy(output.ids, batch.ids)
        expected += 0.05 * F.binary_cross_entropy_with_logits(output.neighbours, target)
    torch.testing.assert_close(vgae_loss(output, batch), expected)


def test_losses_of_halves_add_up_to_that_of_the_whole() -> None:
    graphs = [*random_graphs(2, frames=4), *random_graphs(2, frames=30)]
    halves = [Batch.from_data_list(graphs[:2]), Batch.from_data_list(graphs[2:])]
    torch.manual_seed(0)
    model = VGAE(NUM_IDS, hidden_channels=8, latent_channels=4, heads=1, dropout=0.0).eval()
    assert len(halves[0].ids) < len(halves[1].ids)
    whole = vgae_loss(model(Batch.from_data_list(graphs)), Batch.from_data_list(graphs))
    torch.testing.assert_close(sum(vgae_loss(model(half), half) for half in halves) / 2, whole)


def test_neighbours_are_those_before_and_after_and_a_node_itself_only_if_it_was_seen_twice_in_a_row() -> None:
    batch = changed(
        random_batch(1),
        ids=torch.tensor([3, 0, 5]),
        edge_index=torch.tensor([[0, 1, 1], [1, 1, 2]]),
        x=torch.zeros(3, 10),
    )
    found = neighbour_ids(torch.zeros(3, 6), batch)
    assert [row.nonzero().flatten().tolist() for row in found] == [[0], [0, 3, 5], [0]]


def test_a_student_that_says_what_its_teacher_says_learns_from_labels_alone() -> None:
    batch = random_batch(4)
    logits, output = torch.randn(4, 2), output_of(batch)
    torch.testing.assert_close(distilled_gat_loss(logits, batch, logits), 0.3 * gat_loss(logits, batch))
    found = distilled_vgae_loss(output, batch, output.z, output.features, nn.Identity())
    torch.testing.assert_close(found, 0.3 * vgae_loss(output, batch))


def test_a_gat_learns_from_its_teachers_softened_classes() -> None:
    batch, student, teacher = random_batch(3), torch.randn(3, 2), torch.randn(3, 2)
    p, q = (teacher / 4).exp(), (student / 4).exp()
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    divergence = float((p * (p / q).log()).sum() / 3)
    expected = 0.7 * 16 * divergence + 0.3 * float(F.cross_entropy(student, batch.y))
    assert math.isclose(float(distilled_gat_loss(student, batch, teacher)), expected, rel_tol=1e-5)
    assert float(distilled_gat_loss(student, batch, teacher, weight=0.0)) == float(gat_loss(student, batch))
    softer = distilled_gat_loss(student, batch, teacher, weight=1.0, temperature=8.0)
    assert float(softer) != pytest.approx(16 * divergence, rel=1e-3)


def test_a_vgae_learns_its_teachers_latent_variables_through_a_projection_that_is_trained() -> None:
    batch = equal_sizes()
    output, projection = output_of(batch), nn.Linear(4, 6)
    teacher_z, teacher_features = torch.randn(len(batch.ids), 6), torch.rand(len(batch.ids), 10)
    found = distilled_vgae_loss(output, batch, teacher_z, teacher_features, projection)
    seen: Tensor = F.mse_loss(output.features, teacher_features)
    taught = 0.5 * F.mse_loss(projection(output.z), teacher_z) + 0.5 * seen
    torch.testing.assert_close(found, 0.7 * taught + 0.3 * vgae_loss(output, batch))
    found.backward()
    assert projection.weight.grad is not None and projection.weight.grad.abs().sum() > 0
