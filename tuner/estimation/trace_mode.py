"""The dispatch mode that a traced step runs under: integers are real, floats are fake, every storage is recorded.

Index work (sorting, masks, positions, shapes that follow from data) needs values, and takes little: tensors of
integers and booleans stay real for as long as they come from real ones. Everything with a float in it is a
``FakeTensor``: a shape and a storage of a size, without bytes and without computing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias, cast
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from tuner.estimation import corrections
from tuner.estimation.allocator import RELEASE, Event
from tuner.estimation.corrections import aten, tensors_in

Category: TypeAlias = Literal["parameters", "gradients", "optimizer", "activations", "data", "workspace"]
DeviceKind: TypeAlias = Literal["cpu", "cuda"]

CUDA = torch.device("cuda", 0)
NOT_COUNTED = -1  # in place of an id: memory that torch did not allocate


class Recorder:
    """Allocations and releases in the order in which they happen, and what each is for.

    A storage is known by its address for as long as it lives; its id is its own for ever.
    """

    def __init__(self, device_kind: DeviceKind) -> None:
        self.events: list[Event] = []
        self.categories: dict[int, Category] = {}
        self.paused = False
        self._cuda = device_kind == "cuda"
        # By the storage's address: (id, size in bytes, the reference whose callback ends it).
        self._live: dict[int, tuple[int, int, weakref.ref[Any] | None]] = {}

    def allocate(self, size_bytes: int, category: Category) -> int:
        """Record an allocation, and return its id."""
        key = len(self.events)
        self.events.append((key, size_bytes))
        self.categories[key] = category
        return key

    def temporary(self, size_bytes: int) -> None:
        """Record workspace that is released at once."""
        if size_bytes > 0 and not self.paused:
            self.events.append((self.allocate(size_bytes, "workspace"), RELEASE))

    def made(self, tensor: Tensor, size_bytes: int | None = None) -> None:
        """An operator returned this tensor: a new storage, one with a new size, or nothing new (a view)."""
        if self.paused:
            return
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes() if size_bytes is None else size_bytes
        known = self._live.get(address)
        if known is None:
            self._begin(storage, self.allocate(size, "activations"), size)
        elif known[1] != size and size_bytes is None and known[0] != NOT_COUNTED and storage.nbytes() > known[1]:
            category = self.categories[known[0]]
            self.events.append((known[0], RELEASE))
            self._live[address] = (self.allocate(size, category), size, known[2])

    def met(self, tensor: Tensor) -> None:
        """An operator takes this tensor: if it is older than the trace, its memory counts from here on.

        On a GPU, that is the copy which was moved there; numpy's memory on the CPU is nothing that torch allocated.
        """
        if self.paused:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:
            ours = self._cuda or storage.device.type == "meta" or storage.resizable()
            size = storage.nbytes()
            self._begin(storage, self.allocate(size, "data") if ours else NOT_COUNTED, size)

    def mark(self, tensor: Tensor, category: Category) -> None:
        """Say what a tensor's memory is for."""
        self.met(tensor)
        key = self._live[tensor.untyped_storage()._cdata][0]
        if key != NOT_COUNTED:
            self.categories[key] = category

    def mark_live(self, category: Category) -> None:
        """Say what everything is for that is alive now."""
        self.categories.update((key, category) for key, _, _ in self._live.values() if key != NOT_COUNTED)

    def ignore(self, tensor: Tensor) -> None:
        """Never count this tensor's storage: it stands for another that is counted already, or is not torch's."""
        storage = tensor.untyped_storage()
        self._begin(storage, NOT_COUNTED, storage.nbytes())

    def _begin(self, storage: Any, key: int, size: int) -> None:
        address = storage._cdata

        def end(_: object, live: Any = self._live, events: list[Event] = self.events) -> None:
            last = live.pop(address)[0]
            if last != NOT_COUNTED:
                events.append((last, RELEASE))

        self._live[address] = (key, size, weakref.ref(storage, end))

    def close(self) -> None:
        """Stop listening: what is still alive stays allocated."""
        self._live.clear()


class TraceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on real integers and fake floats, and records what they allocate.

    Args:
        recorder: where to.
        device_kind: the device that the step is meant for.
        cublas_workspace_bytes: taken at the first matrix product of each thread, and kept: the backward pass runs in
            a thread of its own on a GPU, and cuBLAS has a handle and a workspace for each.
    """

    def __init__(self, recorder: Recorder, device_kind: DeviceKind, cublas_workspace_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.failures: list[tuple[Exception, Any]] = []  # what operators raised, innermost first, and which
        self.inside = False  # an operator is being run
        self._device_kind = device_kind
        self._cublas_workspace_bytes = cublas_workspace_bytes
        self._cublas_handles: set[bool] = set()  # whether of the backward pass
        # A kernel without a fake one would be run for real, on real zeros of full size.
        self._fake = FakeTensorMode(allow_fallback_kernels=False)
        self._bases: dict[tuple[int, torch.dtype], tuple[Tensor, Any]] = {}
        self._fresh_zeros = 0
        self._known: dict[Any, _Operator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        with torch._C.DisableTorchFunction():
            was_inside, self.inside = self.inside, True
            try:
                return self._run(func, types, args, kwargs or {})
            except Exception as error:
                self.failures.append((error, func))
                raise
            finally:
                self.inside = was_inside

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.prim.device.default:  # C++ asks a fake tensor where it is
            return args[0].fake_device
        operator = self._known.get(func)
        if operator is None:
            operator = self._known[func] = _Operator(func, self._device_kind)
        if operator.composite:  # arrives whole in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        inputs = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))] if kwargs else [*tensors_in(args)]
        for tensor in inputs:
            self.recorder.met(tensor)
        if self._is_integer_work(func, types, args, kwargs, inputs):
            out = self._to_fakes(func(*args, **kwargs))
        else:
            out = self._run_fake(func, types, args, kwargs)
        self._record(operator, args, out)
        return out

    def _is_integer_work(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Sequence[Tensor]
    ) -> bool:
        """Whether everything is real and not a float: then it can be computed, and costs little."""
        if inputs:
            return not any(isinstance(tensor, FakeTensor) or _is_float(tensor.dtype) for tensor in inputs)
        dtype = kwargs.get("dtype")
        if dtype is None:  # it follows from the arguments, which the fake kernel knows
            dtype = next(
                (out.dtype for out in tensors_in(self._fake.dispatch(func, types, args, kwargs))), torch.long
            )
        return not _is_float(dtype)

    def _run_fake(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is aten._local_scalar_dense.default:
            return self._scalar(args[0])
        if func in corrections.SKIPPED:
            return None
        if func in corrections.UNKNOWN:
            raise NotImplementedError("its kernel keeps a workspace of unknown size")
        # In backward, but not in a forward that backward runs once more (gradient checkpointing): that one has
        # gradients enabled. So has a backward of a backward, which is therefore followed without these corrections.
        if torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled():
            func = corrections.in_place(func, args, self._fresh_zeros)
        if func in corrections.INDEXED:
            args = args[0], _positions(args[1]), *args[2:]
        twins: dict[int, Tensor] = {}
        out = self._fake.dispatch(func, types, self._twin(args, twins), self._twin(kwargs, twins) if kwargs else {})
        # An operator in place returns its own argument, not the argument's twin.
        return twins.get(id(out), out) if twins else out

    def _scalar(self, tensor: Tensor) -> float | int | bool:
        """What ``item()`` returns: 1 or 1.0 for a value that is not known, False for an unknown truth (isnan)."""
        if not isinstance(tensor, FakeTensor):
            return tensor.item()
        return False if tensor.dtype == torch.bool else 1.0 if _is_float(tensor.dtype) else 1

    def _twin(self, value: Any, twins: dict[int, Tensor]) -> Any:
        """The arguments with every real tensor replaced by a fake one; ``twins`` maps back."""
        if isinstance(value, Tensor):
            if isinstance(value, FakeTensor):
                return value
            if value.dim() == 0 and value.dtype == torch.double:
                return value.item()  # a Python number that C++ has wrapped: it must not decide the result's type
            twin = self._float_twin(value) if _is_float(value.dtype) else self._integer_twin(value)
            twins[id(twin)] = value
            return twin
        if isinstance(value, (list, tuple)):
            return type(value)(self._twin(part, twins) for part in value)
        if isinstance(value, dict):
            return {key: self._twin(part, twins) for key, part in value.items()}
        return value

    def _integer_twin(self, tensor: Tensor) -> Tensor:
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self._fake, meta, tensor.device)

    def _float_twin(self, tensor: Tensor) -> Tensor:
        """A fake view of the twin of the tensor's storage, so that what shares memory goes on sharing it."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        if key not in self._bases:
            size = storage.nbytes() // tensor.element_size()
            base = torch.empty(size, dtype=tensor.dtype, device="meta")
            self._bases[key] = base, weakref.ref(storage, lambda _: self._bases.pop(key, None))
            self.recorder.ignore(base)  # the real storage is what counts
        meta = self._bases[key][0].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return FakeTensor(self._fake, meta, tensor.device)

    def _to_fakes(self, out: Any) -> Any:
        """Results of integer work: floats among them become fake, and their values are dropped."""
        if isinstance(out, Tensor):
            return self._integer_twin(out) if _is_float(out.dtype) else out
        if isinstance(out, (list, tuple)):
            return type(out)(self._to_fakes(part) for part in out)
        return out

    def _record(self, operator: _Operator, args: tuple[Any, ...], out: Any) -> None:
        recorder = self.recorder
        if self._cublas_workspace_bytes and operator.is_gemm and not recorder.paused:
            backward = torch._C._current_graph_task_id() >= 0
            if backward not in self._cublas_handles:
                self._cublas_handles.add(backward)
                recorder.allocate(self._cublas_workspace_bytes, "workspace")
        if isinstance(out, Tensor):
            if operator.is_loss and out.dim() == 0 and not recorder.paused:
                recorder.made(out, args[0].numel() * args[0].element_size())
            recorder.made(out)
            self._fresh_zeros = out.untyped_storage()._cdata if operator.is_zeros else 0
        else:
            self._fresh_zeros = 0
            for tensor in tensors_in(out):
                recorder.made(tensor)
        if operator.temporaries is not None and not recorder.paused:
            recorder.temporary(operator.temporaries(args, out))


