"""The tables of operators that have temporaries or need special treatment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import torch

from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections.cuda import ON_EVERY_CARD, on_card
from tuner.estimation.tracing.corrections.temporaries import ON_EVERY_DEVICE, ON_THE_CPU, Operator, Rule, aten

if TYPE_CHECKING:
    from tuner.estimation.tracing.trace import DeviceKind

TEMPORARIES: Mapping[DeviceKind, Mapping[Operator | str, Rule]] = {
    "cpu": {**ON_THE_CPU, **ON_EVERY_DEVICE},
    "cuda": {**ON_EVERY_DEVICE, **ON_EVERY_CARD},
}
# These losses compute into a full-size buffer and shrink it to a scalar, which keeps the buffer's storage: on the CPU
# and, by the same code, on CUDA (BinaryOps.cpp, Loss.cpp).
BUFFERED_LOSSES = frozenset(
    {
        aten.mse_loss.default,
        aten.smooth_l1_loss.default,
        aten.binary_cross_entropy.default,
        aten.soft_margin_loss.default,
    }
)
# Only oneDNN and cuDNN know what these kernels keep for the backward pass.
UNKNOWN = frozenset({aten.mkldnn_rnn_layer.default, aten._cudnn_rnn.default})
# These work in place without allocations; their fake kernels are slow or missing.
SKIPPED = frozenset(
    overload
    for operator in (aten._fused_adam_, aten._fused_adamw_, aten._fused_sgd_)
    for overload in (operator.default, operator.tensor_lr)
)
# A GPU computes these with cuBLAS, which takes its workspace at the first one.
GEMMS = frozenset(
    {
        *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addmv.default),
        *(aten.mv.default, aten.dot.default, aten.vdot.default, aten.addmm.out),
    }
)
# These results of CUDA's kernels are on the host (the state of the random numbers), by their places.
HOST_RESULTS: Mapping[Operator, tuple[int, ...]] = {aten._scaled_dot_product_efficient_attention.default: (2, 3)}
# The order in which CUDA's kernels allocate their results, if it is another (Dropout.cu, EmbeddingBag.cu,
# ConvolutionMM2d.cu, RNN.cu).
ORDER: Mapping[Operator, tuple[int, ...]] = {
    aten.native_dropout.default: (1, 0),
    aten._embedding_bag.default: (2, 1, 0, 3),
    aten._embedding_bag_forward_only.default: (2, 1, 0, 3),
    aten.convolution_backward.default: (0, 2, 1),
    aten.native_batch_norm_backward.default: (1, 2, 0),
    aten._thnn_fused_lstm_cell.default: (2, 0, 1),
}
# Arguments that are only given by keyword, and that rules need after the others.
BY_KEYWORD: Mapping[Operator, str] = {aten.sort.stable: "dim"}
# cuDNN computes these, if it is enabled, with workspaces that only it knows.
CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
# The second argument may have masks, whose positions decide a shape.
INDEXED = frozenset(
    {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl.default,
        aten._index_put_impl_.default,
    }
)
# These make a single number where the shape is empty.
SCALARS = frozenset({aten.ones.default, aten.zeros.default, aten.full.default, aten.scalar_tensor.default})
ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})


@cache
def temporaries(operator: Operator, device_kind: DeviceKind, card: CardProperties | None) -> Rule | None:
    """The rule for the temporaries of an operator's kernel, or None."""
    rules = {**TEMPORARIES[device_kind], **(on_card(card) if card else {})}
    return rules.get(operator) or rules.get(operator.name())  # type: ignore[no-untyped-call]


@cache
def is_composite(operator: Operator) -> bool:
    """Whether an operator consists of others and has no CPU kernel. Some, such as ``silu_backward``, have both."""
    name = operator.name()  # type: ignore[no-untyped-call]
    return operator._can_decompose() and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
