"""Graph attention (GAT, Veličković et al. 2018) with an edge feature, without tensors of size edges × channels.

PyG's ``GATConv`` keeps two such tensors for backward: the gathered messages and the projected edge features. With
twice as many edges as nodes they are most of a step's memory. Here backward gathers messages again, in parts of the
edges, and the projection of the single edge feature is one number for each head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn import functional as F

from tuner.workloads.kd_gat.sizes import PART

SLOPE = 0.2  # the negative slope of the scores' leaky ReLU, as in the paper


class GraphAttention(nn.Module):
    """Each head averages ``W x`` over a node's predecessors and itself; the heads' results are concatenated.

    It equals ``GATConv(in, out, heads, edge_dim=1)`` on the edges plus a loop with feature 0 for each node.
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        """Glorot's initialization as in the paper. Each head has ``out_channels``."""
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.source, self.target = (nn.Parameter(torch.empty(heads, out_channels)) for _ in range(2))
        self.edge = nn.Parameter(torch.empty(1, heads))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels))
        for weight in (self.linear.weight, self.source, self.target, self.edge):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, edge: Tensor, edge_feature: Tensor) -> Tensor:
        """Nodes (N, in), edges (2, E) and their feature (E, 1) → (N, heads · out)."""
        source, target = edge
        values = self.linear(x).unflatten(1, (self.heads, -1))
        from_source, to_target = self._scores(x)
        own = F.leaky_relu(from_source + to_target, SLOPE)
        score = from_source.index_select(0, source) + to_target.index_select(0, target) + edge_feature * self.edge
        own, score = _softmax(own, F.leaky_relu(score, SLOPE), target)
        out: Tensor = _Aggregate.apply(values, own, score, edge)  # type: ignore[no-untyped-call]
        return out.flatten(1) + self.bias.to(out.dtype)

    def _scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of each node as a source and as a target, (N, heads) each: ``a · W x`` as ``(a W) x``."""
        weight = self.linear.weight.view(self.heads, -1, self.linear.in_features)
        rows = torch.einsum("shc,hci->shi", torch.stack([self.source, self.target]), weight)
        both = F.linear(x, rows.flatten(0, 1)).float()
        return both[:, : self.heads], both[:, self.heads :]


def _softmax(own: Tensor, score: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax over each node's own score (N, heads) and the scores of the edges to it (E, heads)."""
    index = target[:, None].expand_as(score)
    top = own.detach().scatter_reduce(0, index, score.detach(), "amax")
    own, score = (own - top).exp(), (score - top.index_select(0, target)).exp()
    total = own.index_add(0, target, score)
    return own / total, score / total.index_select(0, target)


class _Aggregate(Function):
    """``out[t] = own[t] · x[t] + Σ weight[e] · x[s]`` over the edges e = (s, t); messages are not kept."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, own: Tensor, weight: Tensor, edge: Tensor) -> Tensor:
        ctx.save_for_backward(x, own, weight, edge)
        out = own[..., None] * x
        for part in _parts(edge):
            source, target = edge[:, part]
            out.index_add_(0, target, weight[part, :, None] * x.index_select(0, source))
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: BackwardCFunction, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, own, weight, edge = tuple(ctx.saved_tensors)
        grad = grads[0]
        to_own, to_weight = (grad * x).sum(-1, dtype=own.dtype), torch.empty_like(weight)
        to_x = own[..., None] * grad  # after the product above has been freed
        for part in _parts(edge):
            source, target = edge[:, part]
            arrived = grad.index_select(0, target)
            to_weight[part] = (arrived * x.index_select(0, source)).sum(-1, dtype=weight.dtype)
            to_x.index_add_(0, source, weight[part, :, None] * arrived)
        return to_x.to(x.dtype), to_own, to_weight, None


def _parts(edge: Tensor) -> list[slice]:
    return [slice(begin, begin + PART) for begin in range(0, edge.shape[1], PART)]
