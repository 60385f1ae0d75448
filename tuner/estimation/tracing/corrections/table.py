"""What is known of operators, in one table: their temporaries, and which want special treatment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
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


@cache
def temporaries(operator: Operator, device_kind: DeviceKind) -> Rule | None:
    """The rule for what an operator's kernel takes and gives back unseen, if there is one."""
    rules = TEMPORARIES[device_kind]
    return rules.get(operator) or rules.get(operator.name())  # type: ignore[no-untyped-call]


@cache
def is_composite(operator: Operator) -> bool:
    """Whether an operator has no kernel of its own on the CPU, and is made of others.

    It may have both a composite kernel and one of the CPU's own, such as ``silu_backward``.
    """
    name = operator.name()  # type: ignore[no-untyped-call]
    return operator._can_decompose() and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
