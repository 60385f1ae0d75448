"""The models of KD-GAT: a VGAE that learns normal CAN traffic, and a GAT that classifies attacks.

See the KD-GAT paper (arXiv 2507.19686); ``distillation.py`` has the losses. Teachers and students are the same models
in two sizes. Their input is a batch of ``batches.py``.
"""

from collections.abc import Iterator, MutableMapping
from itertools import pairwise
from typing import NamedTuple

import torch
import torch_geometric.nn
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import GATConv, JumpingKnowledge, global_mean_pool
from torch_geometric.utils import add_self_loops

from tuner.datasets.can import FEATURES
from tuner.workloads.kd_gat.graphs import check_sizes

PART = 4096  # the number of edges whose messages are computed at a time
NUM_FEATURES = len(FEATURES)
ID_CHANNELS = 16  # the size of a CAN ID's embedding
LOG_VARIANCE = 20.0  # the maximum absolute value of a log variance, so that exp() stays finite


class GraphAttention(GATConv):  # type: ignore[misc]  # PyG is not typed
    """Graph attention (GAT, Veličković et al. 2018) with an edge feature, without tensors of size edges × channels.

    It is ``GATConv(in, out, heads, edge_dim=1, add_self_loops=False)``, with the same parameters. That keeps two such
    tensors for backward: the gathered messages and the projected edge features. With it a training step on CAN
    recordings takes 1.8 to 3.2 times the memory, 1.8 to 23 KB more for each edge, and 1.2 to 2.1 times the CPU time
    (teachers and students of both stages, 256 graphs).

    ``message_and_aggregate`` keeps no messages for backward, which gathers them again. The projection of the single
    edge feature is one number for each head.
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        super().__init__(in_channels, out_channels, heads, edge_dim=1, add_self_loops=False)
        self.register_load_state_dict_pre_hook(_rename)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Nodes (N, in), edges (2, E) with all loops at the end and their feature (E, 1) → (N, heads · out)."""
        source, target = edge_index
        values = self.lin(x).view(-1, self.heads, self.out_channels)
        from_source, to_target = (values * self.att_src).sum(-1), (values * self.att_dst).sum(-1)
        edge = (self.lin_edge.weight.view(1, self.heads, self.out_channels) * self.att_edge).sum(-1)
        score = from_source.index_select(0, source) + to_target.index_select(0, target) + edge_attr * edge
        alpha = _softmax(F.leaky_relu(score, self.negative_slope), target, len(x))
        out = self.message_and_aggregate(edge_index, values, alpha)
        result: Tensor = out.flatten(1) + self.bias.to(out.dtype)
        return result

    def message_and_aggregate(self, edge_index: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        """``out[t] = Σ alpha[e] · x[s]`` over the edges e = (s, t); the last ones are the nodes' loops."""
        edges = len(alpha) - len(x)
        out: Tensor = _Aggregate.apply(x, alpha[edges:], alpha[:edges], edge_index[:, :edges])  # type: ignore[no-untyped-call]
        return out


def _softmax(score: Tensor, target: Tensor, nodes: int) -> Tensor:
    """The softmax over the edges to each node. PyG's, with its ``edge_updater``, makes steps up to a tenth longer."""
    index = target[:, None].expand_as(score)
    top = score.new_full((nodes, score.shape[1]), -torch.inf).scatter_reduce_(0, index, score.detach(), "amax")
    score = (score - top.index_select(0, target)).exp()
    total = score.new_zeros(nodes, score.shape[1]).index_add_(0, target, score)
    return score / total.index_select(0, target)


class _Aggregate(Function):
    """``out[t] = own[t] · x[t] + Σ weight[e] · x[s]``, computed for a part of the edges at a time."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, loop_weight: Tensor, weight: Tensor, edge_index: Tensor) -> Tensor:
        ctx.save_for_backward(x, loop_weight, weight, edge_index)
        out = loop_weight[..., None] * x
        for part, (source, target) in _parts(edge_index):
            out.index_add_(0, target, weight[part, :, None] * x.index_select(0, source))
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: BackwardCFunction, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, loop_weight, weight, edge_index = tuple(ctx.saved_tensors)
        to_own, to_weight = (grads[0] * x).sum(-1, dtype=loop_weight.dtype), torch.empty_like(weight)
        to_x = loop_weight[..., None] * grads[0]  # after the product above has been freed
        for part, (source, target) in _parts(edge_index):
            arrived = grads[0].index_select(0, target)
            to_weight[part] = (arrived * x.index_select(0, source)).sum(-1, dtype=weight.dtype)
            to_x.index_add_(0, source, weight[part, :, None] * arrived)
        return to_x.to(x.dtype), to_own, to_weight, None


def _parts(edge_index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for begin in range(0, edge_index.shape[1], PART):
        part = slice(begin, begin + PART)
        yield part, edge_index[:, part]


def _rename(module: GraphAttention, state: MutableMapping[str, Tensor], prefix: str, *_: object) -> None:
    """Renames weights that were saved before this layer was a ``GATConv``."""
    if prefix + "linear.weight" not in state:
        return
    state[prefix + "lin.weight"] = state.pop(prefix + "linear.weight")
    for old, new in (("source", "att_src"), ("target", "att_dst")):
        state[prefix + new] = state.pop(prefix + old)[None]
    edge = state.pop(prefix + "edge") / module.out_channels  # (1, heads)
    state[prefix + "lin_edge.weight"] = edge.repeat_interleave(module.out_channels)[:, None]
    state[prefix + "att_edge"] = torch.ones_like(state[prefix + "att_src"])


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
        check_sizes(hidden_channels, latent_channels, heads)
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
        self, num_ids: int, *, hidden_channels: int, num_layers: int, heads: int, dropout: float, use_id: bool = True
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
    """The edges and log(1 + count), with one more loop, of count 0, for each node."""
    edge_index, edge_attr = add_self_loops(
        batch.edge_index, batch.edge_attr.log1p(), fill_value=0.0, num_nodes=batch.num_nodes
    )
    return edge_index, edge_attr


def graph_mean(values: Tensor, batch: Batch) -> Tensor:
    """The mean over each graph's nodes: (N, …) → (B, …), in float32. Every graph must have a node."""
    mean: Tensor = global_mean_pool(values.float(), batch.batch, batch.num_graphs)
    return mean
