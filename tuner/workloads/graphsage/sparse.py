"""Sums over neighbours as sparse matrix products; backward uses the transposed matrix.

``SAGEConv(x, edge_index)`` gathers a message for every edge, an (E, H) tensor that is kept for backward. A product
with a CSR matrix never builds it, which makes training fast and its footprint small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn import functional as F

# torch.library.custom_op is not used, since its kernels load torch.compile's machinery at their first call.
OP = "tuner::csr_sum"
torch.library.define(OP, "(Tensor crow, Tensor col, Tensor crow_t, Tensor col_t, Tensor x) -> Tensor")


def csr_sum(crow: Tensor, col: Tensor, crow_t: Tensor, col_t: Tensor, x: Tensor) -> Tensor:
    """``y[r] = Σ x[col[k]]`` over the entries k of row r: (columns, H) → (rows, H), in float32 at least.

    The (rows, columns) matrix of E ones and its transpose are in CSR form, with int32 or int64 indices: ``crow``
    (rows + 1,) has the start of each row's entries, ``col`` (E,) their columns, ``crow_t`` (columns + 1,) and
    ``col_t`` (E,) are the transpose's.

    It is a custom operator on plain tensors, so that it can be traced without a device. Its backward is the same
    product with the transposed matrix and does not keep ``x``.
    """
    x = x if x.dtype == torch.float64 else x.float()
    result: Tensor = torch.ops.tuner.csr_sum(crow, col, crow_t, col_t, x)
    return result


def _product(crow: Tensor, col: Tensor, crow_t: Tensor, col_t: Tensor, x: Tensor) -> Tensor:
    # EmbeddingBag is this product, and its CPU kernel is torch's fastest one.
    return F.embedding_bag(col, x.contiguous(), crow, mode="sum", include_last_offset=True)


def _shape(crow: Tensor, col: Tensor, crow_t: Tensor, col_t: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(crow.shape[0] - 1, x.shape[1])


def _setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _backward(ctx: BackwardCFunction, grad: Tensor) -> tuple[Tensor | None, ...]:
    crow, col, crow_t, col_t = tuple(ctx.saved_tensors)
    return (None,) * 4 + (csr_sum(crow_t, col_t, crow, col, grad),)


torch.library.impl(OP, "default", _product)
torch.library.register_fake(OP, _shape)
torch.library.register_autograd(OP, _backward, setup_context=_setup_context)


class Neighbours(NamedTuple):
    """An undirected graph of N nodes and E directed edges in CSR form, which is its own transpose."""

    crow: Tensor  # (N + 1,) int32: the start of each node's neighbours
    col: Tensor  # (E,) int32: the neighbours
    inverse: Tensor  # (N, 1) float: 1 / the number of neighbours, at most 1

    def mean(self, x: Tensor) -> Tensor:
        """The mean of x (N, H) over each node's neighbours; 0 for a node that has none."""
        return csr_sum(self.crow, self.col, self.crow, self.col, x).mul_(self.inverse)

    def sample(self, nodes: Tensor, fanout: int) -> Tensor:
        """``fanout`` neighbours of each node (n,), drawn with replacement: (n · fanout,).

        Drawing with replacement gives every node the same number, so that shapes are constant (Hamilton et al. 2017,
        section 3.1). Each must have a neighbour.
        """
        first = self.crow.index_select(0, nodes)
        degree = self.crow.index_select(0, nodes + 1) - first
        drawn = (torch.rand(len(nodes), fanout, device=nodes.device) * degree[:, None]).int()
        # Rounding can make a draw reach the degree.
        place = first[:, None] + torch.minimum(drawn, degree[:, None] - 1)
        return self.col.index_select(0, place.flatten())


def graph_of(crow: Tensor, col: Tensor) -> Neighbours:
    """The graph with the reciprocals of its degrees."""
    return Neighbours(crow, col, crow.diff().clamp(min=1).reciprocal()[:, None])


def bag_sum(bags: Sequence[tuple[Tensor, int]], x: Tensor) -> Tensor:
    """Sums of rows of x (N, H), one for each bag: (number of bags, H).

    ``bags`` has parts of equal bags: row numbers (n · size,) in int32, and the size.
    """
    rows = torch.cat([part for part, _ in bags])
    starts, bag_of = [], []  # the transpose has the bag of each row
    row = bag = 0
    for part, size in bags:
        end = bag + len(part) // size
        starts.append(torch.arange(row, row + len(part), size, dtype=rows.dtype, device=rows.device))
        numbers = torch.arange(bag, end, dtype=rows.dtype, device=rows.device)
        bag_of.append(numbers[:, None].expand(-1, size).reshape(-1))
        row, bag = row + len(part), end
    crow = torch.cat([*starts, rows.new_full((1,), row)])
    if not x.requires_grad:
        return csr_sum(crow, rows, crow, rows, x)
    counts = rows.new_zeros(len(x) + 1).index_add_(0, rows + 1, torch.ones_like(rows))
    col_t = torch.cat(bag_of).index_select(0, rows.argsort())
    return csr_sum(crow, rows, counts.cumsum(0, dtype=rows.dtype), col_t, x)
