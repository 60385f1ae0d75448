"""Restores autograd's in-place operators. Under a dispatch mode it calls the ones that allocate instead."""

import functools
import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tuner.estimation.tracing.corrections.temporaries import Operator, aten

# Backward formulas scatter into new zeros in place. Under a dispatch mode they call the out-of-place operator, "for
# composite compliance" (isTensorSubclassLike in FunctionsManual.cpp), which allocates a second buffer.
SCATTERS: Mapping[Operator, Operator] = {
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
    aten._index_put_impl.default: aten._index_put_impl_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}
# For the same reason, this formula computes out of place on its own temporaries.
ARITHMETIC: Mapping[Operator, Operator] = {
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Scalar: aten.div_.Scalar,
    aten.div.Tensor: aten.div_.Tensor,
}
# Files whose functions are called between the engine and a dispatch mode.
BETWEEN = ("corrections/in_place.py", "tracing/dispatch_mode.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")
ARITHMETIC_NODE = "BinaryCrossEntropyWithLogitsBackward0"


def in_place(operator: Operator, args: Sequence[object], fresh_zeros: int) -> Operator:
    """The operator that a backward formula of torch would call without a dispatch mode.

    ``fresh_zeros`` is the address of the storage that the previous operator filled with zeros, or 0.
    """
    first = args[0] if args else None
    node = torch._C._current_autograd_node()
    if not isinstance(first, Tensor) or (isinstance(node, torch.autograd.function.FunctionCtx) and _in_own_formula()):
        return operator  # a user's own formula stays as it is
    if operator in SCATTERS and first.untyped_storage()._cdata == fresh_zeros:
        return SCATTERS[operator]
    in_formula = operator in ARITHMETIC and node is not None and node.name() == ARITHMETIC_NODE
    if in_formula and _is_temporary(first, args[1], chained=True):
        return ARITHMETIC[operator]
    return aten.add_.Tensor if operator is aten.add.Tensor and _is_temporary(first, args[1]) else operator


def _in_own_formula() -> bool:
    """Whether Python code of a backward formula is running, and not the engine after it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.endswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code is not torch.autograd.graph._engine_run_backward.__code__


def _is_temporary(first: Tensor, second: object, *, chained: bool = False) -> bool:
    """Whether only the engine or the running formula holds the first argument, so that it may be overwritten.

    To sum gradients of one tensor, the engine adds into the first one if nobody else holds it
    (``can_accumulate_inplace`` in input_buffer.cpp), but never under a dispatch mode. With ``chained``, the formula
    is one expression, which holds its temporaries until its end.
    """
    if not fits(first, second) or torch.is_grad_enabled():
        return False
    (tensor, storage), (sole_tensor, sole_storage) = _owners(first), sole_owners()
    return storage == sole_storage and (chained or tensor == sole_tensor)


def fits(first: object, second: object) -> bool:
    """Whether the result of an operator on both has the shape of the first."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return True
    shape, wide = second.shape, first.shape
    return len(shape) <= len(wide) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(wide), strict=False))


def _owners(tensor: Tensor) -> tuple[int, int]:
    """C++'s reference counts of the tensor and of its storage."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]


@functools.cache
def sole_owners() -> tuple[int, int]:
    """``_owners`` of a gradient that only the autograd engine holds, seen from a dispatch mode.

    They are measured, as they include references of Python's that differ between versions of torch.
    """
    seen: list[tuple[int, int]] = []

    class Observe(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self,
            operator: Operator,
            types: Sequence[type],
            args: tuple[object, ...] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            if operator is aten.add.Tensor and isinstance(args[0], Tensor):
                seen.append(_owners(args[0]))
            return operator(*args, **(kwargs or {}))

    with torch.inference_mode(False), torch.enable_grad(), Observe():  # type: ignore[no-untyped-call]
        x = torch.ones(2, requires_grad=True) * 2
        torch.autograd.backward([x.exp(), x.sin()], [torch.ones(2), torch.ones(2)])
    return seen[0]
