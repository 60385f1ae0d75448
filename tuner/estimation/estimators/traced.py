"""The estimator that traces a step on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.estimation.cards import card_of
from tuner.estimation.estimator import Estimator
from tuner.estimation.overheads import import_bytes
from tuner.trial import CHECKPOINTING

if TYPE_CHECKING:
    from tuner.estimation.tracing.trace import Trace
    from tuner.estimation.tracing.tracer import Parts
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Trainable


class TracedEstimator(Estimator):
    """Traces the first steps and the evaluations on fake tensors; for CUDA, the trace is replayed in an allocator."""

    name = "traced"
    can_be_calibrated = True

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; the GPU need not be present."""
        from tuner.workloads.protocols import OwnLoop, optional

        estimate = trace_of(workload, config, data, device).to_estimate(device.kind, expandable_segments)
        if device.kind == "cuda":
            return estimate
        compiler = bool(config.get(CHECKPOINTING) or optional(workload, OwnLoop.optimizer))
        imports = import_bytes(type(workload), compiler=compiler)
        return replace(estimate, context_bytes=estimate.context_bytes + imports)


def estimate_step(make: Callable[[], Parts], device: Device, *, expandable_segments: bool) -> MemoryEstimate:
    """The estimate of a model, an optimizer (or None) and a loss function that ``make`` returns.

    A step that cannot be traced raises ``Untraceable``.
    """
    return trace_of_step(make, device).to_estimate(device.kind, expandable_segments)


def trace_of(workload: Trainable, config: Config, data: object, device: Device, *, origins: bool = False) -> Trace:
    """The trace of a configuration on this device; ``origins`` and errors are as in ``trace_workload``."""
    from tuner.estimation.tracing.tracer import trace_workload
    from tuner.workloads.base import needs_workload

    workload = needs_workload(workload, "a traced step")
    return trace_workload(workload, config, data, device_kind=device.kind, card=card_of(device), origins=origins)


def trace_of_step(make: Callable[[], Parts], device: Device, *, origins: bool = False) -> Trace:
    """The trace of what ``make`` returns on this device; ``origins`` and errors are as in ``trace_step``."""
    from tuner.estimation.tracing.tracer import trace_step

    return trace_step(make, device_kind=device.kind, card=card_of(device), origins=origins)
