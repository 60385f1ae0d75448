"""Replaces torch functions in a traced step, mostly so that a step on the CPU behaves as on a GPU."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from tuner.estimation.tracing import recurrent
from tuner.estimation.tracing.corrections.attention import attention
from tuner.estimation.tracing.corrections.temporaries import NARROW, TORCH, wide
from tuner.estimation.tracing.dispatch_mode import TraceMode

CUDA = torch.device("cuda", 0)
_plain_linear = F.linear
_plain_dropout = F.dropout
_plain_attention = F.scaled_dot_product_attention
_plain_run_backward: Callable[..., object] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
# Autocast computes other functions in float32 on a GPU than on the CPU. These are AT_FORALL_FP32 and
# AT_FORALL_FP32_SET_OPT_DTYPE of ATen's autocast_mode.h, without what the CPU's list has as well and what training
# hardly uses.
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


class FunctionMode(TorchFunctionMode):
    """Replaces torch functions, and keeps on the CPU what goes to a GPU.

    Values that leave torch are ones. For a GPU, CPU tensors report a CUDA device, and these functions differ:
    ``dropout`` is one kernel with a boolean mask, where the CPU multiplies by noise of the input's type; attention is
    the kernel that the card would choose; and autocast computes other functions in float32.
    """

    def __init__(self, mode: TraceMode) -> None:
        super().__init__()
        self._cuda = mode.device_kind == "cuda"
        self._replaced: dict[object, Callable[..., object]] = {
            Tensor.numpy: _numpy,
            Tensor.__array__: _array,
            Tensor.tolist: _list,
            Tensor.__deepcopy__: _deepcopy,
            _plain_linear: partial(_linear, mode),
        }
        if self._cuda:
            self._replaced |= {
                _plain_dropout: _dropout,
                _plain_attention: partial(_attention, mode),
                **IN_FLOAT32,
                **recurrent.replacements(mode, _dropout),
                **dict.fromkeys((torch.rms_norm, F.rms_norm), rms_norm),
                plain_cross_entropy: cross_entropy,
                Tensor.device.__get__: lambda tensor: CUDA,
                Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
                Tensor.cuda: lambda tensor, *args, **kwargs: tensor,
            }

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Calls the function or its replacement."""
        kwargs = kwargs or {}
        if self._cuda:
            args = tuple(_on_cpu(value) for value in args)
            kwargs = {key: _on_cpu(value) for key, value in kwargs.items()}
        return self._replaced.get(func, func)(*args, **kwargs)


@contextmanager
def patched(mode: TraceMode) -> Iterator[None]:
    """Replaces what a function mode cannot: methods, and functions that torch itself calls by name."""
    where = cast("property", FakeTensor.device)

    def device(tensor: FakeTensor) -> object:
        return where.__get__(tensor) if mode.inside else CUDA

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        stack.enter_context(mock.patch.object(F, "linear", partial(_linear, mode)))
        if mode.device_kind == "cuda":
            stack.enter_context(mock.patch.object(FakeTensor, "device", property(device)))
            stack.enter_context(mock.patch.object(torch.autocast, "__init__", init_autocast))
            stack.enter_context(mock.patch.object(F, "dropout", _dropout))
            stack.enter_context(
                mock.patch.object(torch.autograd, "_engine_run_backward", partial(_run_backward, mode))
            )
            # It compares devices, and an integer tensor's device may be either.
            stack.enter_context(mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, default=_nothing))
            # Where CUDA is in use, it asks for the state of the CPU's module.
            stack.enter_context(mock.patch.object(checkpoint, "get_device_states", lambda *_: ([], [])))
            stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", partial(_attention, mode)))
            stack.enter_context(mock.patch.object(F, "cross_entropy", cross_entropy))
            stack.enter_context(mock.patch.object(F, "softmax", IN_FLOAT32[F.softmax]))  # of nn.MultiheadAttention
            stack.enter_context(mock.patch.object(nn.RNNBase, "flatten_parameters", _nothing))
        yield


