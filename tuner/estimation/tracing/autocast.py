"""Autocast as a GPU has it, for tensors that are on the CPU.

The CPU's autocast has other operators and other types. So in a trace for a GPU, every operator that either of the two
knows gets a kernel of ours: it runs the operator on CUDA tensors without storage, up to the first operator after the
GPU's casts, and then does the same to the arguments.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tuner.estimation.tracing.corrections.temporaries import Operator, aten

CUDA = torch.device("cuda", 0)
ON_CPU, ON_CUDA = "AutocastCPU", "AutocastCUDA"
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_knows = torch._C._dispatch_has_kernel_for_dispatch_key
_plain_init = torch.autocast.__init__
_plain_clear = torch.clear_autocast_cache


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """In this block, autocast for a GPU casts the CPU's tensors."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that kernels are replaced
        for name in _known():
            kernel = partial(_run, _operator(name)) if _knows(name, ON_CUDA) else torch.library.fallthrough_kernel
            library.impl(name, kernel, ON_CPU)  # type: ignore[no-untyped-call]
    try:
        with (
            mock.patch.object(torch.autocast, "__init__", _init_autocast),
            mock.patch.object(torch, "clear_autocast_cache", _clear_cache),
        ):
            yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
        _NARROW.clear()


def _clear_cache() -> None:
    _NARROW.clear()
    _plain_clear()


@cache
def _known() -> tuple[str, ...]:
    """The names of the operators that either autocast knows."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return tuple(name for name in names if _knows(name, ON_CPU) or _knows(name, ON_CUDA))


def _operator(name: str) -> Operator:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found: Operator = getattr(getattr(aten, packet), overload or "default")
    return found


def _init_autocast(
    self: torch.autocast,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> None:
    """Autocast for the CPU, where the tensors really are; autocast for a GPU would ignore them."""
    dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
    _plain_init(self, "cpu", dtype, enabled, cache_enabled)


class _Reached(Exception):
    """The first operator after the casts was reached."""


class _Casting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs casts alone, of CUDA tensors without storage, up to another operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: list[tuple[Tensor, Tensor]] = []  # each result with its source
        self.reached: tuple[Operator, Any, Any] | None = None

    def __torch_dispatch__(self, operator: Operator, types: object, args: Any = (), kwargs: Any = None) -> Tensor:
        """The result of a cast."""
        if operator is not aten._to_copy.default:
            self.reached = operator, args, kwargs or {}
            raise _Reached
        out = _on_cuda(args[0], kwargs["dtype"])
        self.casts.append((out, args[0]))
        return out


class _OnCuda(Tensor):
    """A CUDA tensor without storage."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, operator: Operator, *_: object) -> None:  # type: ignore[override]
        """Only runs within ``_Casting``."""
        raise NotImplementedError(operator)


def _on_cuda(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    make = Tensor._make_wrapper_subclass
    out: Tensor = make(_OnCuda, tensor.shape, strides=strides, dtype=dtype, device=CUDA)
    return out


# By the id of a weight: the weight and its narrow copy, which autocast keeps until it ends (``cached_cast``).
_NARROW: dict[int, tuple[Tensor, Tensor]] = {}


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    is_weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype == torch.float32 and not tensor._is_view()
    if not is_weight or dtype != torch.get_autocast_dtype("cpu") or not torch.is_autocast_cache_enabled():
        return tensor.to(dtype)
    if id(tensor) not in _NARROW:
        _NARROW[id(tensor)] = tensor, tensor.to(dtype)
    return _NARROW[id(tensor)][1]


def _stem(operator: Operator) -> str:
    return str(operator.overloadpacket.__name__).strip("_")


def arguments(operator: Operator, *args: Any) -> list[Any]:
    """What a GPU's autocast gives an operator, if autocast is on; else what it was given."""
    if not torch.is_autocast_enabled("cpu"):
        return [*args]
    with torch._C._ExcludeDispatchKeyGuard(_KEY), torch._C.DisableTorchFunction():
        return [*_followed(operator, args, {})[1]]


def _run(operator: Operator, *args: object, **kwargs: object) -> object:
    """The kernel."""
    with torch._C._ExcludeDispatchKeyGuard(_KEY), torch._C.DisableTorchFunction():
        reached, args, kwargs = _followed(operator, args, kwargs)
        return reached(*args, **kwargs)


def _followed(operator: Operator, args: Any, kwargs: Any) -> tuple[Operator, Any, Any]:
    """The operator and the arguments to which a GPU's autocast leads.

    It may be another overload, or a kernel's, such as ``sum`` with a type, or ``_softmax`` of float16 in float32.
    """
    given, spec = pytree.tree_flatten((args, kwargs))
    twins = [_on_cuda(value, value.dtype) if isinstance(value, Tensor) else value for value in given]
    values = {id(twin): value for twin, value in zip(twins, given, strict=True) if isinstance(twin, Tensor)}
    twin_args, twin_kwargs = pytree.tree_unflatten(twins, spec)
    was_on, was_type = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.get_autocast_dtype("cpu"))
    casting = _Casting()
    try:
        with casting:
            operator(*twin_args, **twin_kwargs)
    except _Reached:
        pass
    finally:
        torch.set_autocast_enabled("cuda", was_on)
        torch.set_autocast_dtype("cuda", was_type)
    last = {}
    for out, source in casting.casts:
        values[id(out)] = last[id(source)] = _converted(values[id(source)], out.dtype)
    assert casting.reached is not None, f"{operator} has no kernel"
    reached, *found = casting.reached
    if _stem(reached) == _stem(operator):
        return reached, *_replaced(found, values)
    args, kwargs = _replaced([twin_args, twin_kwargs], values | last)
    # What it gives its first kernel is its own, such as the type of ``linalg.matrix_norm``.
    given_types = {"dtype": found[1]["dtype"]} if "dtype" in found[1] and _has_type(operator) else {}
    return operator, args, {**kwargs, **given_types}


def _replaced(arguments: list[Any], values: Mapping[int, Tensor]) -> Any:
    return pytree.tree_map(lambda value: values.get(id(value), value), arguments)


def _has_type(operator: Operator) -> bool:
    return any(argument.name == "dtype" for argument in operator._schema.arguments)
