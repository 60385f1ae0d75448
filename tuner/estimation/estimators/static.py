"""The estimator that uses a closed formula, which only GraphSAGE has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.estimation.estimator import Estimator
from tuner.estimation.formulas.graphsage import estimate_graphsage
from tuner.trial import CUDA_GRAPHS

if TYPE_CHECKING:
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Trainable

ADAMS_STATES = 2  # the moments that the formula counts for each trained number


class StaticEstimator(Estimator):
    """Uses GraphSAGE's closed formula, which takes milliseconds and overestimates."""

    name = "static"

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; the formula is the same for all devices."""
        from tuner.workloads.micro_batches import micro_batch  # not above: ``tuner --help`` lists the estimators

        if workload.name != "graphsage":
            raise InputError(f"workload {workload.name} has no memory formula: it can be traced or measured")
        if config.get(CUDA_GRAPHS) and device.kind == "cuda":
            raise InputError(f"the memory formula does not count the pool of {CUDA_GRAPHS}")
        return estimate_static(micro_batch(workload, config), data)


def estimate_static(config: Config, data: Any) -> MemoryEstimate:
    """The formula's estimate of a configuration of GraphSAGE."""
    estimate = estimate_graphsage(config, data)
    return replace(estimate, optimizer_bytes=estimate.optimizer_bytes * _states(config) // ADAMS_STATES)


def _states(config: Config) -> int:
    """The numbers that the optimizer keeps for each trained one."""
    if config.get("optimizer") == "sgd":
        return 1 if config.get("momentum") else 0
    return ADAMS_STATES
