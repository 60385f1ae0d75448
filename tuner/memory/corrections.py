"""Where a step on fake tensors would take other memory than the same step on a device, and what makes up for it.

Each rule stands beside the reason for it. The byte counts were read off ``torch.profiler`` (profile_memory=True,
torch 2.13) around the single operation; ``tests/memory/test_trace.py`` holds whole steps against it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Temporaries: TypeAlias = Callable[[Sequence[Any], Any], int]
"""(the operator's arguments, its result) → bytes that it takes and gives back on the way."""

# Backward formulas scatter into fresh zeros in place, unless a dispatch mode is active: then they call the
# out-of-place operator, "for composite compliance" (isTensorSubclassLike in FunctionsManual.cpp), whose result is
# a second buffer of that size.
SCATTERS: Mapping[Any, Any] = {
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
    aten._index_put_impl.default: aten._index_put_impl_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}
ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})

# For the same reason, this formula computes out of place on its own temporaries.
ARITHMETIC: Mapping[Any, Any] = {
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Scalar: aten.div_.Scalar,
    aten.div.Tensor: aten.div_.Tensor,
}
ARITHMETIC_NODE = "BinaryCrossEntropyWithLogitsBackward0"

# Losses whose CPU kernels compute into a full-size buffer and then shrink it to a scalar, which keeps the buffer's
# storage. CUDA's reduce through the same code (BinaryOps.cpp, Loss.cpp).
BUFFERED_LOSSES = frozenset(
    {
        aten.mse_loss.default,
        aten.smooth_l1_loss.default,
        aten.binary_cross_entropy.default,
    }
)

# In place, and nothing is allocated; their fake kernels are slow, or missing.
SKIPPED = frozenset({aten._fused_adam_.default, aten._fused_adamw_.default, aten._fused_sgd_.default})

# Kernels that are made of other operators, in C++ below the dispatch modes: run through their own code, so that
# their temporaries are seen with the lifetimes that they really have.
COMPOSITE = frozenset(
    {
        aten.binary_cross_entropy_with_logits.default,
        aten.logsumexp.default,
        aten.logsumexp.out,
        aten._safe_softmax.default,
        aten._euclidean_dist.default,
        aten.celu.default,
        aten.soft_margin_loss.default,
        aten.soft_margin_loss.out,
        aten.soft_margin_loss_backward.default,
        aten.soft_margin_loss_backward.grad_input,
    }
)

# What a GPU computes with cuBLAS, which takes its workspace at the first of them.
GEMMS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addmv.default, aten.mv.default}
)

_NONZERO_DIM = (torch.bool, torch.uint8)
_INDEX_BYTES = 8


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copy_if_strided(tensor: Tensor) -> int:
    """Kernels that begin with ``contiguous()`` copy what is not, such as the expanded gradient of a sum."""
    return 0 if tensor.is_contiguous() else _bytes(tensor)


def _csr_matmul(args: Sequence[Any], out: Any) -> int:
    """EmbeddingBag's offset2bag, and its bag_size with max_indices: an index for each row; and a contiguous x."""
    crow, x = args[0], args[6]
    return int(2 * crow.numel() * crow.element_size() + _copy_if_strided(x))


def _index(args: Sequence[Any], out: Any) -> int:
    """A mask becomes a position for each dimension of it that is selected by."""
    masks = [index for index in args[1] if index is not None and index.dtype in _NONZERO_DIM]
    rows = out.shape[0] if masks and out.dim() else 0
    return sum(_INDEX_BYTES * rows * mask.dim() for mask in masks)


def _sort(args: Sequence[Any], out: Any) -> int:
    """One more array of positions."""
    return int(_INDEX_BYTES * args[0].numel())


def _unique(args: Sequence[Any], out: Any) -> int:
    """The sorted input, its order, and a flag or position for each element."""
    return int(3 * _INDEX_BYTES * args[0].numel())


def _embedding_backward(args: Sequence[Any], out: Any) -> int:
    return _copy_if_strided(args[0])


