"""Products of a real sparse matrix and a fake dense one on CUDA, sparse gradients, and the storage of sorts.

A sparse matrix is data, such as a graph's edges: its indices and values are real. cuSPARSE alone knows its buffers,
so an estimate with a product has a wider margin (``Trace.has_guess``). The matrix's layout is converted first, which
takes more (SparseBlasImpl.cpp, SparseCUDABlas.cpp and SparseCUDATensor.cu in ATen).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tuner.estimation.tracing.corrections.temporaries import (
    INDEX_BYTES,
    RESULTS,
    Operator,
    Steps,
    aten,
    bytes_of,
    copy_if_strided,
    up,
)

# By the places of the sparse and the dense matrix among the arguments.
PRODUCTS: Mapping[Operator, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten._sparse_addmm.default: (1, 2),
}
INT32_BYTES = 4
# CUB's ``DeviceRadixSort`` (dispatch_radix_sort.cuh) takes a second buffer for the keys and one for the values, each
# rounded up to 256 bytes, and a histogram of 256 counts for every 8 bits of a key and every tile of elements. How
# large a tile is, CUB's tuning says for the sizes of key and value. These tiles were found by the sizes that torch
# 2.11 asks for.
ALIGNMENT = 256
HISTOGRAM_BYTES = 256 * 4
ONE_TILE = 2048  # about the most elements that one block sorts without a buffer
TILES = {(8, 8): 4608, (4, 8): 5376, (8, 0): 5760, (4, 0): 5760}  # by the bytes of a key and a value
MERGE_TILE = 4352


class SparseGradient(Tensor):
    """What an embedding's backward pass gives with ``sparse=True``: the rows' numbers, and values without numbers."""

    rows: Tensor
    numbers: Tensor
    coalesced: bool
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(cls, shape: Sequence[int], rows: Tensor, numbers: Tensor, *, coalesced: bool = False) -> SparseGradient:
        """A gradient of these rows (1, N) and values (N, *)."""
        made: SparseGradient = Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=numbers.dtype, layout=torch.sparse_coo, device=torch.device("cpu")
        )
        made.rows, made.numbers, made.coalesced = rows, numbers, coalesced
        return made

    @classmethod
    def __torch_dispatch__(cls, operator: Operator, *_: object) -> None:  # type: ignore[override]
        """Only runs within a trace."""
        raise NotImplementedError(operator)


def is_sparse(tensor: Tensor) -> bool:
    """Whether it has indices, and so no storage of its own."""
    return tensor.layout is not torch.strided


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Its indices and values; a dense tensor is its own."""
    if isinstance(tensor, SparseGradient):
        return tensor.rows, tensor.numbers
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


def sort_pairs_bytes(number: int, key_bytes: int, bits: int | None = None) -> int:
    """The storage for keys with an int64 each; ``bits`` of a key are sorted by, if not all."""
    if number <= ONE_TILE:
        return 1
    tile = TILES[8 if key_bytes == 8 else 4, 8]
    return _aligned(number * key_bytes) + _aligned(number * 8) + _histograms(number, tile, bits or 8 * key_bytes)


def merge_sort_bytes(number: int) -> int:
    """The storage of CUB's ``DeviceMergeSort`` of int64 keys and values, with a number for each tile's border."""
    return 2 * _aligned(INDEX_BYTES * number) + _aligned(INDEX_BYTES * (up(number, MERGE_TILE) + 1)) + ALIGNMENT - 1


def sort_keys_bytes(number: int, bits: int) -> int:
    """The storage for keys alone, beside the second buffer of the keys."""
    return 1 if number <= ONE_TILE else _histograms(number, TILES[8, 0], bits)


def _histograms(number: int, tile: int, bits: int) -> int:
    passes = up(bits, 8)
    return HISTOGRAM_BYTES * (2 * passes + up(number, tile)) + 2 * ALIGNMENT - 1


def _aligned(size: int) -> int:
    return up(size, ALIGNMENT) * ALIGNMENT
