"""The service that estimates the memory of configurations and an epoch's time, and calibrates the estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.decisions.seconds import Pace
from tuner.errors import InputError, ParameterError, TunerError, WorkloadError, joined, option, spelled
from tuner.estimation import calibration
from tuner.estimation.calibration import Sample, to_sample
from tuner.estimation.estimate_cache import memory_key
from tuner.estimation.estimators import (
    AUTO,
    ESTIMATORS,
    Method,
    can_be_calibrated,
    check_method,
    trace_of,
    trace_of_step,
    with_context,
    with_nccl,
)
from tuner.estimation.overheads import program_bytes
from tuner.machine.allocator_settings import allocator_key
from tuner.trial import RANKS, UNNAMED, Config, Configuration, Device, MemoryEstimate
from tuner.workloads.base import Trainable, Workload
from tuner.workloads.micro_batches import divided
from tuner.workloads.program import Program
from tuner.workloads.protocols import training_samples

if TYPE_CHECKING:
    from tuner.estimation.tracing.tracer import Parts

    Build = Callable[[dict[str, Any]], Parts]


IN_RAM = " | RAM"  # the end of calibration keys for the host RAM of GPU trials
A_STEP = " | a step, "  # with a method, the end of the keys for step times
# Steps are samples of the calibration's file, with microseconds in place of a peak. A step's seconds are those of an
# epoch over its steps, evaluation included.
MICROSECOND = 1e-6
MOST_BEYOND = 2.0  # the factor by which activations may lie outside the range of those timed


class EstimatePair(NamedTuple):
    """An estimate before and after calibration."""

    raw: MemoryEstimate
    calibrated: MemoryEstimate


@dataclass(frozen=True)
class EstimationService:
    """Estimates the memory of configurations, and calibrates by peaks of earlier trials on the device."""

    method: Method = AUTO  # if it does not work, the next does, and the estimate's ``note`` says so
    calibration: bool = True
    expandable_segments: bool = False  # the option of PyTorch's CUDA allocator
    build: Build | None = None  # model, optimizer and loss of a function's configuration, to be traced
    inference: bool = False  # whether the memory of a forward pass is estimated, too
    inference_batch: int | None = None  # the batch of that; None for the batch of training
    tell: Callable[[int, int], None] = lambda number, of: None  # told the number of each configuration, and of all

    def __post_init__(self) -> None:
        check_method(self.method)

    def estimate_all(
        self, workload: Trainable, configurations: Sequence[Configuration], data: object, device: Device
    ) -> list[EstimatePair]:
        """The estimates of complete configurations, with an epoch's time where that is known.

        Raises:
            InputError: no method works for a configuration, or the calibration file is damaged.
        """
        estimates: dict[str, MemoryEstimate] = {}
        timed: dict[str, list[Sample]] = {}  # by the method of the estimates
        number = len({memory_key(configuration.values) for configuration in configurations})
        for configuration in configurations:
            key = memory_key(configuration.values)
            if key not in estimates:
                self.tell(len(estimates) + 1, number)
                try:
                    values = configuration.values
                    estimate = self.raw(workload, values, data, device)
                    estimate = self._with_inference(estimate, workload, values, data, device)
                except InputError as error:
                    named = "" if configuration.name == UNNAMED else f"{configuration.name}: "
                    kind = WorkloadError if isinstance(error, WorkloadError) else InputError
                    raise kind(f"{named}{error.text}") from error
                steps = steps_in_epoch(workload, configuration.values, data)
                if can_be_recorded(estimate):
                    if estimate.method not in timed:
                        timed[estimate.method] = self.samples(workload.name, device.name, A_STEP + estimate.method)
                    estimate = replace(estimate, epoch_seconds=predicted(timed[estimate.method], estimate, steps))
                if estimate.epoch_seconds and training_samples(workload, data):
                    estimate = replace(estimate, step_seconds=estimate.epoch_seconds / steps)
                estimates[key] = estimate
        raw = [estimates[memory_key(configuration.values)] for configuration in configurations]
        kinds = [calibration.kind_of(workload.name, configuration.values) for configuration in configurations]
        return list(map(EstimatePair, raw, self.calibrated(raw, kinds, device.name)))

    def estimate(self, workload: Trainable, config: Config, data: object, device: Device) -> MemoryEstimate:
        """The calibrated estimate of one complete configuration. Errors are as in ``estimate_all``."""
        kind = calibration.kind_of(workload.name, config)
        return self.calibrated([self.raw(workload, config, data, device)], [kind], device.name)[0]

    def raw(self, workload: Trainable, config: Config, data: object, device: Device) -> MemoryEstimate:
        """The uncalibrated estimate of one complete configuration, by the chosen method or the next that works.

        That of several ranks is what each of them takes.

        Raises:
            InputError: no method works; the text gives each one's reason.
            WorkloadError: the workload itself fails.
        """
        if isinstance(workload, Workload) and config.get(RANKS, 1) != 1:
            estimate = self._raw(workload, divided(config), data, device)
            return with_nccl(estimate) if device.kind == "cuda" else estimate
        return self._raw(workload, config, data, device)

    def _raw(self, workload: Trainable, config: Config, data: object, device: Device) -> MemoryEstimate:
        chosen = [] if self.method == AUTO else [ESTIMATORS[self.method]]
        serving = [estimator for estimator in ESTIMATORS.values() if estimator.serves(workload)]
        causes: list[TunerError] = []
        reasons: list[str] = []
        if self.build is not None and not isinstance(workload, Workload):
            try:
                return self._built(workload, config, device)
            except TunerError as error:
                causes, reasons = [error], [f"not traced: {error.text}"]
        fault: TunerError | None = None
        for estimator in dict.fromkeys([*chosen, *serving]):
            try:
                estimate = estimator.estimate(
                    workload, config, data, device, expandable_segments=self.expandable_segments
                )
            except TunerError as error:
                reasons.append(f"not {estimator.name}: {error.text}")
                causes.append(error)
                if estimator.takes_real_step and isinstance(error, WorkloadError):
                    fault = error  # a traced step may fail only because it is traced
            else:
                estimate = replace(estimate, note=spelled(joined(*reasons, estimate.note)))
                return calibration.with_headroom(estimate) if device.kind == "cpu" else estimate
        if fault is not None:
            raise fault
        why = "; ".join(reasons)
        raise InputError(f"the footprint cannot be estimated: {why}: give {option('model_memory_gb')}") from causes[0]

    def _with_inference(
        self, estimate: MemoryEstimate, workload: Trainable, config: Config, data: object, device: Device
    ) -> MemoryEstimate:
        """The estimate with the memory of a forward pass, in the same context, if that is asked for."""
        if not self.inference or estimate.method != "traced":
            return estimate
        if batch := self.inference_batch:
            if not isinstance(workload, Workload) or workload.memory_scales_with is None:
                rule = f"{workload.name} names no key as its batch size"
                raise ParameterError("inference_batch", batch, rule, "leave it out")
            config = {**config, workload.memory_scales_with: batch}
        if isinstance(workload, Workload):
            trace = trace_of(workload, config, data, device, forward=True)
        else:
            trace = trace_of_step(self._make(workload, config), device, forward=True)
        forward = trace.to_estimate(device.kind, self.expandable_segments).reserved_bytes
        return replace(estimate, inference_bytes=forward + estimate.context_bytes)

    def _make(self, workload: Trainable, config: Config) -> Callable[[], Parts]:
        assert self.build is not None
        return partial(self.build, workload.arguments_of(config))

    def _built(self, workload: Trainable, config: Config, device: Device) -> MemoryEstimate:
        """The estimate of what ``build`` makes of a configuration."""
        estimate = trace_of_step(self._make(workload, config), device).to_estimate(
            device.kind, self.expandable_segments
        )
        if device.kind == "cuda":
            return with_context(estimate, device)
        imports = program_bytes(workload) if isinstance(workload, Program) else 0
        return calibration.with_headroom(replace(estimate, context_bytes=estimate.context_bytes + imports))

    def calibrated(
        self, estimates: Sequence[MemoryEstimate], kinds: Sequence[str], device: str
    ) -> list[MemoryEstimate]:
        """The estimates of trials of these ``kind_of``, calibrated where possible.

        A damaged calibration file raises ``InputError``.
        """
        samples = {kind: self.samples(kind, device) for kind in set(kinds)}
        fits = {kind: calibration.fit(found) for kind, found in samples.items() if found}
        return [
            fits[kind].correct(estimate) if kind in fits and can_be_calibrated(estimate) else estimate
            for kind, estimate in zip(kinds, estimates, strict=True)
        ]

    def samples(self, workload: str, device: str, kind: str = "") -> list[Sample]:
        """The calibration's samples; empty without calibration. A damaged file raises ``InputError``.

        ``kind`` is empty for the memory of the device, or ``IN_RAM``, or ``A_STEP`` with a method.
        """
        return calibration.load_samples(self._key(workload, device) + kind) if self.calibration else []

    def learn(self, workload: str, device: str, peaks: Iterable[tuple[MemoryEstimate, int]]) -> None:
        """Records uncalibrated estimates with their measured peaks in bytes; errors are ``calibration.record``'s."""
        samples = [calibration.to_sample(raw, peak) for raw, peak in peaks if can_be_calibrated(raw)]
        if samples:
            calibration.record(self._key(workload, device), samples)

    def learn_in_ram(self, workload: str, device: str, peaks: Iterable[tuple[MemoryEstimate, int]]) -> None:
        """Like ``learn``, for the host RAM of GPU trials."""
        calibration.record(
            self._key(workload, device) + IN_RAM, [Sample(raw.host_bytes, 0, peak) for raw, peak in peaks]
        )

    def learn_times(
        self, workload: Trainable, data: object, device: str, epochs: Iterable[tuple[MemoryEstimate, Config, float]]
    ) -> None:
        """Records uncalibrated estimates with their configurations and an epoch's seconds, as ``learn`` does."""
        rows: dict[str, list[Sample]] = {}
        for raw, config, seconds in epochs:
            if can_be_recorded(raw) and seconds > 0:
                steps = steps_in_epoch(workload, config, data)
                rows.setdefault(raw.method, []).append(step_sample(raw, seconds, steps))
        for method, samples in rows.items():
            calibration.record(self._key(workload.name, device) + A_STEP + method, samples, latest=True)

    def _key(self, workload: str, device: str) -> str:
        return calibration.key(workload, device, allocator_key(self.expandable_segments))


