"""The losses of KD-GAT for a VGAE, a GAT and their students, and the difficulty of a graph.

Students use only a teacher's outputs, which may be computed or cached. Every loss is a mean over graphs with equal
weights, so the weighted losses of micro-batches add up to that of their batch.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch

from tuner.workloads.kd_gat.networks import VGAE, VgaeOutput, graph_mean

ID_WEIGHT = 0.1
NEIGHBOUR_WEIGHT = 0.05
KL_WEIGHT = 0.01
TEACHER_WEIGHT = 0.7
TEMPERATURE = 4.0


def vgae_loss(output: VgaeOutput, batch: Batch) -> Tensor:
    """MSE + 0.1 · CE(id) + 0.05 · BCE(neighbours) + 0.01 · KL, a scalar; without IDs only MSE and KL."""
    node = _reconstruction(output, batch) + KL_WEIGHT * _divergence(output)
    if output.neighbours is not None:
        target = neighbour_ids(output.neighbours, batch)
        wrong = F.binary_cross_entropy_with_logits(output.neighbours, target, reduction="none").mean(1)
        node = node + NEIGHBOUR_WEIGHT * wrong
    return graph_mean(node, batch).mean()


def distilled_vgae_loss(
    output: VgaeOutput,
    batch: Batch,
    teacher_z: Tensor,
    teacher_features: Tensor,
    projection: nn.Module,
    *,
    weight: float = TEACHER_WEIGHT,
) -> Tensor:
    """A student's loss: w · [½ MSE(P z, z_t) + ½ MSE(x̂, x̂_t)] + (1 - w) · ``vgae_loss``, a scalar.

    z_t are the teacher's means and x̂_t its reconstruction. P is a linear layer that is trained with the student.
    """
    latent = (projection(output.z) - teacher_z).float().square().mean(1)
    reconstructed = (output.features - teacher_features).float().square().mean(1)
    taught = graph_mean(0.5 * latent + 0.5 * reconstructed, batch).mean()
    return weight * taught + (1 - weight) * vgae_loss(output, batch)


def gat_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy with the labels, a scalar."""
    return F.cross_entropy(logits, batch.y)


def distilled_gat_loss(
    logits: Tensor,
    batch: Batch,
    teacher_logits: Tensor,
    *,
    weight: float = TEACHER_WEIGHT,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """A student's loss: w · T² · KL(softmax(t / T) ‖ softmax(s / T)) + (1 - w) · CE, a scalar.

    The softmax is over classes, the mean over graphs. T is the temperature, above 0.
    """
    log_probability = F.log_softmax(logits / temperature, dim=1)
    target = F.softmax(teacher_logits.float() / temperature, dim=1)
    divergence = F.kl_div(log_probability, target, reduction="batchmean")
    return weight * temperature**2 * divergence + (1 - weight) * gat_loss(logits, batch)


@torch.no_grad()
def difficulty(model: VGAE, batches: Iterable[Batch]) -> Tensor:
    """MSE + 0.1 · CE(id) of each graph, in order and on the CPU, by a model in evaluation mode."""
    return torch.cat([graph_mean(_reconstruction(model(batch), batch), batch).cpu() for batch in batches])


def neighbour_ids(logits: Tensor, batch: Batch) -> Tensor:
    """(N, V): 1 where a predecessor or successor of the node has this ID, otherwise 0; like the logits."""
    source, target = batch.edge_index
    neighbours = torch.zeros_like(logits)
    neighbours[target, batch.ids[source]] = 1.0
    neighbours[source, batch.ids[target]] = 1.0
    return neighbours


def _reconstruction(output: VgaeOutput, batch: Batch) -> Tensor:
    """(N,): MSE + 0.1 · CE(id)."""
    error: Tensor = (output.features - batch.x).square().mean(1)
    if output.ids is None:
        return error
    return error + ID_WEIGHT * F.cross_entropy(output.ids, batch.ids, reduction="none")


def _divergence(output: VgaeOutput) -> Tensor:
    """(N,): KL(N(μ, σ²) ‖ N(0, 1)), the mean over the latent channels.

    The sum over the channels would outweigh the MSE, which is a mean: without IDs the latent variables would then
    carry no information.
    """
    return 0.5 * (output.mean.square() + output.log_variance.exp() - output.log_variance - 1).mean(1)
