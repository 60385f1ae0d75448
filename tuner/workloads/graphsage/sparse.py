"""Mean aggregation over a graph as a sparse matrix product; backward uses the transposed matrix.

``SAGEConv(x, edge_index)`` gathers a message for every edge, an (E, H) tensor that is kept for backward. A product
with the graph's CSR matrix never builds it, which makes training fast and its footprint small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn import functional as F


class Csr(NamedTuple):
    """A sparse (rows, columns) matrix with E stored entries, and its transpose, both in CSR form."""

    crow: Tensor  # (rows + 1,) int32 or int64: the start of each row's entries
    col: Tensor  # (E,) the same integer type
    value: Tensor  # (E,) float
    crow_t: Tensor  # (columns + 1,)
    col_t: Tensor  # (E,)
    value_t: Tensor  # (E,)


# torch.library.custom_op is not used, since its kernels load torch.compile's machinery at their first call.
OP = "tuner::csr_matmul"
torch.library.define(
    OP, "(Tensor crow, Tensor col, Tensor value, Tensor crow_t, Tensor col_t, Tensor value_t, Tensor x) -> Tensor"
)


def csr_matmul(
    crow: Tensor, col: Tensor, value: Tensor, crow_t: Tensor, col_t: Tensor, value_t: Tensor, x: Tensor
) -> Tensor:
    """A ``Csr`` times x (columns, H): ``y[r] = Σ value[k] · x[col[k]]`` over row r's entries, (rows, H).

    It is a custom operator on plain tensors, so that it can be traced without a device. Its backward is the same
    product with the transposed matrix and does not keep ``x``.
    """
    result: Tensor = torch.ops.tuner.csr_matmul(crow, col, value, crow_t, col_t, value_t, x.to(value.dtype))
    return result


def _product(
    crow: Tensor, col: Tensor, value: Tensor, crow_t: Tensor, col_t: Tensor, value_t: Tensor, x: Tensor
) -> Tensor:
    # The weighted EmbeddingBag is this product, and its CPU kernel is torch's fastest one.
    return F.embedding_bag(col, x.contiguous(), crow, mode="sum", per_sample_weights=value, include_last_offset=True)


def _shape(
    crow: Tensor, col: Tensor, value: Tensor, crow_t: Tensor, col_t: Tensor, value_t: Tensor, x: Tensor
) -> Tensor:
    return x.new_empty(crow.shape[0] - 1, x.shape[1])


def _setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])


def _backward(ctx: BackwardCFunction, grad: Tensor) -> tuple[Tensor | None, ...]:
    crow, col, value, crow_t, col_t, value_t = tuple(ctx.saved_tensors)
    return (None,) * 6 + (csr_matmul(crow_t, col_t, value_t, crow, col, value, grad),)


torch.library.impl(OP, "default", _product)
torch.library.register_fake(OP, _shape)
torch.library.register_autograd(OP, _backward, setup_context=_setup_context)


def bipartite_mean(user: Tensor, item: Tensor, num_users: int, num_items: int) -> Csr:
    """D⁻¹A, which averages over neighbours, of the graph with edges in both directions for each pair (M,), (M,).

    Its nodes are the users, then the items. It has 2M entries with int32 indices. A node without neighbours has an
    empty row. A is symmetric, so D⁻¹A and its transpose AD⁻¹ differ only in their values.
    """
    nodes = num_users + num_items
    user, item = user.long(), item.long() + num_users
    row, col = torch.cat([user, item]), torch.cat([item, user])
    order = torch.argsort(row * nodes + col)
    row, col = row[order], col[order]
    degree = torch.bincount(row, minlength=nodes)
    crow = F.pad(degree.cumsum(0), (1, 0)).int()
    inverse = degree.clamp(min=1).reciprocal()
    return Csr(crow, col.int(), inverse[row], crow, col.int(), inverse[col])
