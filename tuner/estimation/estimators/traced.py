"""By following a step on tensors without content."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.estimation.estimator import Estimator
from tuner.estimation.overheads import CHECKPOINTING_BYTES, cublas_workspace_bytes, import_bytes
from tuner.trial import CHECKPOINTING

if TYPE_CHECKING:
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Workload


class TracedEstimator(Estimator):
    """The first steps and an evaluation, followed on fake tensors, through a simulator of the allocator on CUDA."""

    name = "traced"
    order = 1
    can_be_calibrated = True

    def estimate(
        self, workload: Workload, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; the GPU need not be there."""
        from tuner.estimation.tracing.tracer import trace_workload

        workspace = cublas_workspace_bytes(device)
        trace = trace_workload(workload, config, data, device_kind=device.kind, cublas_workspace_bytes=workspace)
        found = trace.to_estimate(device.kind, expandable_segments)
        if device.kind == "cuda":
            return found
        imports = import_bytes(type(workload)) + (CHECKPOINTING_BYTES if config.get(CHECKPOINTING) else 0)
        return replace(found, context_bytes=found.context_bytes + imports)
