"""Norms that are one kernel on a GPU, where the CPU has several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``torch.rms_norm``, which is ``_fused_rms_norm`` on CUDA since torch 2.9; before, this is an underestimate."""
    out: Tensor = _RMSNorm.apply(input, len(normalized_shape), weight)  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    """It keeps its input and, in float32, a factor for each row (layer_norm_kernel.cu)."""

    @staticmethod
    def forward(ctx: FunctionCtx, input: Tensor, dims: int, weight: Tensor | None) -> Tensor:
        """(*, shape) → (*, shape)."""
        out = torch.empty_like(input)
        factors = input.new_empty(
            input.shape[:-dims], dtype=max(input.dtype, torch.float32, key=lambda t: t.itemsize)
        )
        ctx.save_for_backward(input, factors, *(() if weight is None else (weight,)))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        """The gradients of input and weight."""
        input, _, *weight = ctx.saved_tensors
        return torch.empty_like(input), None, torch.empty_like(weight[0]) if weight else None
