"""The models of KD-GAT: a VGAE that learns normal CAN traffic, and a GAT that classifies attacks.

See the KD-GAT paper (arXiv 2507.19686); ``distillation.py`` has the losses. Teachers and students are the same models
in two sizes. Their input is a batch of ``batches.py``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch_geometric.nn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import JumpingKnowledge, global_mean_pool
from torch_geometric.utils import add_self_loops

from tuner.datasets.can import FEATURES
from tuner.errors import InputError
from tuner.workloads.kd_gat.attention import GraphAttention

NUM_FEATURES = len(FEATURES)
ID_CHANNELS = 16  # the size of a CAN ID's embedding
LOG_VARIANCE = 20.0  # the maximum absolute value of a log variance, so that exp() stays finite


class NodeInput(nn.Module):
    """A node's embedded CAN ID and its features. Without IDs every node has the same embedding."""

    channels = ID_CHANNELS + NUM_FEATURES

    def __init__(self, num_ids: int, use_id: bool) -> None:
        """The embedding of unknown IDs is 0, since training may never contain one."""
        super().__init__()
        self.use_id = use_id
        self.embedding = nn.Embedding(num_ids if use_id else 1, ID_CHANNELS)
        with torch.no_grad():
            self.embedding.weight[0] = 0.0

    def forward(self, batch: Batch) -> Tensor:
        """(N, ``channels``)."""
        ids = batch.ids if self.use_id else torch.zeros_like(batch.ids)
        return torch.cat([self.embedding(ids), batch.x], dim=1)


class VgaeOutput(NamedTuple):
    """A VGAE's outputs for N nodes; without IDs there are no logits."""

    features: Tensor  # (N, 10) in [0, 1]: the node's reconstructed features
    ids: Tensor | None  # (N, V): logits of its CAN ID
    neighbours: Tensor | None  # (N, V): logits of the IDs of its predecessors and successors
    mean: Tensor  # (N, latent)
    log_variance: Tensor  # (N, latent)
    z: Tensor  # (N, latent): a sample in training, otherwise the mean


class VGAE(torch_geometric.nn.VGAE):  # type: ignore[misc]  # PyG is not typed
    """PyG's ``VGAE`` with three attention layers in the encoder, and three in the decoder of the nodes' features.

    PyG's ``encode`` would keep the latent variables of the last step in memory, so ``reparametrize`` alone is used.
    """

    def __init__(
        self,
        num_ids: int,
        *,
        hidden_channels: int,
        latent_channels: int,
        heads: int,
        dropout: float,
        use_id: bool = True,
    ) -> None:
        """Raises ``InputError`` if heads do not divide the channels.

        ``num_ids`` is V with the entry for unknown IDs. The heads of the first layer have ``hidden_channels``
        together, those of the second half as many. The decoder's last layer has one head.
        """
        if hidden_channels % (2 * heads) or latent_channels % heads:
            raise InputError(
                f"hidden_channels {hidden_channels}, latent_channels {latent_channels}, heads {heads}: half of "
                "hidden_channels, and latent_channels, must be multiples of heads"
            )
        half = hidden_channels // 2
        super().__init__(
            _Stack([NodeInput.channels, hidden_channels, half, latent_channels], heads, heads, dropout),
            _Stack([latent_channels, half, hidden_channels, NUM_FEATURES], heads, 1, dropout),
        )
        self.input = NodeInput(num_ids, use_id)
        self.norm = nn.BatchNorm1d(latent_channels)
        self.dropout = dropout
        self.mean = nn.Linear(latent_channels, latent_channels)
        self.log_variance = nn.Linear(latent_channels, latent_channels)
        self.ids = nn.Linear(latent_channels, num_ids) if use_id else None
        self.neighbours = (
            nn.Sequential(nn.Linear(latent_channels, half), nn.ReLU(), nn.Linear(half, num_ids)) if use_id else None
        )

    @property
    def checkpointed(self) -> list[nn.Module]:
        """The modules that backward may recompute; without the norms, which change buffers."""
        rest = [] if self.neighbours is None else [self.neighbours]
        return [*self.encoder.layers, *self.decoder.layers, *rest]

    def forward(self, batch: Batch) -> VgaeOutput:
        """Encodes and decodes the nodes of a batch, in float32 also under autocast."""
        edges = edges_of(batch)
        h = _dropped(self.norm(self.encoder(self.input(batch), *edges)), self.dropout, self.training)
        mean = self.mean(h).float()
        log_variance = self.log_variance(h).float().clamp(-LOG_VARIANCE, LOG_VARIANCE)
        z = self.reparametrize(mean, 0.5 * log_variance)
        return VgaeOutput(
            self.decoder(z, *edges).float().sigmoid(),
            None if self.ids is None else self.ids(z).float(),
            None if self.neighbours is None else self.neighbours(z).float(),
            mean,
            log_variance,
            z,
        )


