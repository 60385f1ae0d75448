"""What all closed formulas have in common: 4-byte numbers, and Adam's two moments."""

from __future__ import annotations

from tuner.trial import GB, MemoryEstimate

FLOAT_BYTES = 4
PROCESS_GB = 0.85  # what a process takes beside its tensors, by the GraphSAGE tuning guide's table


def footprint(
    trained_bytes: int, activation_bytes: int, data_bytes: int = 0, *, frozen_bytes: int = 0
) -> MemoryEstimate:
    """The estimate of a training by Adam.

    Args:
        trained_bytes: the trained parameters: each has a gradient and two moments.
        activation_bytes: what the largest step, or an evaluation, keeps and works with.
        data_bytes: batches, and whatever else lies beside the model.
        frozen_bytes: parameters that are not trained.
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
