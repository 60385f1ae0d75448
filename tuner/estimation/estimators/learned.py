"""The estimator of trials whose step cannot be traced: it waits for their own peaks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.estimation.estimator import Estimator
from tuner.estimation.overheads import CONTEXT_BYTES
from tuner.trial import LEARNED, MB, MemoryEstimate

if TYPE_CHECKING:
    from tuner.trial import Config, Device
    from tuner.workloads.base import Trainable

FIRST_SHARES = 8  # the most first trials that share a device, and their number if its cores are unknown
LEAST_ROOM_BYTES = 256 * MB  # above the context


class LearnedEstimator(Estimator):
    """Gives a trial ample memory, until ``LearnedFeedback`` predicts its need."""

    name = LEARNED

    def serves(self, workload: Trainable) -> bool:
        """Whether nothing else can estimate it."""
        return not super().serves(workload)

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; an equal share of the device for each core."""
        from tuner.errors import InputError

        if not self.serves(workload):
            raise InputError(f"the step of workload {workload.name} can be traced")
        estimate = MemoryEstimate(LEARNED, context_bytes=CONTEXT_BYTES[device.kind])
        return with_room(estimate, first_share(min(device.total_bytes, device.free_bytes), device.cores))


def first_share(budget_bytes: int, workers: int) -> int:
    """The memory of each of the first trials: an equal share for each worker, if that is enough to begin with."""
    workers = min(
        workers or FIRST_SHARES, FIRST_SHARES, budget_bytes // (max(CONTEXT_BYTES.values()) + LEAST_ROOM_BYTES)
    )
    return budget_bytes // max(1, workers)


def with_room(estimate: MemoryEstimate, share_bytes: int) -> MemoryEstimate:
    """The estimate of a trial that gets this much."""
    return replace(estimate, activation_bytes=max(0, share_bytes - estimate.context_bytes - estimate.headroom_bytes))
