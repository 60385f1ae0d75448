"""Where a step on fake tensors would take other memory than the same step on a device, and what makes up for it.

Each rule stands beside the reason for it. The byte counts were read off ``torch.profiler`` (profile_memory=True,
torch 2.13) around the single operation; ``tests/estimation/test_trace.py`` holds whole steps against it.
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
        aten.soft_margin_loss.default,
    }
)

# What their kernels keep between forward and backward, only the library behind them knows (oneDNN, cuDNN).
UNKNOWN = frozenset({aten.mkldnn_rnn_layer.default, aten._cudnn_rnn.default})

# In place, and nothing is allocated; their fake kernels are slow, or missing.
SKIPPED = frozenset({aten._fused_adam_.default, aten._fused_adamw_.default, aten._fused_sgd_.default})

# What a GPU computes with cuBLAS, which takes its workspace at the first of them.
GEMMS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addmv.default, aten.mv.default}
)

# Their second argument may hold masks, whose positions decide a shape.
INDEXED = frozenset(
    {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl.default,
        aten._index_put_impl_.default,
    }
)

_INDEX_BYTES = 8  # of one position: an int64


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel()) * tensor.element_size()


def _copy_if_strided(tensor: Tensor) -> int:
    """Kernels that begin with ``contiguous()`` copy what is not, such as the expanded gradient of a sum."""
    return 0 if tensor.is_contiguous() else _bytes(tensor)


def _loss(args: Sequence[Any], out: Any) -> int:
    """A second full-size buffer, beside the one that is kept; see ``BUFFERED_LOSSES``."""
    return _bytes(args[0]) if out.dim() == 0 else 0


def _two_buffers(args: Sequence[Any], out: Any) -> int:
    """One for each of two terms; where nothing is reduced, one of them is the result."""
    return 2 * max(_bytes(tensor) for tensor in args[:2]) - (_bytes(out) if out.dim() else 0)


def _soft_margin_backward(args: Sequence[Any], out: Any) -> int:
    return 2 * _bytes(out)


def _logsumexp(args: Sequence[Any], out: Any) -> int:
    """The exponentials, and the maxima that they are taken relative to."""
    return _bytes(args[0]) + _bytes(out)


def _safe_softmax(args: Sequence[Any], out: Any) -> int:
    """A mask of what is minus infinity."""
    return int(out.numel())


def _euclidean_dist(args: Sequence[Any], out: Any) -> int:
    """Both inputs, each widened by its squared norms and by ones."""
    return sum(int(_bytes(x) // x.shape[-1] * (x.shape[-1] + 2)) for x in args[:2])


# Allocated and released inside a kernel that is made of other operators, below the dispatch modes: on every device.
TEMPORARIES: Mapping[Any, Temporaries] = {
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.binary_cross_entropy_with_logits.default: _two_buffers,
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.logsumexp.default: _logsumexp,
    aten._safe_softmax.default: _safe_softmax,
    aten._euclidean_dist.default: _euclidean_dist,
}


def _csr_matmul(args: Sequence[Any], out: Any) -> int:
    """EmbeddingBag's offset2bag, and its bag_size with max_indices: an index for each row; and a contiguous x."""
    crow, x = args[0], args[6]
    return int(2 * _bytes(crow) + _copy_if_strided(x))


def _index(args: Sequence[Any], out: Any) -> int:
    """Positions: of what a mask selects, once for each of its dimensions, and of narrower integers."""
    given = [index for index in args[1] if index is not None]
    masks = sum(int(index.sum()) * index.dim() for index in given if index.dtype in (torch.bool, torch.uint8))
    return int(_INDEX_BYTES * (masks + sum(index.numel() for index in given if index.dtype == torch.int32)))


def _mixed(args: Sequence[Any], out: Any) -> int:
    """Arguments of another type than the one that is computed in are converted first, such as a mask to floats."""
    first, second = args[0], args[1]
    if not isinstance(second, Tensor) or first.dtype == second.dtype:
        return 0
    common = torch.result_type(first, second)
    converted = sum(tensor.numel() for tensor in (first, second) if tensor.dtype != common)
    return converted * common.itemsize


def _masked_select(args: Sequence[Any], out: Any) -> int:
    """The running count of what is selected."""
    return _INDEX_BYTES * int(args[1].numel())


def _sum(args: Sequence[Any], out: Any) -> int:
    """The input in the result's type: a mask becomes 8-byte integers before it is summed."""
    return 0 if args[0].dtype == out.dtype else int(args[0].numel() * out.element_size())


def _sort(args: Sequence[Any], out: Any) -> int:
    """The positions along the sorted dimension, which is taken to be the longest."""
    return _INDEX_BYTES * max(args[0].shape, default=0)


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
    """Sums of output times gradient for each query, each thread's tile of scores twice, and a contiguous gradient."""
    queries, head, keys = args[1].shape[-2], args[1].shape[-1], args[2].shape[-2]
    tile = torch.get_num_threads() * min(queries, 256) * min(keys, 512) * 4
    return int(2 * tile + _bytes(args[1]) // head + _copy_if_strided(args[0]))


def _convolution(args: Sequence[Any], out: Any) -> int:
    """In oneDNN's own layouts: the input and weight while it computes, then the result while that is put in order."""
    return max(_bytes(args[0]) + _bytes(args[1]), _bytes(out))


_BINARY = [
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor),
    *(aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor),
    *(aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor),
]

