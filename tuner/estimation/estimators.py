"""The estimators of the memory that a configuration takes, and the table of them.

``tuner --help`` imports this module, so the estimators import torch and other large packages within ``estimate``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tuner.errors import InputError, ParameterError, joined
from tuner.estimation.calibration import UNCALIBRATED_MARGIN
from tuner.estimation.cards import card_of
from tuner.estimation.estimate_cache import cached
from tuner.estimation.graphsage_formula import estimate_graphsage
from tuner.estimation.overheads import NCCL_BYTES, context_of, import_bytes, in_fork
from tuner.machine.allocator_settings import allocator_key
from tuner.machine.devices import DeviceChoice
from tuner.training.ranks import BACKEND
from tuner.trial import CHECKPOINTING, CUDA_GRAPHS, LEARNED, MB, Config, Device, MemoryEstimate
from tuner.workloads.base import Trainable, Workload, needs_workload
from tuner.workloads.micro_batches import micro_batch
from tuner.workloads.protocols import OptionalMethods, optional

if TYPE_CHECKING:
    from tuner.estimation.tracing.trace import Trace
    from tuner.estimation.tracing.tracer import Parts

Method: TypeAlias = str
"""``AUTO`` or an estimator's name."""
AUTO: Method = "auto"
FIRST_SHARES = 8  # the most first trials that share a device, and their number if its cores are unknown
LEAST_ROOM_BYTES = 256 * MB  # above the context


class Estimator(ABC):
    """Estimates the memory that training a configuration takes."""

    name: ClassVar[str]  # the value of ``memory_estimation``, and of an estimate's ``method``
    # Measured peaks correct its error: for every configuration the same parts are exact, and the same factor fits
    # the others.
    can_be_calibrated: ClassVar[bool] = False
    takes_real_step: ClassVar[bool] = False  # a workload's method that fails here fails in training, too

    def serves(self, workload: Trainable) -> bool:
        """Whether it is tried without being asked for: where a model and its loss are known."""
        return isinstance(workload, Workload)

    @abstractmethod
    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """The uncalibrated estimate of a complete configuration.

        The GPU need not be present, unless ``takes_real_step``. ``data`` is the result of ``workload.load_data``.

        Raises:
            TunerError: the estimator cannot be used for this configuration; the text says why.
        """


class TracedEstimator(Estimator):
    """Traces the first steps and the evaluations on fake tensors; for CUDA, the trace is replayed in an allocator."""

    name = "traced"
    can_be_calibrated = True

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``."""
        others = device.kind, card_of(device), allocator_key(expandable_segments)

        def trace() -> MemoryEstimate:
            return trace_of(workload, config, data, device).to_estimate(device.kind, expandable_segments)

        estimate = cached(trace, workload, config, data, *others)
        if device.kind == "cuda":
            return with_context(estimate, device)
        compiler = bool(config.get(CHECKPOINTING) or optional(workload, OptionalMethods.optimizer))
        imports = import_bytes(type(needs_workload(workload, "a traced step")), compiler=compiler)
        return replace(estimate, context_bytes=estimate.context_bytes + imports)


class MeasuredEstimator(Estimator):
    """Measures the first steps and the evaluations on the device, in a new process."""

    name = "measured"
    takes_real_step = True

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``."""
        from tuner.estimation.measure import measure

        model = needs_workload(workload, "a measured step")
        measured = measure(model, config, data, device, expandable_segments).estimate
        context = in_fork(measured.context_bytes) if device.kind == "cpu" else measured.context_bytes
        return replace(measured, context_bytes=context, margin=UNCALIBRATED_MARGIN)