class _Operator:
    """What has to be known of an operator each time that it runs, looked up once."""

    __slots__ = ("composite", "is_gemm", "is_loss", "is_zeros", "temporaries")

    def __init__(self, func: Any, device_kind: DeviceKind) -> None:
        # An operator may have both a composite kernel and one of the CPU's own, such as silu_backward.
        own = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
        self.composite = func._can_decompose() and not own
        self.is_gemm = func in corrections.GEMMS
        self.is_loss = func in corrections.BUFFERED_LOSSES
        self.is_zeros = func in corrections.ZEROS
        self.temporaries = corrections.temporaries(func, device_kind)


def _positions(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The indices, but every mask, which is real, as the positions that it selects: they decide the shape."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or isinstance(index, FakeTensor):
            found.append(index)
        else:
            found += index.nonzero().unbind(1)
    return found


class FunctionMode(TorchFunctionMode):
    """What has to be changed before it is an operator.

    Values that leave torch are ones. For a GPU, tensors say that they are on one, although they are the CPU's, and
    may be put there. ``dropout`` is one kernel there with a mask of booleans, where the CPU multiplies with noise of
    the input's type; and attention with dropout is one kernel too, which draws its mask again in backward, where the
    CPU computes all scores. Autocast computes a softmax in float32 there, on the CPU in what it is given.
    """

    def __init__(self, device_kind: DeviceKind) -> None:
        super().__init__()
        replaced: dict[Any, Callable[..., Any]] = {
            Tensor.numpy: _numpy,
            Tensor.__array__: _array,
            Tensor.tolist: _list,
            Tensor.__deepcopy__: _deepcopy,
        }
        if device_kind == "cuda":
            replaced |= {
                _plain_dropout: _dropout,
                _plain_attention: _attention,
                **{softmax: partial(_in_float32, softmax) for softmax in _SOFTMAXES},
                Tensor.device.__get__: lambda tensor: CUDA,
                Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
                Tensor.cuda: lambda tensor, *args, **kwargs: tensor,
            }
        self._replaced = replaced
        self._cuda = device_kind == "cuda"

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or what stands in for it."""
        kwargs = kwargs or {}
        if self._cuda:
            args = tuple(_on_cpu(value) for value in args)
            kwargs = {key: _on_cpu(value) for key, value in kwargs.items()}
        return self._replaced.get(func, func)(*args, **kwargs)


# Of ATen's list AT_FORALL_FP32_SET_OPT_DTYPE for CUDA (autocast_mode.h).
_SOFTMAXES: tuple[Callable[..., Tensor], ...] = (
    *(F.softmax, torch.softmax, Tensor.softmax),
    *(F.log_softmax, torch.log_softmax, Tensor.log_softmax),
)
_plain_dropout, _plain_attention = F.dropout, F.scaled_dot_product_attention


def _on_cpu(value: Any) -> Any:
    """An argument, with the CPU in place of a GPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(tensor, FakeTensor):
        return tensor.numpy(**kwargs)
    return np.ones(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def _array(tensor: Tensor, dtype: Any = None) -> Any:
    return _numpy(tensor.detach()).astype(dtype)


def _deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """As torch's own, which would copy a fake tensor's mode as well."""
    if not isinstance(tensor, FakeTensor):
        return cast("Tensor", Tensor.__deepcopy__(tensor, memo))  # type: ignore[no-untyped-call]
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if parameter else copy
    return cast("Tensor", memo[id(tensor)])


def _list(tensor: Tensor) -> Any:
    return np.ones(tuple(tensor.shape)).tolist() if isinstance(tensor, FakeTensor) else tensor.tolist()


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if inplace or not training or not 0 < p < 1:
        return _plain_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, training)[0]


def _in_float32(softmax: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    narrow = input.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled("cpu")
    return softmax(input.float() if narrow else input, *args, **kwargs)


_plain_init_autocast = torch.autocast.__init__


def _init_autocast(
    self: torch.autocast,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> None:
    """Of the CPU, where the tensors really are; autocast for a GPU would leave them as they are."""
    dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
    _plain_init_autocast(self, "cpu", dtype, enabled, cache_enabled)


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    kwargs.update(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
    return _plain_attention(**{**kwargs, "dropout_p": 0.0})


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    """The autograd engine, under a function mode again: gradient checkpointing runs a forward in there."""
    with FunctionMode("cuda"):
        return _plain_run_backward(*args, **kwargs)


def _nothing(tensor: Tensor) -> None:
    """What ``torch.utils.checkpoint`` compares of a tensor that it computes again."""


_plain_run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]


def _apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """As ``nn.Module._apply``, behind ``to()``, ``half()`` and the like, which fails on fake tensors.

    A parameter that several modules share stays shared.
    """
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = _moved(parameter, fn)
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else fn(buffer)
    return module


# By the parameter that a module had before: what moved it, and what it has become.
_MOVED: MutableMapping[Tensor, tuple[Callable[[Tensor], Tensor], nn.Parameter]] = WeakIdKeyDictionary()


def _moved(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor]) -> nn.Parameter:
    mover, known = _MOVED.get(parameter, (None, parameter))
    if mover is fn:
        return known
    value = fn(parameter)
    if value is parameter:
        return parameter
    moved = nn.Parameter(value, parameter.requires_grad)
    _MOVED[parameter] = fn, moved
    return moved


@contextmanager
def patched(mode: TraceMode, device_kind: DeviceKind) -> Iterator[None]:
    """Replace what a function mode cannot reach: methods, and functions that others of torch's call by name."""
    where: Any = FakeTensor.device

    def device(tensor: FakeTensor) -> Any:
        return where.fget(tensor) if mode.inside else CUDA

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        if device_kind == "cuda":
            stack.enter_context(mock.patch.object(FakeTensor, "device", property(device)))
            stack.enter_context(mock.patch.object(torch.autocast, "__init__", _init_autocast))
            stack.enter_context(mock.patch.object(F, "dropout", _dropout))
            stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", _run_backward))
            # It compares devices, and integers are the CPU's at one time and a GPU's at another.
            stack.enter_context(mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, default=_nothing))
            stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", _attention))
        yield


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


@contextmanager
def paused(recorder: Recorder, when: bool) -> Iterator[None]:
    """Record nothing for a while: the work of a host beside its GPU."""
    recorder.paused = when
    try:
        yield
    finally:
        recorder.paused = False


def mark_all(recorder: Recorder, tensors: Iterable[Any], category: Category) -> None:
    """Mark the tensors among some values."""
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            recorder.mark(tensor, category)
