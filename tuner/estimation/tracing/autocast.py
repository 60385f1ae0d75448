"""Autocast as on a GPU, for tensors that are on the CPU: its functions that compute in float32 are others there.

The lists are AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE of ATen's autocast_mode.h, without what the CPU's list
has as well and what training hardly uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tuner.estimation.tracing.corrections.temporaries import NARROW

FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
    *("tan", "pow", "__pow__", "__rpow__", "square", "softplus", "layer_norm", "group_norm", "cosine_similarity"),
    *("logsumexp", "sinh", "dist", "pdist", "renorm"),
)
SUMMED = ("sum", "cumsum", "cumprod", "prod", "norm")  # with an argument for the result's type
SOFTMAXES = {"softmax": torch._softmax, "log_softmax": torch._log_softmax}
NAMESPACES = (torch, Tensor, F)
CROSS_ENTROPY = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
plain_cross_entropy = F.cross_entropy
_plain_init_autocast = torch.autocast.__init__


def init_autocast(
    self: torch.autocast,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> None:
    """Autocast for the CPU, where the tensors really are; autocast for a GPU would ignore them."""
    dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
    _plain_init_autocast(self, "cpu", dtype, enabled, cache_enabled)


def cross_entropy(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``F.cross_entropy``, which computes the softmax in the input's type and the rest in float32."""
    options = dict(zip(CROSS_ENTROPY, args, strict=False)) | kwargs
    if not _is_cast(input) or options.pop("label_smoothing", 0) or target.is_floating_point():
        return plain_cross_entropy(input, target, *args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return F.nll_loss(torch.log_softmax(input, 1 if input.dim() > 1 else 0).float(), target, **options)


def _is_cast(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype in NARROW and torch.is_autocast_enabled("cpu")


def _widened(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The function of float32 copies."""
    if not any(map(_is_cast, (*args, *kwargs.values()))):
        return function(*args, **kwargs)
    args = tuple(value.float() if _is_cast(value) else value for value in args)
    return function(*args, **{name: value.float() if _is_cast(value) else value for name, value in kwargs.items()})


def _summed(function: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Sums in float32 need no copy."""
    if _is_cast(input) and kwargs.get("dtype") is None:
        kwargs["dtype"] = torch.float32
    return function(input, *args, **kwargs)


def _softmax(
    function: Callable[..., Any], fused: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """A softmax in float32 needs no copy of float16, but of bfloat16 (SoftMax.cpp)."""
    dim = args[0] if args else kwargs.get("dim")
    if _is_cast(input) and input.dtype == torch.float16 and isinstance(dim, int):
        return fused(input, dim, True)
    return _widened(function, input, *args, **kwargs)


def _normalized(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """A norm is in float32 without a copy, and so is the quotient."""
    if not _is_cast(input) or out is not None:
        return F.normalize(input, p, dim, eps, out)
    norm: Tensor = torch.linalg.vector_norm(input, p, dim, keepdim=True, dtype=torch.float32)
    return input / norm.clamp_min(eps)


def _promoted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function that takes tensors of several types without copies of the narrower ones."""
    with torch.autocast("cpu", enabled=False):
        return function(*args, **kwargs)


IN_FLOAT32: Mapping[object, Callable[..., Any]] = {
    **{
        getattr(space, n): partial(_widened, getattr(space, n))
        for space in NAMESPACES
        for n in FLOAT32
        if hasattr(space, n)
    },
    **{getattr(space, n): partial(_summed, getattr(space, n)) for space in (torch, Tensor) for n in SUMMED},
    **{function: partial(_promoted, function) for function in (torch.cat, torch.stack)},
    F.normalize: _normalized,
    **{
        getattr(space, name): partial(_softmax, getattr(space, name), fused)
        for space in NAMESPACES
        for name, fused in SOFTMAXES.items()
    },
}
"""By the function that a GPU's autocast computes in float32: what to call instead."""