class StaticEstimator(Estimator):
    """Uses GraphSAGE's closed formula, which takes milliseconds, overestimates, and is the same for all devices."""

    name = "static"

    def estimate(
        self, workload: Trainable, config: Config, data: Any, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``."""
        if workload.name != "graphsage":
            raise InputError(f"workload {workload.name} has no memory formula: it can be traced or measured")
        if config.get(CUDA_GRAPHS) and device.kind == "cuda":
            raise InputError(f"the memory formula does not count the pool of {CUDA_GRAPHS}")
        return estimate_graphsage(micro_batch(workload, config), data)


class LearnedEstimator(Estimator):
    """Gives a trial whose step cannot be traced ample memory, until ``LearnedFit`` predicts its need."""

    name = LEARNED

    def serves(self, workload: Trainable) -> bool:
        """Whether nothing else can estimate it."""
        return not super().serves(workload)

    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """See ``Estimator.estimate``; an equal share of the device for each core."""
        if not self.serves(workload):
            raise InputError(f"the step of workload {workload.name} can be traced")
        estimate = with_context(MemoryEstimate(LEARNED), device)
        budget = min(device.total_bytes, device.free_bytes)
        return with_room(estimate, first_share(budget, device.cores, estimate.context_bytes))


ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (TracedEstimator(), MeasuredEstimator(), StaticEstimator(), LearnedEstimator())
}
"""By name, in the order in which they are tried."""


def methods() -> tuple[Method, ...]:
    """The values of ``memory_estimation``."""
    return (AUTO, *ESTIMATORS)


def check_method(method: Method) -> Method:
    """The method itself. Raises ``ParameterError`` if there is no such method."""
    if method not in methods():
        raise ParameterError("memory_estimation", method, f"choose one of {', '.join(methods())}")
    return method


def can_be_calibrated(estimate: MemoryEstimate) -> bool:
    """Whether measured peaks correct this estimate. A calibrated estimate is not corrected again."""
    estimator = ESTIMATORS.get(estimate.method)
    return estimator is not None and estimator.can_be_calibrated


def trace_of(
    workload: Trainable, config: Config, data: object, device: Device, *, origins: bool = False, forward: bool = False
) -> Trace:
    """The trace of a configuration on this device; the others and errors are as in ``trace_workload``."""
    from tuner.estimation.tracing.tracer import trace_workload

    workload = needs_workload(workload, "a traced step")
    kind, card = device.kind, card_of(device)
    return trace_workload(workload, config, data, device_kind=kind, card=card, origins=origins, forward=forward)


def trace_of_step(
    make: Callable[[], Parts], device: Device, *, origins: bool = False, forward: bool = False
) -> Trace:
    """The trace of what ``make`` returns on this device; the others and errors are as in ``trace_step``."""
    from tuner.estimation.tracing.tracer import trace_step

    return trace_step(make, device_kind=device.kind, card=card_of(device), origins=origins, forward=forward)


def first_share(budget_bytes: int, workers: int, context_bytes: int) -> int:
    """The memory of each of the first trials: an equal share for each worker, if that is enough to begin with."""
    most = min(FIRST_SHARES, budget_bytes // (context_bytes + LEAST_ROOM_BYTES))
    return budget_bytes // max(1, min(workers or FIRST_SHARES, most))


def with_context(estimate: MemoryEstimate, device: Device, *, alone: bool = False) -> MemoryEstimate:
    """The estimate with what a process on this device takes beside its tensors, see ``context_of``."""
    return _in_context(estimate, *context_of(device, alone=alone))


def with_contexts() -> Callable[[DeviceChoice], tuple[Device, ...]]:
    """What finds the devices of a node with the contexts of its GPUs, sent there with its code."""

    def found(choice: DeviceChoice) -> tuple[Device, ...]:
        from dataclasses import replace

        from tuner.estimation.overheads import measured_context
        from tuner.machine.devices import detect

        return tuple(replace(device, context_bytes=measured_context(device)) for device in detect(choice))

    return found


def with_nccl(estimate: MemoryEstimate) -> MemoryEstimate:
    """The estimate of one of several ranks with the memory for what they exchange."""
    if "nccl" not in os.environ.get(BACKEND, "nccl"):
        return estimate
    return _in_context(estimate, estimate.context_bytes + NCCL_BYTES, f"{NCCL_BYTES // MB} MB for NCCL are a guess")


def _in_context(estimate: MemoryEstimate, context_bytes: int, note: str) -> MemoryEstimate:
    """The estimate with this context and this note."""
    notes = joined(estimate.note, note), joined(estimate.context_note, note)
    return replace(estimate, context_bytes=context_bytes, note=notes[0], context_note=notes[1])


def with_room(estimate: MemoryEstimate, share_bytes: int) -> MemoryEstimate:
    """The estimate of a trial that gets this much."""
    return replace(estimate, activation_bytes=max(0, share_bytes - estimate.context_bytes - estimate.headroom_bytes))
