"""Products of a real sparse matrix and a fake dense one on CUDA.

A sparse matrix is data, such as a graph's edges: its indices and values are real. cuSPARSE alone knows its buffers,
so an estimate with a product has a wider margin (``Trace.has_guess``). The matrix's layout is converted first, which
takes more (SparseBlasImpl.cpp, SparseCUDABlas.cpp and SparseCUDATensor.cu in ATen).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tuner.estimation.tracing.corrections.sorting import sort_pairs_bytes
from tuner.estimation.tracing.corrections.temporaries import (
    INDEX_BYTES,
    RESULTS,
    Steps,
    aten,
    bytes_of,
    copy_if_strided,
)

if TYPE_CHECKING:
    from tuner.estimation.tracing.corrections.temporaries import Operator

# By the places of the sparse and the dense matrix among the arguments.
PRODUCTS: Mapping[Operator, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten._sparse_addmm.default: (1, 2),
}
INT32_BYTES = 4


def is_sparse(tensor: Tensor) -> bool:
    """Whether it has indices, and so no storage of its own."""
    return tensor.layout is not torch.strided


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Its indices and values; a dense tensor is its own."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout is torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout is torch.sparse_csc:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if is_sparse(tensor):
        raise NotImplementedError(f"a tensor of layout {tensor.layout} cannot be traced")
    return (tensor,)


def product(operator: Operator, out: Tensor, matrix: Tensor, dense: Tensor) -> Steps:
    """The temporaries: zeros to add to, copies of a strided factor and for COO of the result, and conversions."""
    copies = [bytes_of(out) if operator is aten.mm.default else 0, copy_if_strided(dense)]
    number, values = matrix._nnz(), bytes_of(parts(matrix)[-1])
    order = INDEX_BYTES * number
    sort = sort_pairs_bytes(number, INDEX_BYTES)
    if matrix.layout is torch.sparse_csc:  # a transposed CSR matrix becomes one again (_to_sparse_csr)
        rows = INDEX_BYTES * (matrix.shape[0] + 1)
        moved = [rows, 2 * order, order, order, -4, -3, order, order, order, order, sort, -11, -10, -9]
        return [*moved, 2 * order, values, -8, -7, -2, RESULTS, *copies]
    if matrix.layout is torch.sparse_csr:
        return [RESULTS, *copies]
    copies = [*copies, INT32_BYTES * matrix.shape[0], INT32_BYTES * number, bytes_of(out)]
    if matrix.is_coalesced():
        return [RESULTS, *copies]
    return [RESULTS, order, order, order, sort, -5, -4, -3, -2, 2 * order, values, *copies]
