"""What is known of each operator, in one table: its temporaries, and where it wants special treatment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tuner.estimation.tracing.corrections.cuda_temporaries import ON_CUDA
from tuner.estimation.tracing.corrections.temporaries import ON_EVERY_DEVICE, ON_THE_CPU, Rule, aten

if TYPE_CHECKING:
    from tuner.estimation.tracing.corrections.temporaries import Operator
    from tuner.estimation.tracing.trace import DeviceKind

TEMPORARIES: Mapping[DeviceKind, Mapping[Operator | str, Rule]] = {
    "cpu": {**ON_THE_CPU, **ON_EVERY_DEVICE},
    "cuda": {**ON_CUDA, **ON_EVERY_DEVICE},
}
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
ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What has to be known of an operator each time that it runs.

    Attributes:
        temporaries: what its kernel takes and gives back unseen; None where that is nothing.
        is_composite: it has no kernel of its own, and is made of other operators.
    """

    temporaries: Rule | None
    is_composite: bool
    is_gemm: bool
    is_buffered_loss: bool
    is_zeros: bool


def look_up(operator: Operator, device_kind: DeviceKind) -> OperatorFacts:
    """What is known of an operator, on a device of this kind."""
    rules, name = TEMPORARIES[device_kind], operator.name()  # type: ignore[no-untyped-call]
    # An operator may have both a composite kernel and one of the CPU's own, such as silu_backward.
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    return OperatorFacts(
        temporaries=rules.get(operator) or rules.get(name),
        is_composite=operator._can_decompose() and not has_kernel,
        is_gemm=operator in GEMMS,
        is_buffered_loss=operator in BUFFERED_LOSSES,
        is_zeros=operator in ZEROS,
    )
