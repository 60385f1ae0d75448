"""Norms that are one kernel on a GPU, where the CPU has several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuner.estimation.tracing.corrections.temporaries import TORCH, wide

IS_FUSED = TORCH >= (2, 9)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``torch.rms_norm``, which is ``_fused_rms_norm`` on CUDA since torch 2.9, if input and weight have one type."""
    mixed = weight is not None and weight.dtype != input.dtype  # as under autocast, which casts neither
    if mixed or not IS_FUSED or torch._C._are_functorch_transforms_active():
        return torch.rms_norm(input, normalized_shape, weight, eps)
    out: Tensor = _RMSNorm.apply(input, normalized_shape, weight, eps)  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    """It keeps its input and, in float32, a factor for each row (layer_norm_kernel.cu)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
        """(*, shape) → (*, shape)."""
        out = torch.empty_like(input)
        factors = input.new_empty(input.shape[: -len(shape)], dtype=wide(input.dtype))
        ctx.save_for_backward(input, factors, *(() if weight is None else (weight,)))
        ctx.options = shape, eps
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        """The gradients of input and weight, of several kernels if they are differentiated again."""
        input, _, *weight = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return torch.empty_like(input), None, torch.empty_like(weight[0]) if weight else None, None
        shape, eps = ctx.options
        with torch._C.DisableTorchFunction():
            out = torch.rms_norm(input, shape, weight[0] if weight else None, eps)
        found = torch.autograd.grad(out, [input, *weight], gradient, create_graph=True, allow_unused=True)
        return found[0], None, found[1] if weight else None, None
