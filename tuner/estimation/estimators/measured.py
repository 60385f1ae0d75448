"""The estimator that runs real steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.estimation.estimator import Estimator
from tuner.estimation.overheads import RAY_BYTES

if TYPE_CHECKING:
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Trainable


class MeasuredEstimator(Estimator):
    """Measures the first steps and the evaluations on the device, in a new process."""

    name = "measured"
    takes_real_step = True

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; the device must be present."""
        from tuner.estimation.calibration import UNCALIBRATED_MARGIN
        from tuner.estimation.measure import measure
        from tuner.workloads.base import needs_workload

        model = needs_workload(workload, "a measured step")
        measured = measure(model, config, data, device, expandable_segments).to_estimate()
        context = measured.context_bytes + (RAY_BYTES if device.kind == "cpu" else 0)
        return replace(measured, context_bytes=context, margin=UNCALIBRATED_MARGIN)
