"""The dispatch mode that a traced step runs under: integers are real, floats are fake, every storage is recorded.

Index work (sorting, masks, positions, shapes that follow from data) needs values, and takes little: tensors of
integers and booleans stay real for as long as they come from real ones. Everything with a float in it is a
``FakeTensor``: a shape and a storage of a size, without bytes and without computing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tuner.estimation.tracing.corrections.in_place import in_place
from tuner.estimation.tracing.corrections.table import (
    BUFFERED_LOSSES,
    GEMMS,
    INDEXED,
    SKIPPED,
    UNKNOWN,
    ZEROS,
    is_composite,
    temporaries,
)
from tuner.estimation.tracing.corrections.temporaries import aten, bytes_of
from tuner.estimation.tracing.storage_tracker import StorageTracker

if TYPE_CHECKING:
    from tuner.estimation.tracing.corrections.temporaries import Operator
    from tuner.estimation.tracing.trace import DeviceKind


class TraceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on real integers and fake floats, and records what they allocate.

    Args:
        tracker: where to.
        device_kind: the device that the step is meant for.
        cublas_workspace_bytes: taken at the first matrix product of each thread, and kept: the backward pass runs in
            a thread of its own on a GPU, and cuBLAS has a handle and a workspace for each.
    """

    def __init__(self, tracker: StorageTracker, device_kind: DeviceKind, cublas_workspace_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = tracker
        self.failures: list[tuple[Exception, Operator]] = []  # what operators raised, innermost first, and which
        self.inside = False  # an operator is being run
        self._device_kind = device_kind
        self._cublas_workspace_bytes = cublas_workspace_bytes
        self._cublas_handles: set[bool] = set()  # whether of the backward pass
        # A kernel without a fake one would be run for real, on real zeros of full size.
        self._fake = FakeTensorMode(allow_fallback_kernels=False)
        self._bases: dict[tuple[int, torch.dtype], tuple[Tensor, weakref.ref[torch.UntypedStorage]]] = {}
        self._fresh_zeros = 0

    def __torch_dispatch__(
        self,
        operator: Operator,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run one operator."""
        with torch._C.DisableTorchFunction():
            was_inside, self.inside = self.inside, True
            try:
                return self._run(operator, types, args, kwargs or {})
            except Exception as error:
                self.failures.append((error, operator))
                raise
            finally:
                self.inside = was_inside

    def _run(
        self, operator: Operator, types: Sequence[type], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        if operator is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # C++ asks a fake tensor where it is
        if is_composite(operator):  # arrives whole in inference mode
            with self:
                return operator.decompose(*args, **kwargs)
        inputs = [*_tensors_in(args), *_tensors_in(tuple(kwargs.values()))]
        for tensor in inputs:
            self.tracker.met(tensor)
        if self._is_integer_work(operator, types, args, kwargs, inputs):
            out = self._to_fakes(operator(*args, **kwargs))
        else:
            out = self._run_fake(operator, types, args, kwargs)
        self._record(operator, args, out)
        return out

    def _is_integer_work(
        self,
        operator: Operator,
        types: Sequence[type],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        inputs: Sequence[Tensor],
    ) -> bool:
        """Whether everything is real and not a float: then it can be computed, and costs little."""
        if inputs:
            return not any(isinstance(tensor, FakeTensor) or _is_float(tensor.dtype) for tensor in inputs)
        dtype = kwargs.get("dtype")
        if not isinstance(dtype, torch.dtype):  # it follows from the arguments, which the fake kernel knows
            made = _tensors_in(self._fake.dispatch(operator, types, args, kwargs))
            dtype = next((out.dtype for out in made), torch.long)
        return not _is_float(dtype)

    def _run_fake(
        self, operator: Operator, types: Sequence[type], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        if operator is aten._local_scalar_dense.default:
            return _scalar(args[0])
        if operator in SKIPPED:
            return None
        if operator in UNKNOWN:
            raise NotImplementedError("its kernel keeps a workspace of unknown size")
        # In backward, but not in a forward that backward runs once more (gradient checkpointing): that one has
        # gradients enabled. So has a backward of a backward, which is therefore followed without these corrections.
        if torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled():
            operator = in_place(operator, args, self._fresh_zeros)
        if operator in INDEXED:
            args = args[0], _positions(args[1]), *args[2:]
        twins: dict[int, Tensor] = {}
        fakes = tuple(self._twin(each, twins) for each in args)
        out = self._fake.dispatch(operator, types, fakes, {k: self._twin(each, twins) for k, each in kwargs.items()})
        # An operator in place returns its own argument, not the argument's twin.
        return twins.get(id(out), out) if twins else out

    def _twin(self, value: object, twins: dict[int, Tensor]) -> object:
        """An argument with every real tensor replaced by a fake one; ``twins`` maps back."""
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
            self.tracker.ignore(base)  # the real storage is what counts
        meta = self._bases[key][0].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return FakeTensor(self._fake, meta, tensor.device)

    def _to_fakes(self, out: object) -> object:
        """Results of integer work: floats among them become fake, and their values are dropped."""
        if isinstance(out, Tensor):
            return self._integer_twin(out) if _is_float(out.dtype) else out
        if isinstance(out, (list, tuple)):
            return type(out)(self._to_fakes(part) for part in out)
        return out

    def _record(self, operator: Operator, args: tuple[object, ...], out: object) -> None:
        tracker = self.tracker
        if self._cublas_workspace_bytes and operator in GEMMS and not tracker.is_paused:
            backward = torch._C._current_graph_task_id() >= 0
            if backward not in self._cublas_handles:
                self._cublas_handles.add(backward)
                tracker.allocate(self._cublas_workspace_bytes, "workspace")
        self._fresh_zeros = 0
        if isinstance(out, Tensor):
            if operator in BUFFERED_LOSSES and out.dim() == 0 and isinstance(args[0], Tensor):
                tracker.made(out, bytes_of(args[0]))
            if operator in ZEROS:
                self._fresh_zeros = out.untyped_storage()._cdata
        for tensor in _tensors_in(out):
            tracker.made(tensor)
        rule = temporaries(operator, self._device_kind)
        if rule is not None and not tracker.is_paused:
            tracker.temporary(rule(out, *args))


def _scalar(value: object) -> float | int | bool:
    """What ``item()`` returns: 1 or 1.0 for a value that is not known, False for an unknown truth (isnan)."""
    assert isinstance(value, Tensor)
    if not isinstance(value, FakeTensor):
        return value.item()
    return False if value.dtype == torch.bool else 1.0 if _is_float(value.dtype) else 1


def _positions(indices: object) -> list[Tensor | None]:
    """The indices, but every mask, which is real, as the positions that it selects: they decide the shape."""
    assert isinstance(indices, (list, tuple))
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or isinstance(index, FakeTensor):
            found.append(index)
        else:
            found += index.nonzero().unbind(1)
    return found


def _tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, which are nested in lists and tuples at most."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