def can_be_recorded(raw: MemoryEstimate) -> bool:
    """Whether an uncalibrated estimate is deterministic, so that it identifies a configuration."""
    return raw.method in ("traced", "static")


def steps_in_epoch(workload: Trainable, config: Config, data: object) -> int:
    """The number of steps in an epoch: training samples over batch size; 1 if either is unknown."""
    size = config.get(workload.memory_scales_with or "")
    samples = training_samples(workload, data)
    return math.ceil(samples / size) if samples and isinstance(size, int) and size > 0 else 1


def step_sample(raw: MemoryEstimate, epoch_seconds: float, steps: int) -> Sample:
    """The sample of a configuration with this number of steps in an epoch, by its uncalibrated estimate."""
    return to_sample(raw, math.ceil(epoch_seconds / steps / MICROSECOND))


def predicted(samples: Sequence[Sample], raw: MemoryEstimate, steps: int) -> float | None:
    """The seconds of a configuration's epoch: as measured, or else predicted by its activations.

    None if its activations lie far outside the range of those timed.
    """
    wanted = to_sample(raw, 0)
    size = wanted.activation_bytes
    for sample in samples:
        if (sample.exact_bytes, sample.activation_bytes) == (wanted.exact_bytes, size):
            return sample.peak_bytes * MICROSECOND * steps
    pace = Pace((sample.activation_bytes, sample.peak_bytes) for sample in samples if sample.activation_bytes)
    if not pace.sizes or not pace.sizes[0] / MOST_BEYOND <= size <= pace.sizes[-1] * MOST_BEYOND:
        return None
    return (pace.seconds(size) or 0.0) * MICROSECOND * steps