def _layer_norm_backward(args: Sequence[Any], out: Any) -> int:
    """Partial sums of weight's and bias's gradients for each thread, and contiguous arguments."""
    partial = 2 * torch.get_num_threads() * _bytes(out[1]) if out[1] is not None else 0
    return partial + _copy_if_strided(args[0]) + _copy_if_strided(args[1])


def _attention(args: Sequence[Any], out: Any) -> int:
    """Each thread's tile of scores, maxima, sums and output (FlashAttentionKernel.cpp: cpu_flash_attention)."""
    queries, head, keys = args[0].shape[-2], args[0].shape[-1], args[1].shape[-2]
    rows = min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32)
    return int(torch.get_num_threads() * rows * (min(keys, 512) + 2 + head) * 4)


def _attention_backward(args: Sequence[Any], out: Any) -> int:
    """The sums of output times gradient, each thread's tiles, and a contiguous gradient."""
    rows = _bytes(args[5])
    return rows + _copy_if_strided(args[0])


def _loss(args: Sequence[Any], out: Any) -> int:
    """A second full-size buffer, beside the one that is kept; see ``BUFFERED_LOSSES``."""
    return _bytes(args[0]) if out.dim() == 0 else 0


def _sum(args: Sequence[Any], out: Any) -> int:
    """The input in the result's type: a mask becomes 8-byte integers before it is summed."""
    return 0 if args[0].dtype == out.dtype else int(args[0].numel() * out.element_size())


# Allocated and released inside a CPU kernel, where no dispatch mode looks.
CPU_TEMPORARIES: Mapping[Any, Temporaries] = {
    aten.index.Tensor: _index,
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten._unique2.default: _unique,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
# By name, since an operator of a workload exists only once its module has been imported.
CPU_TEMPORARIES_BY_NAME: Mapping[str, Temporaries] = {"tuner::csr_matmul": _csr_matmul}


def temporaries(func: Any) -> Temporaries | None:
    """The rule for a CPU kernel's own temporaries, if there is one."""
    return CPU_TEMPORARIES.get(func) or CPU_TEMPORARIES_BY_NAME.get(func.name())


def owners(tensor: Tensor) -> tuple[int, int]:
    """How many hold the tensor and how many its storage, as C++ counts them at this moment."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]


@functools.cache
def sole_owners() -> tuple[int, int]:
    """``owners`` of a gradient that only the autograd engine holds, seen from a dispatch mode.

    The counts hold a few references of Python's, which differ between versions of torch: so they are observed.
    """
    seen: list[tuple[int, int]] = []

    class Observe(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is aten.add.Tensor:
                seen.append(owners(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(False), torch.enable_grad(), Observe():
        x = torch.ones(2, requires_grad=True) * 2
        torch.autograd.backward([x.exp(), x.sin()], [torch.ones(2), torch.ones(2)])
    return seen[0]


def is_temporary(args: Sequence[Any]) -> bool:
    """Whether nobody but the engine, or the formula that runs, holds the first argument; so it may be overwritten.

    Where several gradients of one tensor meet, the engine adds into the first of them if nobody else holds it
    (``can_accumulate_inplace`` in input_buffer.cpp), but never under a dispatch mode.
    """
    fits = not isinstance(args[1], Tensor) or torch.broadcast_shapes(args[0].shape, args[1].shape) == args[0].shape
    return fits and not torch.is_grad_enabled() and owners(args[0]) == sole_owners()


def in_place(func: Any, args: Sequence[Any], fresh_zeros: int) -> Any:
    """The operator that a step without a dispatch mode would call here, inside a backward formula of torch's.

    Args:
        func: the operator that is called.
        args: its arguments.
        fresh_zeros: address of the storage that the last operation filled with zeros; 0 if it did something else.
    """
    node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
    if isinstance(node, torch.autograd.function.FunctionCtx):
        return func  # a user's own formula means what it says
    if func in SCATTERS and args[0].untyped_storage()._cdata == fresh_zeros:
        return SCATTERS[func]
    if func in ARITHMETIC and node is not None and node.name() == ARITHMETIC_NODE and is_temporary(args):
        return ARITHMETIC[func]
    return aten.add_.Tensor if func is aten.add.Tensor and is_temporary(args) else func


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, which are nested in lists and tuples at most."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
