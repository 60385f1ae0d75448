"""The results of kernels that have no version for fake tensors: of CUDA's, and of any whose values decide a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tuner.estimation.tracing.corrections.temporaries import Operator, aten

Make: TypeAlias = Callable[[Sequence[int], torch.dtype], Tensor]
"""(shape, type) → an empty tensor."""


def _like(place: int, make: Make, *args: Any) -> Tensor:
    return make(args[place].shape, args[place].dtype)


def _with_mask(make: Make, input: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return make(input.shape, input.dtype), make(input.shape, torch.bool)


def _ctc(
    make: Make, scores: Tensor, _targets: Tensor, _lengths: object, lengths: Any, *_: object
) -> tuple[Tensor, ...]:
    """The losses, and each place's probabilities of all prefixes (``ctc_loss_gpu_template`` in LossCTC.cu)."""
    batch = scores.shape[1] if scores.dim() == 3 else 1
    places = 2 * int(max(lengths.flatten().tolist() if isinstance(lengths, Tensor) else lengths, default=0)) + 1
    losses = (batch,) if scores.dim() == 3 else ()
    return make(losses, scores.dtype), make((batch, scores.shape[0], places), scores.dtype)


def _learned(make: Make, _gradient: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """The gradients of input, scale and zero."""
    return tuple(make(part.shape, part.dtype) for part in args[:3])


def _unique(make: Make, input: Tensor, _sorted: bool = True, inverse: bool = False, counts: bool = False) -> Any:
    """The values, the places of all among them, and how often each is there."""
    others = (make(input.shape if given else (0,), torch.long) for given in (inverse, counts))
    return make((input.numel(),), input.dtype), *others


# The most that these operators may select where nothing has values.
SELECTED: Mapping[Operator, Callable[..., Any]] = {
    aten.masked_select.default: lambda make, input, mask: make((max(input.numel(), mask.numel()),), input.dtype),
    aten.nonzero.default: lambda make, input: make((input.numel(), input.dim()), torch.long),
    aten._unique2.default: _unique,
}
UNFAKED: Mapping[Operator, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc),
    **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), partial(_like, 1)),
    aten.multi_margin_loss_backward.default: partial(_like, 1),
    aten.multilabel_margin_loss_backward.default: partial(_like, 1),
    aten.fake_quantize_per_tensor_affine_cachemask.default: _with_mask,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _with_mask,
    aten.fake_quantize_per_channel_affine_cachemask.default: _with_mask,
    aten._fake_quantize_learnable_per_tensor_affine.default: partial(_like, 0),
    aten._fake_quantize_learnable_per_channel_affine.default: partial(_like, 0),
    aten._fake_quantize_learnable_per_tensor_affine_backward.default: _learned,
    aten._fake_quantize_learnable_per_channel_affine_backward.default: _learned,
}