def _on_cpu(value: object) -> object:
    """An argument, with the CPU in place of a GPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _numpy(tensor: Tensor, *, force: bool = False) -> NDArray[np.generic]:
    if not isinstance(tensor, FakeTensor):
        return tensor.numpy(force=force)
    return np.ones(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def _array(tensor: Tensor, dtype: DTypeLike | None = None) -> NDArray[np.generic]:
    return _numpy(tensor.detach()).astype(dtype)


def _list(tensor: Tensor) -> object:
    return np.ones(tuple(tensor.shape)).tolist() if isinstance(tensor, FakeTensor) else tensor.tolist()


def _deepcopy(tensor: Tensor, memo: dict[int, Tensor]) -> Tensor:
    """Like torch's, but without copying a fake tensor's mode."""
    if not isinstance(tensor, FakeTensor):
        return cast("Tensor", Tensor.__deepcopy__(tensor, memo))  # type: ignore[no-untyped-call]
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        memo[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
    return memo[id(tensor)]


def _linear(mode: TraceMode, *args: Tensor, **kwargs: Tensor) -> Tensor:
    with mock.patch.object(mode, "adds_in_place", True):
        return _plain_linear(*args, **kwargs)


def _attention(mode: TraceMode, *args: Any, **kwargs: Any) -> Tensor:
    with mock.patch.object(mode, "adds_in_place", True):  # a mask to the scores
        return attention(mode.card, *args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if inplace or not training or not 0 < p < 1:
        return _plain_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, training)[0]


def _run_backward(mode: TraceMode, *args: object, **kwargs: object) -> object:
    """The autograd engine under a function mode, as gradient checkpointing runs a forward pass in it."""
    with FunctionMode(mode):
        return _plain_run_backward(*args, **kwargs)


def _nothing(_: Tensor | nn.Module) -> None:
    """The metadata that checkpointing compares after recomputing a tensor, and cuDNN's order of weights: none."""


def _apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """``nn.Module._apply``, which ``to()`` and ``half()`` use, for fake tensors. Shared parameters stay shared."""
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = _moved(parameter, fn)
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else fn(buffer)
    return module


# By the original parameter: the function that moved it, and the moved parameter.
_MOVED: MutableMapping[Tensor, tuple[Callable[[Tensor], Tensor], nn.Parameter]] = WeakIdKeyDictionary()


def _moved(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor]) -> nn.Parameter:
    mover, name = _MOVED.get(parameter, (None, parameter))
    if mover is fn:
        return name
    value = fn(parameter)
    if value is parameter:
        return parameter
    moved = nn.Parameter(value, parameter.requires_grad)
    _MOVED[parameter] = fn, moved
    return moved


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
        gradients = torch.autograd.grad(out, [input, *weight], gradient, create_graph=True, allow_unused=True)
        return gradients[0], None, gradients[1] if weight else None, None


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


def _widened(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The function of float32 copies."""
    if not any(map(_is_cast, (*args, *kwargs.values()))):
        return function(*args, **kwargs)
    args = tuple(value.float() if _is_cast(value) else value for value in args)
    return function(*args, **{name: value.float() if _is_cast(value) else value for name, value in kwargs.items()})


def _summed(function: Callable[..., Tensor], input: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Sums in float32 need no copy."""
    if _is_cast(input) and kwargs.get("dtype") is None:
        kwargs["dtype"] = torch.float32
    return function(input, *args, **kwargs)


def _softmax(
    function: Callable[..., Tensor], fused: Callable[..., Tensor], input: Tensor, *args: object, **kwargs: object
) -> Tensor:
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


def _promoted(function: Callable[..., Tensor], *args: object, **kwargs: object) -> Tensor:
    """A function that takes tensors of several types without copies of the narrower ones."""
    with torch.autocast("cpu", enabled=False):
        return function(*args, **kwargs)


IN_FLOAT32: Mapping[object, Callable[..., Tensor]] = {
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