class GAT(nn.Module):
    """Graph attention layers, the mean of each layer's output over a graph's nodes, and two logits."""

    def __init__(
        self,
        num_ids: int,
        *,
        hidden_channels: int,
        num_layers: int,
        heads: int,
        dropout: float,
        use_id: bool = True,
    ) -> None:
        """``num_ids`` is V with the entry for unknown IDs; each head has ``hidden_channels``."""
        super().__init__()
        self.input = NodeInput(num_ids, use_id)
        width = heads * hidden_channels
        widths = [NodeInput.channels, *[width] * num_layers]
        self.layers = nn.ModuleList(_GatLayer(*pair, heads, dropout) for pair in pairwise(widths))
        self.jump = JumpingKnowledge("cat")
        self.output = nn.Linear(num_layers * width, 2)

    @property
    def checkpointed(self) -> list[nn.Module]:
        """The modules that backward may recompute."""
        return list(self.layers)

    def forward(self, batch: Batch) -> Tensor:
        """The logits of normal and attack for each graph: (B, 2), in float32 also under autocast."""
        edges, h = edges_of(batch), self.input(batch)
        means = []
        for layer in self.layers:
            h = layer(h, *edges)
            means.append(graph_mean(h, batch))  # so that the layers' outputs need not be concatenated
        logits: Tensor = self.output(self.jump(means)).float()
        return logits


class _Stack(nn.Module):
    """Attention layers with batch norms between them."""

    def __init__(self, widths: list[int], heads: int, last_heads: int, dropout: float) -> None:
        super().__init__()
        numbers = [heads] * (len(widths) - 2) + [last_heads]
        self.layers = nn.ModuleList(
            _VgaeLayer(*pair, number, dropout, first=place == 0)
            for place, (pair, number) in enumerate(zip(pairwise(widths), numbers, strict=True))
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """(N, widths[0]) → (N, widths[-1])."""
        for layer, norm in zip(self.layers, self.norms, strict=False):
            h = norm(layer(h, edge_index, edge_attr))
        out: Tensor = self.layers[-1](h, edge_index, edge_attr)
        return out


class _VgaeLayer(nn.Module):
    """Attention, in all layers but the first after ReLU and dropout, which are then recomputed with it."""

    def __init__(self, before: int, after: int, heads: int, dropout: float, *, first: bool) -> None:
        super().__init__()
        self.attention = GraphAttention(before, after // heads, heads)
        self.dropout = dropout
        self.first = first

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """(N, before) → (N, after)."""
        h = h if self.first else _dropped(h, self.dropout, self.training)
        out: Tensor = self.attention(h, edge_index, edge_attr)
        return out


class _GatLayer(nn.Module):
    """Attention, ReLU and dropout."""

    def __init__(self, before: int, after: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = GraphAttention(before, after // heads, heads)
        self.dropout = dropout

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """(N, before) → (N, after)."""
        # The order of _dropped; no variable keeps the attention's output alive.
        return F.dropout(self.attention(h, edge_index, edge_attr), self.dropout, self.training).relu()


def _dropped(h: Tensor, dropout: float, training: bool) -> Tensor:
    """ReLU and dropout, in the order that keeps one tensor less for backward; the result is the same."""
    return F.dropout(h, dropout, training).relu()


def edges_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The edges and log(1 + count), with a loop of count 0 for each node beside the loops that the traffic has."""
    edge_index, edge_attr = add_self_loops(
        batch.edge_index, batch.edge_attr.log1p(), fill_value=0.0, num_nodes=batch.num_nodes
    )
    return edge_index, edge_attr


def graph_mean(values: Tensor, batch: Batch) -> Tensor:
    """The mean over each graph's nodes: (N, …) → (B, …), in float32. Every graph must have a node."""
    mean: Tensor = global_mean_pool(values.float(), batch.batch, batch.num_graphs)
    return mean
