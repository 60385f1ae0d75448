"""Replaces torch functions in a traced step, mostly so that a step on the CPU behaves as on a GPU."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, _meta_registrations, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _device as defaults
from torch.utils import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from tuner.estimation.tracing import recurrent
from tuner.estimation.tracing.autocast import CUDA, cuda_autocast
from tuner.estimation.tracing.corrections.attention import attention
from tuner.estimation.tracing.corrections.temporaries import TORCH, wide
from tuner.estimation.tracing.dispatch_mode import TraceMode, tensors_in
from tuner.estimation.tracing.storage_tracker import StorageTracker, with_own_storage

_plain_linear = F.linear
_plain_dropout = F.dropout
_plain_ctc = F.ctc_loss
_plain_l1 = F.l1_loss
_plain_save = torch.autograd.graph.save_on_cpu.__init__
plain_to = Tensor.to
_plain_attention = F.scaled_dot_product_attention
_plain_run_backward: Callable[..., object] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]


# What ``nn.Module.to`` reads its arguments by, and a device alone.
AS_THEY_ARE: tuple[object, ...] = (torch._C._nn._parse_to, torch.device)


class FunctionMode(TorchFunctionMode):
    """Replaces torch functions, and keeps on the CPU what goes to a GPU.

    Values that leave torch are ones. For a GPU, CPU tensors report a CUDA device, and these functions differ:
    ``dropout`` is one kernel with a boolean mask, where the CPU multiplies by noise of the input's type; attention is
    the kernel that the card would choose; and autocast is a GPU's (``autocast.py``).
    """

    def __init__(self, mode: TraceMode) -> None:
        super().__init__()
        self._mode, self._cuda = mode, mode.device_kind == "cuda"
        self._replaced: dict[object, Callable[..., object]] = {
            Tensor.numpy: _numpy,
            Tensor.__array__: _array,
            Tensor.tolist: _list,
            Tensor.__deepcopy__: _deepcopy,
            _plain_linear: partial(_linear, mode),
            **dict.fromkeys((torch.cumprod, Tensor.cumprod), _cumprod),
        }
        if self._cuda:
            self._replaced |= {
                _plain_dropout: _dropout,
                _plain_attention: partial(_attention, mode),
                **recurrent.replacements(mode, _dropout),
                **dict.fromkeys((torch.rms_norm, F.rms_norm), rms_norm),
                Tensor.device.__get__: partial(_device, mode),
                F.ctc_loss: _ctc_loss,
                Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
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
        if func in AS_THEY_ARE:
            return func(*args, **kwargs)
        tracker, makes = self._mode.tracker, self._cuda and func in defaults._device_constructors()
        if makes and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": defaults.CURRENT_DEVICE or "cpu"}
        given = (*args, *kwargs.values())
        puts = self._cuda and tracker.is_paused and any(map(_is_gpu, given))  # such as what ``build`` keeps there
        if tracker.is_building and not puts:
            puts = any(tracker.is_counted(value) for value in tensors_in(given))
        if self._cuda:
            args = tuple(_on_cpu(value) for value in args)
            kwargs = {key: _on_cpu(value) for key, value in kwargs.items()}
        out = self._replaced.get(func, func)(*args, **kwargs)
        for made in tensors_in(out) if puts else ():
            tracker.put(made)
        if makes and tracker.rest_on_host and not any(map(_is_gpu, given)) and isinstance(out, Tensor):
            tracker.ignore(out)
        return out


@contextmanager
def patched(mode: TraceMode) -> Iterator[None]:
    """Replaces what a function mode cannot: methods, and functions that torch itself calls by name."""
    where = cast("property", FakeTensor.device)

    def device(tensor: FakeTensor) -> object:
        return where.__get__(tensor) if mode.inside else _device(mode, tensor)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        stack.enter_context(mock.patch.object(F, "linear", partial(_linear, mode)))
        stack.enter_context(mock.patch.object(F, "l1_loss", _l1_loss))
        if mode.device_kind == "cuda":
            stack.enter_context(mock.patch.object(FakeTensor, "device", property(device)))
            # Hooks that save tensors for the backward pass run without a function mode.
            for name in ("to", "cpu", "cuda"):
                stack.enter_context(mock.patch.object(Tensor, name, _mover(mode, getattr(Tensor, name)), create=True))
            stack.enter_context(mock.patch.object(torch.autograd.graph.save_on_cpu, "__init__", _save_unpinned))
            stack.enter_context(cuda_autocast())
            stack.enter_context(mock.patch.object(F, "dropout", _dropout))
            stack.enter_context(
                mock.patch.object(torch.autograd, "_engine_run_backward", partial(_run_backward, mode))
            )
            # It compares devices, and an integer tensor's device may be either.
            stack.enter_context(mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, default=_nothing))
            # Where CUDA is in use, it asks for the state of the CPU's module.
            stack.enter_context(mock.patch.object(checkpoint, "get_device_states", lambda *_: ([], [])))
            stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", partial(_attention, mode)))
            # Torch's optimizers update all parameters of these types at once on a GPU.
            stack.enter_context(_added(optimizer._foreach_supported_types, FakeTensor))
            stack.enter_context(mock.patch.object(nn.RNNBase, "flatten_parameters", _nothing))
            # It fails on a cell without biases.
            stack.enter_context(mock.patch.object(_meta_registrations, "rnn_cell_checkSizes", _nothing))
        yield


@contextmanager
def _added(values: list[Any], value: object) -> Iterator[None]:
    """A list has another value in this block."""
    values.append(value)
    try:
        yield
    finally:
        values.remove(value)


def _on_cpu(value: object) -> object:
    """An argument, with the CPU in place of a GPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _is_gpu(value: object) -> bool:
    return isinstance(value, (str, torch.device)) and str(value).split(":")[0] == "cuda"


