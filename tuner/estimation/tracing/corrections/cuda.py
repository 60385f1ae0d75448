"""The temporaries of CUDA's kernels, which dispatch modes do not see.

Each was read in torch's source (files in brackets) and is compared with torch's own allocator on the emulated card,
by ``tests/estimation/tracing/test_kernels_on_cuda.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections import convolutions
from tuner.estimation.tracing.corrections.attention import efficient_backward, flash_backward, flash_forward
from tuner.estimation.tracing.corrections.reductions import SEMAPHORE_BYTES, power_below, staging, staging_of_mean
from tuner.estimation.tracing.corrections.sparse import sort_keys_bytes, sort_pairs_bytes
from tuner.estimation.tracing.corrections.temporaries import (
    FLOAT_BYTES,
    INDEX_BYTES,
    NARROW,
    RESULTS,
    Operator,
    Rule,
    Steps,
    aten,
    bytes_of,
    copy_if_strided,
    copy_of_first,
    up,
    wide,
)

PAIR_BYTES = 16  # an accumulator of a value and its position, or of a mean, its deviations and counts
SMALL_SORT = 4096  # the longest row that one block sorts (should_use_small_sort in Sort.cpp)


def _product(_out: Tensor, *arguments: Tensor) -> Steps:
    """Copies of matrices that cuBLAS cannot read as they are (``prepare_matrix_for_cublas`` in cuda/Blas.cpp)."""
    matrices = arguments[-2:]
    return [RESULTS, *(0 if _is_readable(matrix) else bytes_of(matrix) for matrix in matrices)]


def _is_readable(matrix: Tensor) -> bool:
    """Whether one of the last two dimensions is contiguous, and the other does not overlap with it."""
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    return (down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns))


def _index_put(
    _out: Tensor, values: Tensor, indices: Sequence[Tensor | None], _new: Tensor, accumulate: bool = False, *_: object
) -> Steps:
    """To accumulate, positions are sorted with their order (``index_put_with_sort_kernel`` in Indexing.cu)."""
    used = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in used):
        number = max(index.numel() for index in used)  # at least as many as a mask selects
    else:
        number = math.prod(torch.broadcast_shapes(*(index.shape for index in used)))  # type: ignore[no-untyped-call]
    if not accumulate or not number:
        return ()
    order = INDEX_BYTES * number
    rows = math.prod(size for size, index in zip(values.shape, indices, strict=False) if index is not None)
    bits = max(rows - 1, 1).bit_length()
    return [order, order, -1, order, order, order, sort_pairs_bytes(number, INDEX_BYTES, bits)]


def _embedding_backward(
    _out: Tensor, gradient: Tensor, indices: Tensor, weights: int, _padding: int = -1, by_frequency: bool = False
) -> Steps:
    """The sort of more than 3,072 positions, and sums of parts of the gradients (Embedding.cu)."""
    copy = copy_if_strided(gradient)
    if indices.numel() <= 3072 and not by_frequency:
        return [copy]
    return [copy, *_sorted_positions(indices.numel(), weights, gradient, first=2)]


def _sorted_positions(number: int, weights: int, gradient: Tensor, first: int = 1) -> list[int | None]:
    """The sort, and ``embedding_backward_cuda_kernel``: positions of segments and their parts, and the parts' sums.

    ``first`` is the number of the first of these steps.
    """
    order = INDEX_BYTES * number
    segments = min(number, weights)
    parts = number // 10 + segments
    return [
        *(order, order, order, sort_pairs_bytes(number, INDEX_BYTES), -(first + 3), -(first + 2), RESULTS),
        *(order, INDEX_BYTES, order, -(first + 9), INDEX_BYTES * segments, INDEX_BYTES * segments, INDEX_BYTES),
        *(INDEX_BYTES * parts, parts * gradient.shape[-1] * _accumulator(gradient)),
    ]


def _embedding_bag_backward(
    _out: Tensor,
    gradient: Tensor,
    indices: Tensor,
    _offsets: Tensor,
    _offset2bag: Tensor,
    _bag_size: Tensor,
    _max_indices: Tensor,
    weights: int,
    _by_frequency: bool,
    mode: int,
    *_: object,
) -> Steps:
    """As of ``Embedding``, for every number of positions (EmbeddingBag.cu); the largest of each bag needs no sort."""
    return () if mode == 2 else _sorted_positions(indices.numel(), weights, gradient)


def _cumulative(out: Tensor, input: Tensor, *_: object) -> int:
    """The input in the result's type (``impl_func_cum_ops`` in ReduceOps.cpp)."""
    return 0 if input.dtype == out.dtype else bytes_of(out)