# The same for kernels of the CPU only.
CPU_TEMPORARIES: Mapping[Any, Temporaries] = {
    **dict.fromkeys(_BINARY, _mixed),
    aten.index.Tensor: _index,
    aten.masked_select.default: _masked_select,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten._unique2.default: _unique,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    aten.convolution.default: _convolution,
}


def _csr_matmul_cuda(args: Sequence[Any], out: Any) -> int:
    """EmbeddingBag's offset2bag, an index for each entry, and its bag_size (EmbeddingBag.cu)."""
    crow, col = args[0], args[1]
    return _bytes(col) + _bytes(crow)


def _index_put_cuda(args: Sequence[Any], out: Any) -> int:
    """Adding at positions sorts them: positions and order before and after, and about as much for the sort itself."""
    given = [index.numel() for index in args[1] if index is not None]
    return 6 * _INDEX_BYTES * max(given, default=0) if len(args) > 3 and args[3] else 0


def _embedding_backward_cuda(args: Sequence[Any], out: Any) -> int:
    """The same, from 3,072 positions on (Embedding.cu)."""
    positions = args[1].numel()
    return 6 * _INDEX_BYTES * positions if positions > 3072 else 0


# The same for a GPU's: read in torch's source (EmbeddingBag.cu, Indexing.cu, Embedding.cu), not measured yet.
CUDA_TEMPORARIES: Mapping[Any, Temporaries] = {
    aten.index_put.default: _index_put_cuda,
    aten.index_put_.default: _index_put_cuda,
    aten._index_put_impl.default: _index_put_cuda,
    aten._index_put_impl_.default: _index_put_cuda,
    aten.embedding_dense_backward.default: _embedding_backward_cuda,
}
# By name, since an operator of a workload exists only once its module has been imported.
BY_NAME: Mapping[str, Mapping[str, Temporaries]] = {
    "tuner::csr_matmul": {"cpu": _csr_matmul, "cuda": _csr_matmul_cuda}
}


def temporaries(func: Any, device_kind: str) -> Temporaries | None:
    """The rule for what a kernel takes and gives back unseen, if there is one."""
    table = CPU_TEMPORARIES if device_kind == "cpu" else CUDA_TEMPORARIES
    return TEMPORARIES.get(func) or table.get(func) or BY_NAME.get(func.name(), {}).get(device_kind)


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

    class Observe(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is aten.add.Tensor:
                seen.append(owners(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(False), torch.enable_grad(), Observe():  # type: ignore[no-untyped-call]
        x = torch.ones(2, requires_grad=True) * 2
        torch.autograd.backward([x.exp(), x.sin()], [torch.ones(2), torch.ones(2)])
    return seen[0]


def is_temporary(args: Sequence[Any], *, chained: bool = False) -> bool:
    """Whether nobody but the engine, or the formula that runs, holds the first argument; so it may be overwritten.

    Where several gradients of one tensor meet, the engine adds into the first of them if nobody else holds it
    (``can_accumulate_inplace`` in input_buffer.cpp), but never under a dispatch mode.

    Args:
        args: an operator's arguments.
        chained: the formula is one expression, which holds each of its temporaries to its end.
    """
    fits = not isinstance(args[1], Tensor) or _broadcasts_to(args[1].shape, args[0].shape)
    if not fits or torch.is_grad_enabled():
        return False
    (tensor, storage), (sole_tensor, sole_storage) = owners(args[0]), sole_owners()
    return storage == sole_storage and (chained or tensor == sole_tensor)


def _broadcasts_to(shape: torch.Size, wide: torch.Size) -> bool:
    return len(shape) <= len(wide) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(wide), strict=False))


def in_place(func: Any, args: Sequence[Any], fresh_zeros: int) -> Any:
    """The operator that a step without a dispatch mode would call here, inside a backward formula of torch's.

    Args:
        func: the operator that is called.
        args: its arguments.
        fresh_zeros: address of the storage that the last operation filled with zeros; 0 if it did something else.
    """
    node: Any = torch._C._current_autograd_node()
    if isinstance(node, torch.autograd.function.FunctionCtx):
        return func  # a user's own formula means what it says
    if func in SCATTERS and args[0].untyped_storage()._cdata == fresh_zeros:
        return SCATTERS[func]
    if (
        func in ARITHMETIC
        and node is not None
        and node.name() == ARITHMETIC_NODE
        and is_temporary(args, chained=True)
    ):
        return ARITHMETIC[func]
    return aten.add_.Tensor if func is aten.add.Tensor and is_temporary(args) else func


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, which are nested in lists and tuples at most."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
