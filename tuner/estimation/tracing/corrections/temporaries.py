"""The temporaries of kernels, which dispatch modes do not see: of the CPU's, and of those that are alike on CUDA.

The CPU's bytes were measured per operator with ``torch.profiler`` (profile_memory=True, torch 2.13), and
``tests/estimation/tracing/test_tracer.py`` compares whole steps with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from tuner.estimation.cards import torch_version

Operator: TypeAlias = "OpOverload[..., object]"  # a generic class for mypy alone
RESULTS = None
Steps: TypeAlias = Sequence[int | None]
"""What a kernel does in order: n > 0 takes a temporary of n bytes, -n releases the n-th step's temporary, ``RESULTS``
takes the results, which otherwise come first. In the end all is released, the last temporary first."""

Rule: TypeAlias = Callable[..., int | Steps]
"""(the operator's result, its arguments …) → the bytes of one temporary, or the steps."""

aten = torch.ops.aten
INDEX_BYTES = 8  # of one position: an int64
FLOAT_BYTES = 4
NARROW = (torch.bfloat16, torch.float16)
TORCH = torch_version()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of statistics: float32 for narrower floats (``acc_type``)."""
    return torch.float32 if dtype in NARROW else dtype


def up(number: int, step: int) -> int:
    """The quotient, rounded up."""
    return -(-number // step)


def bytes_of(tensor: Tensor) -> int:
    """The bytes of a tensor's elements."""
    return int(tensor.numel()) * tensor.element_size()


def copy_if_strided(tensor: Tensor) -> int:
    """The copy that ``contiguous()`` makes of a tensor such as the expanded gradient of a sum."""
    return 0 if tensor.is_contiguous() else bytes_of(tensor)


def copy_of_first(_out: object, first: Tensor, *_: object) -> int:
    """A contiguous copy of the first argument."""
    return copy_if_strided(first)


def _loss(out: Tensor, input: Tensor, *_: object) -> int:
    """A second full-size buffer beside the one of ``BUFFERED_LOSSES``."""
    return bytes_of(input) if out.dim() == 0 else 0


def _two_buffers(out: Tensor, input: Tensor, target: Tensor, *_: object) -> int:
    """A buffer for each of two terms; without a reduction, one of them is the result."""
    return 2 * max(bytes_of(input), bytes_of(target)) - (bytes_of(out) if out.dim() else 0)


def _soft_margin_backward(out: Tensor, *_: object) -> Steps:
    """The negative target, its product with the input, and the exponential of that (Loss.cpp)."""
    return [bytes_of(out), bytes_of(out), bytes_of(out), -2, -1, RESULTS]


def _logsumexp(out: Tensor, input: Tensor, *_: object) -> int:
    """The exponentials, and the maxima subtracted from the input."""
    return bytes_of(input) + bytes_of(out)


def _safe_softmax(out: Tensor, *_: object) -> int:
    """A mask of values that are minus infinity."""
    return int(out.numel())


def _euclidean_dist(_: Tensor, *points: Tensor) -> int:
    """Both inputs, with two more columns for squared norms and ones."""
    return sum(int(bytes_of(x) // x.shape[-1] * (x.shape[-1] + 2)) for x in points)


ON_EVERY_DEVICE: Mapping[Operator | str, Rule] = {
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.binary_cross_entropy_with_logits.default: _two_buffers,
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.logsumexp.default: _logsumexp,
    aten._safe_softmax.default: _safe_softmax,
    aten._euclidean_dist.default: _euclidean_dist,
}


def _selected(mask: Tensor) -> int:
    return mask.numel() if isinstance(mask, FakeTensor) else int(mask.sum())


def _index(_out: Tensor, _values: Tensor, indices: Sequence[Tensor | None], *_: object) -> int:
    """Positions in int64: of what masks select, in each dimension, and of int32 indices."""
    used = [index for index in indices if index is not None]
    masks = sum(_selected(index) * index.dim() for index in used if index.dtype in (torch.bool, torch.uint8))
    return INDEX_BYTES * (masks + sum(index.numel() for index in used if index.dtype == torch.int32))


def _mixed(_out: Tensor, first: Tensor, second: object, *_: object) -> int:
    """Arguments converted to the common type, such as a mask to floats."""
    if not isinstance(second, Tensor) or first.dtype == second.dtype:
        return 0
    # Of tensors on meta, as one of the two may be fake and the other real.
    kinds = (torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in (first, second))
    common = torch.result_type(*kinds)
    return sum(tensor.numel() for tensor in (first, second) if tensor.dtype != common) * common.itemsize


def _masked_select(_out: Tensor, _values: Tensor, mask: Tensor) -> int:
    """The cumulative count of selected elements."""
    return INDEX_BYTES * mask.numel()


def _sum(out: Tensor, input: Tensor, *_: object) -> int:
    """The input in the result's type: a mask is summed as 8-byte integers."""
    return 0 if input.dtype == out.dtype else input.numel() * out.element_size()


def _sort(_out: object, input: Tensor, *_: object) -> int:
    """The positions along the sorted dimension, assumed to be the longest."""
    return INDEX_BYTES * max(input.shape, default=0)


def _unique(_out: object, input: Tensor, *_: object) -> int:
    """The sorted input, its order, and a flag or position per element."""
    return 3 * INDEX_BYTES * input.numel()


def _layer_norm_backward(out: Sequence[Tensor | None], gradient: Tensor, input: Tensor, *_: object) -> int:
    """Each thread's partial sums of the gradients of weight and bias, and contiguous arguments."""
    partial = 2 * torch.get_num_threads() * bytes_of(out[1]) if out[1] is not None else 0
    return partial + copy_if_strided(gradient) + copy_if_strided(input)


def _attention(_out: object, query: Tensor, key: Tensor, *_: object) -> int:
    """Each thread's tile of scores, maxima, sums and output (FlashAttentionKernel.cpp: cpu_flash_attention)."""
    queries, head, keys = query.shape[-2], query.shape[-1], key.shape[-2]
    rows = min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32)
    return torch.get_num_threads() * rows * (min(keys, 512) + 2 + head) * 4


def _attention_backward(_out: object, gradient: Tensor, query: Tensor, key: Tensor, *_: object) -> int:
    """Sums of output times gradient per query, two tiles of scores per thread, and a contiguous gradient."""
    queries, head, keys = query.shape[-2], query.shape[-1], key.shape[-2]
    tile = torch.get_num_threads() * min(queries, 256) * min(keys, 512) * 4
    return 2 * tile + bytes_of(query) // head + copy_if_strided(gradient)


def _convolution(out: Tensor, input: Tensor, weight: Tensor, *_: object) -> int:
    """Copies in oneDNN's layouts: first of input and weight, then of the result."""
    return max(bytes_of(input) + bytes_of(weight), bytes_of(out))


_BINARY = [
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor),
    *(aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor),
    *(aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor),
]
ON_THE_CPU: Mapping[Operator | str, Rule] = {
    **dict.fromkeys(_BINARY, _mixed),
    aten.index.Tensor: _index,
    aten.masked_select.default: _masked_select,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten._unique2.default: _unique,
    aten.embedding_dense_backward.default: copy_of_first,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    aten.convolution.default: _convolution,
}
