"""The models of KD-GAT: a VGAE that learns normal CAN traffic, and a GAT that classifies attacks.

See the KD-GAT paper (arXiv 2507.19686); ``distillation.py`` has the losses. Teachers and students are the same models
in two sizes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuner.errors import InputError
from tuner.workloads.kd_gat.attention import GraphAttention
from tuner.workloads.kd_gat.batches import CanBatch
from tuner.workloads.kd_gat.sizes import FEATURES, ID_CHANNELS

LOG_VARIANCE = 20.0  # the maximum absolute value of a log variance, so that exp() stays finite


class NodeInput(nn.Module):
    """A node's embedded CAN ID and its features. Without IDs every node has the same embedding."""

    channels = ID_CHANNELS + FEATURES

    def __init__(self, num_ids: int, use_id: bool) -> None:
        """The embedding of unknown IDs is 0, since training may never contain one."""
        super().__init__()
        self.use_id = use_id
        self.embedding = nn.Embedding(num_ids if use_id else 1, ID_CHANNELS)
        with torch.no_grad():
            self.embedding.weight[0] = 0.0

    def forward(self, batch: CanBatch) -> Tensor:
        """(N, ``channels``)."""
        ids = batch.ids if self.use_id else torch.zeros_like(batch.ids)
        return torch.cat([self.embedding(ids), batch.features], dim=1)


class VgaeOutput(NamedTuple):
    """A VGAE's outputs for N nodes; without IDs there are no logits."""

    features: Tensor  # (N, 10) in [0, 1]: the node's reconstructed features
    ids: Tensor | None  # (N, V): logits of its CAN ID
    neighbours: Tensor | None  # (N, V): logits of the IDs of its predecessors and successors
    mean: Tensor  # (N, latent)
    log_variance: Tensor  # (N, latent)
    z: Tensor  # (N, latent): a sample in training, otherwise the mean


class VGAE(nn.Module):
    """A variational graph autoencoder with three attention layers in the encoder and three in the decoder."""

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
        super().__init__()
        if hidden_channels % (2 * heads) or latent_channels % heads:
            raise InputError(
                f"hidden_channels {hidden_channels}, latent_channels {latent_channels}, heads {heads}: half of "
                "hidden_channels, and latent_channels, must be multiples of heads"
            )
        half = hidden_channels // 2
        self.input = NodeInput(num_ids, use_id)
        self.encoder = _Stack([NodeInput.channels, hidden_channels, half, latent_channels], heads, heads, dropout)
        self.norm = nn.BatchNorm1d(latent_channels)
        self.dropout = dropout
        self.mean = nn.Linear(latent_channels, latent_channels)
        self.log_variance = nn.Linear(latent_channels, latent_channels)
        self.decoder = _Stack([latent_channels, half, hidden_channels, FEATURES], heads, 1, dropout)
        self.ids = nn.Linear(latent_channels, num_ids) if use_id else None
        self.neighbours = (
            nn.Sequential(nn.Linear(latent_channels, half), nn.ReLU(), nn.Linear(half, num_ids)) if use_id else None
        )

    @property
    def checkpointed(self) -> list[nn.Module]:
        """The modules that backward may recompute; without the norms, which change buffers."""
        rest = [] if self.neighbours is None else [self.neighbours]
        return [*self.encoder.layers, *self.decoder.layers, *rest]

    def forward(self, batch: CanBatch) -> VgaeOutput:
        """Encodes and decodes the nodes of a batch, in float32 also under autocast."""
        edge, feature = batch.edge, batch.edge_count.log1p()
        h = self.norm(self.encoder(self.input(batch), edge, feature))
        h = _dropped(h, self.dropout, self.training)
        mean = self.mean(h).float()
        log_variance = self.log_variance(h).float().clamp(-LOG_VARIANCE, LOG_VARIANCE)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return VgaeOutput(
            self.decoder(z, edge, feature).float().sigmoid(),
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
        self.output = nn.Linear(num_layers * width, 2)

    @property
    def checkpointed(self) -> list[nn.Module]:
        """The modules that backward may recompute."""
        return list(self.layers)

    def forward(self, batch: CanBatch) -> Tensor:
        """The logits of normal and attack for each graph: (B, 2), in float32 also under autocast."""
        feature = batch.edge_count.log1p()
        h = self.input(batch)
        means = []  # jumping knowledge; the layers' outputs themselves need not be concatenated
        for layer in self.layers:
            h = layer(h, batch.edge, feature)
            means.append(graph_mean(h, batch))
        logits: Tensor = self.output(torch.cat(means, dim=1)).float()
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

    def forward(self, h: Tensor, edge: Tensor, feature: Tensor) -> Tensor:
        """(N, widths[0]) → (N, widths[-1])."""
        for layer, norm in zip(self.layers, self.norms, strict=False):
            h = norm(layer(h, edge, feature))
        out: Tensor = self.layers[-1](h, edge, feature)
        return out


class _VgaeLayer(nn.Module):
    """Attention, in all layers but the first after ReLU and dropout, which are then recomputed with it."""

    def __init__(self, before: int, after: int, heads: int, dropout: float, *, first: bool) -> None:
        super().__init__()
        self.attention = GraphAttention(before, after // heads, heads)
        self.dropout = dropout
        self.first = first

    def forward(self, h: Tensor, edge: Tensor, feature: Tensor) -> Tensor:
        """(N, before) → (N, after)."""
        h = h if self.first else _dropped(h, self.dropout, self.training)
        out: Tensor = self.attention(h, edge, feature)
        return out


class _GatLayer(nn.Module):
    """Attention, ReLU and dropout."""

    def __init__(self, before: int, after: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = GraphAttention(before, after // heads, heads)
        self.dropout = dropout

    def forward(self, h: Tensor, edge: Tensor, feature: Tensor) -> Tensor:
        """(N, before) → (N, after)."""
        # The order of _dropped; no variable keeps the attention's output alive.
        return F.dropout(self.attention(h, edge, feature), self.dropout, self.training).relu()


def _dropped(h: Tensor, dropout: float, training: bool) -> Tensor:
    """ReLU and dropout, in the order that keeps one tensor less for backward; the result is the same."""
    return F.dropout(h, dropout, training).relu()


def graph_mean(values: Tensor, batch: CanBatch) -> Tensor:
    """The mean over each graph's nodes: (N, …) → (B, …), in float32. Every graph must have a node."""
    total = torch.zeros(len(batch.graph), *values.shape[1:], device=values.device)
    nodes = torch.zeros(len(batch.graph), device=values.device)
    nodes = nodes.index_add(0, batch.node_graph, torch.ones_like(batch.node_graph, dtype=torch.float32))
    total = total.index_add(0, batch.node_graph, values.float())
    return total / nodes.view(-1, *[1] * (values.dim() - 1))
