"""The estimator that uses closed formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.estimation.estimator import Estimator
from tuner.estimation.formulas.graphsage import estimate_graphsage
from tuner.estimation.formulas.gt_ssl import estimate_gt_ssl
from tuner.estimation.formulas.kd_gat import estimate_kd_gat
from tuner.trial import CUDA_GRAPHS

if TYPE_CHECKING:
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Trainable

# By workload; each formula takes that workload's data.
FORMULAS: Mapping[str, Callable[[Config, Any], MemoryEstimate]] = {
    "graphsage": estimate_graphsage,
    "gt-ssl": estimate_gt_ssl,
    "kd-gat": estimate_kd_gat,
}


ADAMS_STATES = 2  # the moments that every formula counts for each trained number


class StaticEstimator(Estimator):
    """Uses a built-in workload's closed formula, which takes milliseconds and overestimates."""

    name = "static"
    order = 3

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; the formula is the same for all devices."""
        from tuner.workloads.micro_batches import micro_batch  # not above: ``tuner --help`` lists the estimators

        if config.get(CUDA_GRAPHS) and device.kind == "cuda":
            raise InputError(f"no memory formula counts the pool of {CUDA_GRAPHS}")
        return estimate_static(workload.name, micro_batch(workload, config), data)


def estimate_static(workload: str, config: Config, data: object) -> MemoryEstimate:
    """The formula's estimate. A workload without a formula raises ``InputError``."""
    if workload not in FORMULAS:
        known = ", ".join(FORMULAS)
        raise InputError(f"no memory formula for workload {workload!r} (known: {known})")
    estimate = FORMULAS[workload](config, data)
    return replace(estimate, optimizer_bytes=estimate.optimizer_bytes * _states(config) // ADAMS_STATES)


def _states(config: Config) -> int:
    """The numbers that the optimizer keeps for each trained one."""
    if config.get("optimizer") == "sgd":
        return 1 if config.get("momentum") else 0
    return ADAMS_STATES
