"""The common part of all closed formulas: 4-byte numbers, and Adam's two moments."""

from __future__ import annotations

from tuner.trial import GB, MemoryEstimate

FLOAT_BYTES = 4
PROCESS_GB = 0.85  # a process without its tensors, by the GraphSAGE tuning guide's table


def footprint(
    trained_bytes: int, activation_bytes: int, data_bytes: int = 0, *, frozen_bytes: int = 0
) -> MemoryEstimate:
    """The estimate of training with Adam: every trained parameter has a gradient and two moments.

    Activations are those of the largest step or evaluation. Data are batches and everything else beside the model.
    """
    return MemoryEstimate(
        method="static",
        parameter_bytes=trained_bytes + frozen_bytes,
        gradient_bytes=trained_bytes,
        optimizer_bytes=2 * trained_bytes,
        activation_bytes=activation_bytes,
        data_bytes=data_bytes,
        context_bytes=int(PROCESS_GB * GB),
    )