def _device(mode: TraceMode, tensor: Tensor) -> torch.device:
    return torch.device("cpu") if _is_on_host(mode.tracker, tensor) else CUDA


def _is_on_host(tracker: StorageTracker, tensor: Tensor) -> bool:
    """Whether a tensor is not on the GPU; while a user's code makes what a step needs, what it has not put there."""
    return not tracker.is_counted(tensor) if tracker.is_building else tracker.is_ignored(tensor)


def _mover(mode: TraceMode, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``Tensor.to``, ``cpu`` or ``cuda`` between a GPU and the host, which a trace has in one place."""
    fixed = {"cpu": "cpu", "cuda": "cuda"}.get(plain.__name__)

    def move(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        places = [str(value) for value in (*args, *kwargs.values()) if isinstance(value, (str, torch.device))]
        target = fixed or (places[0].split(":")[0] if places else None)
        rest = [] if fixed else [None if isinstance(v, (str, torch.device)) else v for v in args]
        if mode.inside or target not in ("cpu", "cuda"):  # torch's fake kernels move tensors, too
            return plain(tensor, *args, **kwargs)
        tracker = mode.tracker
        is_host = _is_on_host(tracker, tensor)
        out = tensor
        if tracker.is_paused and target == "cuda":
            out = with_own_storage(tensor)
            tracker.put(out)
        elif is_host == (target == "cuda") and tracker.is_paused == tracker.is_building:
            out = _Moved.apply(tensor, tracker, not is_host)  # type: ignore[no-untyped-call]
        dtype = kwargs.get("dtype") or next((v for v in rest if isinstance(v, torch.dtype)), None)
        copies = kwargs.get("copy") and out is tensor
        out = out.clone() if copies else out
        return out if dtype is None else plain_to(out, dtype)

    return move


class _Moved(torch.autograd.Function):
    """A copy on the host or on the GPU; its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, tracker: StorageTracker, to_host: bool) -> Tensor:
        """The copy."""
        ctx.tracker, ctx.to_host = tracker, to_host
        with tracker.paused(), torch._C.DisableTorchFunction():
            out = tensor.clone()
        if to_host:
            tracker.ignore(out)
        else:
            tracker.put(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient where the argument is."""
        out: Tensor = _Moved.apply(gradient, ctx.tracker, not ctx.to_host)  # type: ignore[no-untyped-call]
        return out, None, None


def _save_unpinned(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
    """``save_on_cpu``, whose pinned memory is the host's as well."""
    _plain_save(self, False, device_type)


def _l1_loss(*args: Any, **kwargs: Any) -> Tensor:
    """Without a function mode, as torch would not hand it the weights."""
    with torch._C.DisableTorchFunction():
        return _plain_l1(*args, **kwargs)


def _ctc_loss(scores: Tensor, targets: Tensor, lengths: Any, longest: Any, *args: Any, **kwargs: Any) -> Tensor:
    """With the lengths as tensors: C++ would write lists into a tensor without values."""
    return _plain_ctc(scores, targets, torch.as_tensor(lengths), torch.as_tensor(longest), *args, **kwargs)


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


def _nothing(*_: object) -> None:
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


def _cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    out: Tensor = _CumulativeProduct.apply(input, dim, dtype)  # type: ignore[no-untyped-call]
    return out


class _CumulativeProduct(torch.autograd.Function):
    """Torch's formula where no element is zero; for tensors without values it has one of many more operators."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
        """The products."""
        out = torch.cumprod(input, dim, dtype=dtype)
        ctx.save_for_backward(input, out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the input (``cumprod_backward`` in FunctionsManual.cpp)."""
        input, out = ctx.saved_tensors
        narrow, zeros = gradient.to(input.dtype), input == 0
        weighted = narrow * out
        flipped = weighted.flip(ctx.dim)
        summed = flipped.cumsum(ctx.dim)
        back = summed.flip(ctx.dim)
        del flipped, summed
        result = back / input
        del back, zeros, weighted, narrow
        return result.to(input.dtype), None, None


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