def _sort(_out: object, input: Tensor, dim: int = -1, *_: object) -> Steps:
    """The order of a short row; of long rows, two orders and the keys, sorted by value and then by row (Sort.cu)."""
    if not input.dim() or not input.numel():
        return ()
    row = input.shape[dim]
    if row <= SMALL_SORT:
        return [INDEX_BYTES * row]
    number, keys = input.numel(), bytes_of(input)
    order = INDEX_BYTES * number
    pairs = sort_pairs_bytes(number, input.element_size())
    if row == number:
        return [order, pairs]
    copies = [] if input.stride(dim) == 1 and input.is_contiguous() else [keys, keys, order]
    first = len(copies)
    return [*copies, order, order, keys, pairs, -(first + 4), -(first + 3), sort_keys_bytes(number, 1)]


def _unique(out: Sequence[Tensor], input: Tensor, _sorted: bool = True, inverse: bool = False, *_: object) -> Steps:
    """The sorted values and, for the inverse, their order and the flags of new ones (UniqueCub.cu)."""
    order = INDEX_BYTES * input.numel()
    if not inverse:
        return [bytes_of(input), sort_keys_bytes(input.numel(), 8) + bytes_of(input)]
    return [bytes_of(input), order, order, sort_pairs_bytes(input.numel(), input.element_size()), -4, order, order]


