"""Follows sparse gradients, which ``nn.Embedding`` and ``nn.EmbeddingBag`` give with ``sparse=True``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tuner.estimation.tracing.corrections.sparse import SparseGradient, is_sparse, merge_sort_bytes
from tuner.estimation.tracing.corrections.temporaries import (
    RESULTS,
    Operator,
    Steps,
    aten,
    bytes_of,
    copy_if_strided,
)
from tuner.estimation.tracing.storage_tracker import StorageTracker

MAKE = aten._sparse_coo_tensor_with_dims_and_tensors.default
ANSWERS: Mapping[str, Callable[[SparseGradient], object]] = {
    "is_coalesced": lambda gradient: gradient.coalesced,
    "_nnz": lambda gradient: len(gradient.numbers),
    "sparse_dim": lambda gradient: len(gradient.rows),
    "dense_dim": lambda gradient: gradient.numbers.dim() - 1,
    # A view, as autograd keeps a gradient whose parts nothing else holds, and copies others.
    **dict.fromkeys(("_indices", "indices"), lambda gradient: aten.alias.default(gradient.rows)),
    **dict.fromkeys(("_values", "values"), lambda gradient: aten.alias.default(gradient.numbers)),
}


def follow(
    operator: Operator,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    empty: Callable[[Sequence[int], torch.dtype], Tensor],
    tracker: StorageTracker,
) -> object:
    """The result of an operator on a sparse gradient, as CUDA's kernels allocate it (SparseCUDATensor.cu)."""
    name, first, second = operator.overloadpacket.__name__, args[0], args[1] if len(args) > 1 else None
    if operator is MAKE:
        return SparseGradient.of(args[2], args[3], args[4], coalesced=bool(kwargs.get("is_coalesced")))

    def made(rows: Tensor, numbers: Tensor, *order: Tensor, coalesced: bool = False, steps: Steps = ()) -> Any:
        tracker.run_kernel(steps, lambda: tracker.made_all(order or (rows, numbers)))
        return SparseGradient.of(first.shape, rows, numbers, coalesced=coalesced)

    if isinstance(first, Tensor) and not is_sparse(first) and isinstance(second, SparseGradient):
        if name == "add_":
            return first
        if name == "add":
            result = empty(first.shape, first.dtype)
            tracker.run_kernel((), lambda: tracker.made(result))
            return result
        if name == "sparse_mask":
            rows, numbers = second.rows.clone(), empty(second.numbers.shape, first.dtype)
            return made(rows, numbers, coalesced=second.coalesced, steps=[bytes_of(numbers), RESULTS])
    if not isinstance(first, SparseGradient):
        raise NotImplementedError("it has no rule for sparse tensors")
    rows, numbers, steps = first.rows, first.numbers, [bytes_of(first.rows), bytes_of(first.numbers)]
    if name in ANSWERS:
        return ANSWERS[name](first)
    if name in ("detach", "alias"):
        return SparseGradient.of(first.shape, rows, numbers, coalesced=first.coalesced)
    if name in ("_to_dense", "to_dense"):
        result = empty(first.shape, first.dtype)
        tracker.run_kernel((), lambda: tracker.made(result))
        return result
    if name in ("add", "add_") and isinstance(second, SparseGradient):
        rows = torch.cat([rows, second.rows], 1)
        numbers = empty((len(numbers) + len(second.numbers), *numbers.shape[1:]), numbers.dtype)
        scaled = bytes_of(second.numbers) if kwargs.get("alpha", 1) != 1 else 0
        total = made(rows, numbers, steps=[scaled, RESULTS] if scaled else ())
        if name == "add":
            return total
        first.rows, first.numbers, first.coalesced = rows, numbers, False
        return first
    if name in ("mul_", "div_", "neg_"):  # a result that replaces the values
        tracker.run_kernel(steps, lambda: None)
        return first
    if name == "zero_":
        first.rows, first.numbers, first.coalesced = (
            rows[:, :0].clone(),
            empty((0, *first.shape[1:]), first.dtype),
            True,
        )
        return first
    node = torch._C._current_autograd_node()
    if name == "clone" and node and node.name().endswith("AccumulateGrad") and numbers.is_contiguous():
        return SparseGradient.of(first.shape, rows, numbers)  # it only copies what others hold, as a mode does
    copied, copy = rows.clone(), empty(numbers.shape, numbers.dtype)
    if name in ("mul", "div", "neg"):
        return made(copied, copy, coalesced=first.coalesced)
    if name == "clone" or (name == "_coalesce" and len(numbers) < 2):
        return made(copied, copy, copy, copied, coalesced=first.coalesced or name == "_coalesce")
    if name == "_coalesce":
        return _coalesced(first, empty, tracker)
    raise NotImplementedError("it has no rule for sparse tensors")


def _coalesced(
    gradient: SparseGradient, empty: Callable[[Sequence[int], torch.dtype], Tensor], tracker: StorageTracker
) -> SparseGradient:
    """The rows' numbers keep the place of all; on the CPU, so do the values. Without numbers, all rows differ."""
    rows, values = gradient.rows, gradient.numbers
    kept = rows.clone() if isinstance(rows, FakeTensor) else torch.unique(rows, dim=1)
    numbers = empty((kept.shape[1], *values.shape[1:]), values.dtype)
    order = bytes_of(rows)
    tracker.made(kept, order)
    if tracker.on_gpu:
        sort = merge_sort_bytes(len(values))
        tracker.run_kernel([order, order, sort, -3, RESULTS, copy_if_strided(values)], lambda: tracker.made(numbers))
    else:
        tracker.run_kernel([RESULTS, order, order, order], lambda: tracker.made(numbers, bytes_of(values)))
    return SparseGradient.of(gradient.shape, kept, numbers, coalesced=True)
