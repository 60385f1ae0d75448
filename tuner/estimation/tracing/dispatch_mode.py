"""The dispatch mode of a traced step: integers are real, floats are fake, and every storage is recorded.

Sorting, masks, positions and data-dependent shapes need values and little memory, so integers and booleans stay real
if they come from real ones. Every float tensor is a ``FakeTensor``, which has a shape and a size, but no values.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections.cuda import RETURNED
from tuner.estimation.tracing.corrections.in_place import fits, in_place
from tuner.estimation.tracing.corrections.sparse import PRODUCTS, SparseGradient, is_sparse, parts, product
from tuner.estimation.tracing.corrections.table import (
    BUFFERED_LOSSES,
    BY_KEYWORD,
    CONVOLUTIONS,
    GEMMS,
    HOST_RESULTS,
    INDEXED,
    ORDER,
    SCALARS,
    SKIPPED,
    UNKNOWN,
    ZEROS,
    is_composite,
    temporaries,
)
from tuner.estimation.tracing.corrections.temporaries import TORCH, Operator, aten, bytes_of
from tuner.estimation.tracing.corrections.unfaked import SELECTED, UNFAKED
from tuner.estimation.tracing.sparse_gradients import MAKE, follow
from tuner.estimation.tracing.storage_tracker import StorageTracker
from tuner.estimation.tracing.trace import DeviceKind
from tuner.trial import MB


class TraceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on real integers and fake floats, and records their allocations.

    ``card`` is the GPU; without it, its workspaces and the staging memory of its reductions do not count.
    """

    def __init__(self, tracker: StorageTracker, device_kind: DeviceKind, card: CardProperties | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = tracker
        self.failures: list[tuple[Exception, Operator]] = []  # operators' errors, innermost first
        self.inside = False  # an operator is running
        self.device_kind = device_kind
        self._workspaces = Workspaces(tracker, card) if card else None
        self.card = card
        # With fallbacks, a kernel without a fake version would run on real zeros of full size.
        self._fake = FakeTensorMode(allow_fallback_kernels=False)
        self._bases: dict[tuple[int, torch.dtype], tuple[Tensor, weakref.ref[torch.UntypedStorage]]] = {}
        self._fresh_zeros = 0
        self._numbers: MutableMapping[Tensor, bool] = WeakIdKeyDictionary()
        self._check = 0  # the storage of the last answer whether all elements are so, as finite: they are
        self.adds_in_place = False  # ``F.linear`` or attention is running

    def __torch_dispatch__(
        self,
        operator: Operator,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Runs one operator."""
        with torch._C.DisableTorchFunction():
            was_inside, self.inside = self.inside, True
            self.tracker.running.append(operator)
            try:
                return self._run(operator, types, args, kwargs or {})
            except Exception as error:
                self.failures.append((error, operator))
                raise
            finally:
                self.inside = was_inside
                self.tracker.running.pop()

    def _run(
        self, operator: Operator, types: Sequence[type], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        if operator is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # C++ asks for a fake tensor's device
        if operator is aten._pack_padded_sequence.default:  # its lengths decide the shape
            with self:
                packed: Any = operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            self.tracker.ignore(packed[1])  # the host's
            return packed
        if operator is aten._embedding_bag_backward.default and args[9]:  # with ``sparse=True``, a few operators
            given: Any = args
            bags = given[3] if given[3].numel() else torch.empty_like(given[1])  # the CPU finds them now
            given = (*given[:3], bags, given[4], *given[6:9], *given[10:])
            with self:
                return aten._embedding_bag_sparse_backward.default(*given)
        if is_composite(operator):  # inference mode does not decompose it
            with self:
                return operator.decompose(*args, **kwargs)
        inputs = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        if any(map(is_sparse, inputs)) or operator is MAKE:
            return self._run_sparse(operator, args, kwargs, inputs)
        lifted = self.tracker.rest_on_host and operator is aten.lift_fresh.default  # by ``torch.tensor``
        for tensor in () if lifted else inputs:
            self.tracker.met(tensor)
        if self._is_integer_work(operator, types, args, kwargs, inputs):
            out = self._to_fakes(operator(*args, **kwargs))
        else:
            out = self._run_fake(operator, types, args, kwargs)
        if operator in BY_KEYWORD and BY_KEYWORD[operator] in kwargs:
            args = *args, kwargs[BY_KEYWORD[operator]]
        self._record(operator, args, out, inputs)
        return out

    def _run_sparse(
        self, operator: Operator, args: tuple[object, ...], kwargs: Mapping[str, object], inputs: Sequence[Tensor]
    ) -> object:
        """Work on a sparse gradient, a product of a sparse matrix and a fake one, or work on real tensors.

        The last takes little memory.
        """
        for part in (part for tensor in inputs for part in parts(tensor)):
            self.tracker.met(part)
        name = operator.overloadpacket.__name__
        if name.startswith("_foreach_"):
            single, each = getattr(aten, name.removeprefix("_foreach_")), zip(*map(_repeated, args), strict=False)
            with self:
                done = [single(*one, **kwargs) for one in each]
            return done if operator._schema.returns else None
        makes = operator is MAKE and isinstance(args[4], FakeTensor)
        if makes or any(isinstance(tensor, SparseGradient) for tensor in inputs):
            return follow(operator, args, kwargs, self._empty, self.tracker)
        if not any(isinstance(tensor, FakeTensor) for tensor in inputs):
            out = operator(*args, **kwargs)
            self.tracker.run_kernel((), lambda: self.tracker.made_all(tensors_in(out)))
            return out
        matrix, dense = (args[place] for place in PRODUCTS.get(operator, (0, 0)))
        if operator not in PRODUCTS or not isinstance(dense, FakeTensor) or not isinstance(matrix, Tensor):
            raise NotImplementedError("it has no rule for sparse tensors")
        self.tracker.has_guess = True
        result = self._empty((matrix.shape[0], dense.shape[1]), dense.dtype)
        self.tracker.run_kernel(product(operator, result, matrix, dense), lambda: self.tracker.made_all([result]))
        return result

    def _is_integer_work(
        self,
        operator: Operator,
        types: Sequence[type],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        inputs: Sequence[Tensor],
    ) -> bool:
        """Whether no argument is fake or a float. Then the operator is computed, which takes little memory.

        A single number that the step makes is real, too, such as what ``NAdam`` counts.
        """
        if operator is aten.lift_fresh.default and inputs[0].dim() == 0:  # ``torch.tensor(1.0)``
            return not isinstance(inputs[0], FakeTensor)
        if inputs:
            return all(self._is_real(tensor) for tensor in inputs)
        dtype = kwargs.get("dtype")
        if not isinstance(dtype, torch.dtype):  # the fake kernel infers it from the arguments
            made = tensors_in(self._fake.dispatch(operator, types, args, kwargs))
            dtype = next((out.dtype for out in made), torch.long)
        return not _is_float(dtype) or (operator in SCALARS and not (args and args[0]))

    def _is_real(self, tensor: Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return False
        return not _is_float(tensor.dtype) or _is_number(tensor) or tensor in self._numbers

    def _run_fake(
        self, operator: Operator, types: Sequence[type], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        if operator in (aten._local_scalar_dense.default, aten.equal.default):
            assert isinstance(args[0], Tensor)
            is_check = args[0].untyped_storage()._cdata == self._check
            return is_check or (operator is not aten.equal.default and _scalar(args[0]))
        if operator in SKIPPED:
            return None
        if operator in SELECTED:  # its values decide a size, which is at most its input's
            self.tracker.has_guess = True
            return SELECTED[operator](self._empty, *args)
        if operator in UNKNOWN:
            raise NotImplementedError("its kernel keeps a workspace of unknown size")
        # Only in a backward pass. Gradients are enabled in a forward pass that gradient checkpointing repeats, and in
        # a second-order backward pass, which is therefore not corrected.
        if torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled():
            operator = in_place(operator, args, self._fresh_zeros)
        # In place, but for tensors of a subclass.
        if self.adds_in_place and operator is aten.add.Tensor and fits(*args):
            return aten.alias.default(self._run_fake(aten.add_.Tensor, types, args, kwargs))
        if operator in INDEXED:
            args = args[0], self._positions(args[1]), *args[2:]
        if (
            self.device_kind == "cuda" and "dtype" in kwargs and _in_backward_of_renorm()
        ):  # in double on the CPU alone
            kwargs = {**kwargs, "dtype": args[0].dtype}  # type: ignore[attr-defined]
            if operator is aten._to_copy.default:
                return self._fake.dispatch(aten.alias.default, types, args[:1], {})
        twins: dict[int, Tensor] = {}
        writes = operator._schema.is_mutable
        fakes = tuple(self._twin(value, twins, written=writes and not place) for place, value in enumerate(args))
        if self.device_kind == "cuda" and operator in UNFAKED:
            return UNFAKED[operator](self._empty, *args)
        out = self._fake.dispatch(
            operator, types, fakes, {k: self._twin(value, twins) for k, value in kwargs.items()}
        )
        if operator is aten.all.default and isinstance(out, Tensor):
            self._check = out.untyped_storage()._cdata
        if self.device_kind == "cuda" and operator in RETURNED:
            out = RETURNED[operator](self._empty, out, *args)
        # An in-place operator returns its own argument, not the argument's twin.
        return twins.get(id(out), out) if twins else out

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return FakeTensor(self._fake, torch.empty(shape, dtype=dtype, device="meta"), torch.device("cpu"))

    def _positions(self, indices: object) -> list[Tensor | None]:
        """The indices, with every mask replaced by the positions that it selects, which decide the shape.

        A mask without values selects all.
        """
        assert isinstance(indices, (list, tuple))
        positions: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool:
                positions.append(index)
            elif isinstance(index, FakeTensor):
                self.tracker.has_guess = True
                positions += [self._empty((index.numel(),), torch.long) for _ in index.shape]
            else:
                positions += index.nonzero().unbind(1)
        return positions

    def _twin(self, value: object, twins: dict[int, Tensor], *, written: bool = False) -> object:
        """An argument with every real tensor replaced by a fake one; ``twins`` maps them back.

        ``written`` says that the operator writes to it, so that a single number stays a tensor.
        """
        if isinstance(value, Tensor):
            if isinstance(value, FakeTensor):
                return value
            if _is_number(value) and not written:
                return value.item()  # it must not promote the result's type
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
        """A fake view of the twin of the tensor's storage, so that views of one storage still share it."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        if key not in self._bases:
            size = storage.nbytes() // tensor.element_size()
            base = torch.empty(size, dtype=tensor.dtype, device="meta")
            self._bases[key] = base, weakref.ref(storage, lambda _: self._bases.pop(key, None))
            self.tracker.ignore(base)  # the real storage counts
        meta = self._bases[key][0].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return FakeTensor(self._fake, meta, tensor.device)

    def _to_fakes(self, out: object) -> object:
        """The results of integer work, with floats replaced by fake ones."""
        if isinstance(out, Tensor):
            if _is_float(out.dtype) and out.dim() == 0:
                self._numbers[out] = True
                return out
            return self._integer_twin(out) if _is_float(out.dtype) else out
        if isinstance(out, (list, tuple)):
            return type(out)(self._to_fakes(part) for part in out)
        return out

    def _record(self, operator: Operator, args: tuple[object, ...], out: object, inputs: Sequence[Tensor]) -> None:
        tracker = self.tracker
        self._fresh_zeros = 0
        if isinstance(out, Tensor) and operator in ZEROS:
            self._fresh_zeros = out.untyped_storage()._cdata
        if tracker.is_paused:
            return
        if tracker.on_gpu and inputs and all(map(tracker.is_ignored, inputs)):  # the host's work
            tracker.ignore(*tensors_in(out))
            return
        rule = temporaries(operator, self.device_kind, self.card)
        steps = () if rule is None else rule(out, *args)
        steps = (steps,) if isinstance(steps, int) else steps
        tracker.run_kernel(
            steps, partial(self._take_results, operator, args, out), partial(self._take_workspace, operator, args)
        )

    def _take_results(self, operator: Operator, args: tuple[object, ...], out: object) -> None:
        tracker = self.tracker
        if operator in BUFFERED_LOSSES and isinstance(out, Tensor) and out.dim() == 0 and isinstance(args[0], Tensor):
            tracker.made(out, bytes_of(args[0]))
        if self.device_kind == "cuda" and operator is aten.col2im.default:  # first as large as its input (Col2Im.cu)
            assert isinstance(out, Tensor) and isinstance(args[0], Tensor)
            tracker.made(out, bytes_of(args[0]))
        if self.device_kind == "cuda" and isinstance(out, (list, tuple)):
            tracker.ignore(*(out[place] for place in HOST_RESULTS.get(operator, ())))
            out = [out[place] for place in ORDER.get(operator, range(len(out)))]
        tracker.made_all(tensors_in(out))

    def _take_workspace(self, operator: Operator, args: tuple[object, ...]) -> None:
        by_cudnn = operator in CONVOLUTIONS and torch.backends.cudnn.enabled
        if self.device_kind == "cuda" and by_cudnn:
            self.tracker.has_guess = True
        if self._workspaces and not by_cudnn and (operator in GEMMS or operator in CONVOLUTIONS):
            bias = args[0] if operator is aten.addmm.default else None
            self._workspaces.take(fused_bias=isinstance(bias, Tensor) and bias.dim() == 1)


def _scalar(value: object) -> float | int | bool:
    """The result of ``item()``. Unknown numbers are 1, and unknown booleans (isnan) are False."""
    assert isinstance(value, Tensor)
    if not isinstance(value, FakeTensor):
        return value.item()
    return False if value.dtype == torch.bool else 1.0 if _is_float(value.dtype) else 1


def _repeated(value: object) -> Iterable[Any]:
    """An argument for each tensor of a list."""
    return value if isinstance(value, (list, tuple)) else repeat(value)


def _in_backward_of_renorm() -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "RenormBackward0"


def _is_number(tensor: Tensor) -> bool:
    """Whether it is a Python number that C++ wrapped."""
    return tensor.dim() == 0 and tensor.dtype == torch.double


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


LT_WORKSPACE_BYTES = 1 * MB  # parseCUDABlasLtWorkspaceSize in CublasHandlePool.cpp


class Workspaces:
    """Takes the workspaces of cuBLAS and cuBLASLt at each thread's first product that uses them on a stream.

    Every thread has its own cuBLAS handle, and on a GPU the backward pass has its own thread. A product with a bias
    (``addmm`` with a vector) is cuBLASLt's, whose workspace depends on torch: since 2.12 it is the handle's own, from
    2.9 another one that is kept (``getCUDABlasLtWorkspace``), and before that one for each product.
    """

    def __init__(self, tracker: StorageTracker, card: CardProperties) -> None:
        self._tracker = tracker
        self._bytes = card.cublas_workspace_bytes

    def take(self, *, fused_bias: bool) -> None:
        """Records what the running thread's next product takes."""
        backward = torch._C._current_graph_task_id() >= 0
        self._take_once("cuBLAS", backward, self._bytes)
        if not fused_bias or TORCH >= (2, 12):
            return
        if TORCH < (2, 9):
            self._tracker.run_kernel([LT_WORKSPACE_BYTES], lambda: None)
        else:
            self._take_once("cuBLASLt", backward, LT_WORKSPACE_BYTES)

    def _take_once(self, library: str, backward: bool, size_bytes: int) -> None:
        taken, key = self._tracker.workspaces, (library, backward, self._tracker.pools)
        if key not in taken:
            taken[key] = self._tracker.allocate(size_bytes, "workspace")
