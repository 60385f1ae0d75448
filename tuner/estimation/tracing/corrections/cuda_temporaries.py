"""The same for a GPU's kernels: read in torch's source (the files in brackets), not measured yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from tuner.estimation.tracing.corrections.temporaries import INDEX_BYTES, Rule, aten, bytes_of

if TYPE_CHECKING:
    from tuner.estimation.tracing.corrections.temporaries import Operator


def _csr_matmul(_out: Tensor, crow: Tensor, col: Tensor, *_: object) -> int:
    """EmbeddingBag's offset2bag, an index for each entry, and its bag_size (EmbeddingBag.cu)."""
    return bytes_of(col) + bytes_of(crow)


def _index_put(
    _out: Tensor,
    _values: Tensor,
    indices: Sequence[Tensor | None],
    _new: Tensor,
    accumulate: bool = False,
    *_: object,
) -> int:
    """Adding at positions sorts them: positions and order before and after, and as much for it (Indexing.cu)."""
    given = [index.numel() for index in indices if index is not None]
    return 6 * INDEX_BYTES * max(given, default=0) if accumulate else 0


def _embedding_backward(_out: Tensor, _gradient: Tensor, indices: Tensor, *_: object) -> int:
    """The same, from 3,072 positions on (Embedding.cu)."""
    return 6 * INDEX_BYTES * indices.numel() if indices.numel() > 3072 else 0


ON_CUDA: Mapping[Operator | str, Rule] = {
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._index_put_impl.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten.embedding_dense_backward.default: _embedding_backward,
    "tuner::csr_matmul": _csr_matmul,
}