def _safe_softmax(out: Tensor, *_: object) -> Steps:
    """A mask of values that are minus infinity, and of rows of them."""
    return [out.numel(), out.numel() // max(out.shape[-1], 1)] if out.dim() else ()


def _softmax_backward(_out: Tensor, gradient: Tensor, *_: object) -> int:
    """The product of gradient and output (SoftMax.cu: ``softmax_backward_cuda_out``)."""
    return bytes_of(gradient)


def _layer_norm_backward(
    out: Sequence[Tensor | None], gradient: Tensor, input: Tensor, shape: Sequence[int], *_: object
) -> Steps:
    """Contiguous arguments (layer_norm_kernel.cu: ``layer_norm_backward_cuda``)."""
    return [copy_if_strided(gradient), copy_if_strided(input)]


def _group_norm(_out: object, input: Tensor, weight: Tensor | None, bias: Tensor | None, *_: object) -> Steps:
    """A factor and a term for each channel, if there is a weight or bias (group_norm_kernel.cu)."""
    plain = input.dim() == 2 or (weight is None and bias is None)
    return () if plain else [_channels(input), _channels(input)]


def _group_norm_backward(
    _out: object, _gradient: Tensor, input: Tensor, mean: Tensor, _rstd: Tensor, weight: Tensor | None, *_: object
) -> Steps:
    """Two sums and a factor for each channel, and two factors for each group (group_norm_kernel.cu)."""
    factor = _channels(input) if weight is not None and input.dim() > 2 else 0
    return [_channels(input), _channels(input), bytes_of(mean), bytes_of(mean), factor]


def _channels(input: Tensor) -> int:
    return input.shape[0] * input.shape[1] * FLOAT_BYTES


def _batch_norm(_out: object, input: Tensor, *arguments: object) -> Steps:
    """Four parts of the statistics for each row of blocks (``batch_norm_stats_channels_last``)."""
    training = arguments[4]
    return _statistics(input, 4) if training else ()


def _batch_norm_backward(_out: object, _gradient: Tensor, input: Tensor, *_: object) -> Steps:
    """Two sums for each channel, and for each row of blocks (``batch_norm_backward_reduce_channels_last``)."""
    if input.stride(1) != 1:
        return ()
    channels = input.shape[1] * FLOAT_BYTES
    parts = _statistics(input, 2)
    return [channels, channels, *parts, *(-3 - place for place in reversed(range(len(parts)))), RESULTS]


def _statistics(input: Tensor, numbers: int) -> list[int]:
    """The staging memory and semaphores of a grid of blocks (``flexible_launch_configs`` in Normalization.cuh)."""
    if input.stride(1) != 1:
        return []
    channels = input.shape[1]
    rows = input.numel() // channels
    width = min(power_below(channels), 32)
    height = min(power_below(up(rows, 16)), 512 // width)
    if width * height != 512:
        width = min(power_below(channels), 512 // height)
    grid = min(up(rows, height * 16), 128)
    return [numbers * channels * grid * FLOAT_BYTES, up(channels, width) * SEMAPHORE_BYTES] if grid >= 8 else []


def _largest_of_parts(out: Sequence[Tensor], input: Tensor, *_: object) -> Steps:
    """Copies of results and input where channels are last (AdaptiveMaxPooling2d.cu)."""
    return () if input.is_contiguous() else [bytes_of(out[0]), bytes_of(out[1]), bytes_of(input)]


def _largest_of_parts_backward(out: Tensor, gradient: Tensor, input: Tensor, indices: Tensor) -> Steps:
    return [copy_if_strided(gradient), copy_if_strided(indices), 0 if input.is_contiguous() else bytes_of(out)]


def _ctc_backward(_out: Tensor, *arguments: Any) -> Steps:
    """The probabilities of all suffixes, as large as those of the prefixes (LossCTC.cu)."""
    return [bytes_of(arguments[6]), RESULTS]


def _learned_backward(_out: object, _gradient: Tensor, input: Tensor, *_: object) -> Steps:
    """What each element adds to the gradients of scale and zero (FakeQuantizeCore.cu)."""
    return [bytes_of(input), bytes_of(input)]


def _pairs(_out: Tensor, _gradient: Tensor, input: Tensor, *others: Any) -> Steps:
    """What each point adds to the gradient of each other (DistanceKernel.cu)."""
    count = others[0].shape[-2] if isinstance(others[0], Tensor) else input.shape[0] - 1
    return [RESULTS, count * bytes_of(input)]


ON_EVERY_CARD: Mapping[Operator | str, Rule] = {
    **dict.fromkeys([aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default], _product),
    **dict.fromkeys([aten.index_put.default, aten.index_put_.default], _index_put),
    **dict.fromkeys([aten._index_put_impl.default, aten._index_put_impl_.default], _index_put),
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._embedding_bag_backward.default: _embedding_bag_backward,
    aten.cumsum.default: _cumulative,
    aten.cumprod.default: _cumulative,
    aten.col2im.default: copy_of_first,
    aten.adaptive_max_pool2d.default: _largest_of_parts,
    aten.adaptive_max_pool2d_backward.default: _largest_of_parts_backward,
    aten.renorm.default: lambda _, input, __, dim, *___: input.shape[dim] * _accumulator(input),
    aten._cdist_backward.default: _pairs,
    aten._pdist_backward.default: _pairs,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten._unique2.default: _unique,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: copy_of_first,
    aten.native_layer_norm.default: copy_of_first,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    **dict.fromkeys([aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor], _ctc_backward),
    aten._fake_quantize_learnable_per_tensor_affine.default: lambda _, input, *__: input.numel(),
    aten._fake_quantize_learnable_per_tensor_affine_backward.default: _learned_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: partial(efficient_backward, None),
    aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
}


def _dims(value: object) -> list[int] | None:
    """The dimensions among a reduction's arguments; a single number is one, and None is all."""
    if isinstance(value, bool) or value is None:
        return None
    return [value] if isinstance(value, int) else list(value) if isinstance(value, (list, tuple)) else None


def _accumulator(input: Tensor) -> int:
    """The bytes of ``acc_type``: float32 for narrower floats, int64 for integers."""
    return max(input.element_size(), FLOAT_BYTES) if input.is_floating_point() else INDEX_BYTES


def _deviations(input: Tensor) -> int:
    """The bytes of ``WelfordData``."""
    return PAIR_BYTES * max(1, input.element_size() // FLOAT_BYTES)


def _reduction(
    card: CardProperties,
    accumulator: Callable[[Tensor], int],
    vector: int,
    _out: object,
    input: Tensor,
    dims: object = None,
    *_: object,
) -> Steps:
    return staging(input, _dims(dims), accumulator(input), card, vector) if input.numel() else ()


def _sum(card: CardProperties, out: Tensor, input: Tensor, dims: object = None, *_: object) -> Steps:
    """The input is copied to the result's type, but for narrow floats (ReduceOpsUtils.h: ``make_reduction``)."""
    fused = input.dtype in NARROW and out.dtype == torch.float32
    copy = 0 if fused or input.dtype == out.dtype else input.numel() * out.element_size()
    return [copy, *_reduction(card, lambda _: _accumulator(out), 4, None, input, dims)]


def _norm(
    card: CardProperties, _out: object, input: Tensor, _order: object = 2, dims: object = None, *_: object
) -> Steps:
    return _reduction(card, _accumulator, 4, None, input, dims)


def _logsumexp(card: CardProperties, out: Tensor, input: Tensor, dims: object, *_: object) -> Steps:
    """The largest values, the exponentials and their sum (ReduceOps.cpp: ``logsumexp_out_impl``)."""
    largest = _reduction(card, Tensor.element_size, 4, None, input, dims)
    total = _reduction(card, _accumulator, 4, None, input, dims)
    most = len(largest)
    finite = [bytes_of(out), out.numel(), -(2 * most + 3), -(2 * most + 2)]
    return [
        RESULTS,
        *largest,
        *(-place for place in range(most + 1, 1, -1)),
        *finite,
        bytes_of(input),
        bytes_of(out),
        *total,
    ]


def _buffered_loss(card: CardProperties, out: Tensor, input: Tensor, *_: object) -> Steps:
    """A second buffer as large as the input, and the mean (``BUFFERED_LOSSES``)."""
    return [bytes_of(input), *staging_of_mean(input.numel(), card)] if out.dim() == 0 else ()


def _binary_cross_entropy(card: CardProperties, out: Tensor, input: Tensor, *_: object) -> Steps:
    """The mean, which is then copied into the one buffer (Loss.cu)."""
    return [bytes_of(out), *staging_of_mean(input.numel(), card)] if out.dim() == 0 else ()


def _huber_loss(card: CardProperties, out: Tensor, input: Tensor, *_: object) -> Steps:
    """The losses and their mean (Loss.cpp)."""
    return [bytes_of(input), RESULTS, *staging_of_mean(input.numel(), card)] if out.dim() == 0 else ()


def _loss_from_logits(card: CardProperties, out: Tensor, input: Tensor, target: Tensor, *_: object) -> Steps:
    """A buffer for each of two terms, and the mean (``binary_cross_entropy_with_logits`` in Loss.cpp)."""
    term = max(bytes_of(input), bytes_of(target))
    return [term, term, RESULTS, *staging_of_mean(input.numel(), card)] if out.dim() == 0 else [term]


_SUMS = (aten.sum.dim_IntList, aten.sum.default, aten.nansum.default, aten.mean.dim, aten.mean.default)
_EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.any.dim, aten.all.dim)
_PAIRS = (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default)
_VARIANCES = (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)


@cache
def on_card(card: CardProperties) -> Mapping[Operator | str, Rule]:
    """The rules of kernels whose temporaries depend on the card, as they have reductions."""
    return {
        **dict.fromkeys(_SUMS, partial(_sum, card)),
        **dict.fromkeys(_EXTREMES, partial(_reduction, card, Tensor.element_size, 4)),
        **dict.fromkeys(_PAIRS, partial(_reduction, card, lambda input: PAIR_BYTES, 4)),
        **dict.fromkeys(_VARIANCES, partial(_reduction, card, _deviations, 2)),
        aten.mse_loss.default: partial(_buffered_loss, card),
        aten.smooth_l1_loss.default: partial(_buffered_loss, card),
        aten.huber_loss.default: partial(_huber_loss, card),
        aten.binary_cross_entropy.default: partial(_binary_cross_entropy, card),
        aten.binary_cross_entropy_with_logits.default: partial(_loss_from_logits, card),
        aten.convolution.default: partial(convolutions.forward, card),
        aten.convolution_backward.default: partial(convolutions.backward, card),
        aten.linalg_vector_norm.default: partial(_norm, card),
        aten.logsumexp.default: partial(_logsumexp, card),
        aten._scaled_dot_product_flash_attention.default: partial(flash_forward, card),
        aten._scaled_dot_product_efficient_attention_backward.default: partial(efficient_backward, card),
    }


Make: TypeAlias = Callable[[Sequence[int], torch.dtype], Tensor]
"""(shape, type) → an empty tensor."""


def _bags(make: Make, out: Sequence[Tensor], _weight: Tensor, indices: Tensor, *_: object) -> tuple[Tensor, ...]:
    """The CPU has a kernel that needs no bag of each index."""
    bags = make(indices.shape, indices.dtype)  # ``indices.options()`` in EmbeddingBag.cu
    return out[0], bags, *out[2:3], out[3] if out[3].dim() == 2 else make([0], torch.long)


def _layer_norm(make: Make, out: Sequence[Tensor], *_: object) -> tuple[Tensor, ...]:
    """Mean and deviation are in float32 for narrower inputs."""
    return out[0], *(make(part.shape, wide(part.dtype)) for part in out[1:])


def _log_sigmoid(make: Make, out: Sequence[Tensor], *_: object) -> tuple[Tensor, ...]:
    """Only the CPU keeps a buffer."""
    return out[0], make([0], out[0].dtype)


RETURNED: Mapping[Operator, Callable[..., tuple[Tensor, ...]]] = {
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
    aten.native_layer_norm.default: _layer_norm,
    aten.log_sigmoid_forward.default: _log_sigmoid,
}
"""What CUDA's kernels return where the CPU's return something else."""
