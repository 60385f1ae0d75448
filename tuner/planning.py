"""From configurations to requests and a plan: the same for a study and for a look ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.memory import calibration
from tuner.memory.estimate import calibrated, estimate_all
from tuner.placement import Plan, budget_bytes, limited, make_plan, need_bytes
from tuner.settings import Settings
from tuner.trial import GB, Configuration, Device, MemoryEstimate, Request, Trial

if TYPE_CHECKING:
    from tuner.workloads.base import Workload


@dataclass(frozen=True)
class Estimates:
    """What a study's trials are expected to take.

    Attributes:
        requests: one for each configuration, in their order, with its estimate and its need.
        raw: each trial's estimate before calibration, by trial id.
        known: samples of earlier studies on these devices, by which the estimates were calibrated.
    """

    requests: list[Request]
    raw: Mapping[str, MemoryEstimate]
    known: list[calibration.Sample]


def usable(devices: Sequence[Device], settings: Settings) -> tuple[Device, ...]:
    """The devices, with no more memory than the user allows."""
    if settings.device_memory_gb is None:
        return tuple(devices)
    return tuple(limited(device, int(settings.device_memory_gb * GB)) for device in devices)


def with_epochs(
    configurations: Sequence[Configuration], workload: Workload, epochs: int | None
) -> list[Configuration]:
    """The configurations with another number of epochs; None leaves them as they are.

    Raises:
        InputError: it is more than the workload allows.
    """
    if epochs is None:
        return list(configurations)
    most = workload.hyperparameters["epochs"].high
    if epochs > most:
        raise InputError(f"--epochs {epochs}: must be at most {most:g}")
    return [Configuration(each.name, {**each.values, "epochs": epochs}) for each in configurations]


def estimate_requests(
    workload: Workload,
    data: Any,
    configurations: Sequence[Configuration],
    devices: Sequence[Device],
    settings: Settings,
) -> Estimates:
    """What each configuration will need, on whichever of the devices it needs the most.

    Args:
        workload: what they train.
        data: what ``workload.load_data`` returned; not looked at unless memory is estimated.
        configurations: what to try; complete and valid.
        devices: where trials may run.
        settings: how to estimate, whether to calibrate, the seed.

    Raises:
        InputError: a footprint cannot be estimated, or the calibration is damaged.
    """
    trials = _trials(workload, configurations, settings.seed)
    if not settings.auto_memory:
        given = MemoryEstimate("given", context_bytes=int(settings.model_memory_gb * GB))
        requests = [Request(trial, given, need_bytes(given)) for trial in trials]
        return Estimates(requests, {trial.trial_id: given for trial in trials}, [])
    kinds = {device.name: device for device in devices}
    pairs = [_of_one_kind(workload, data, configurations, device, settings) for device in kinds.values()]
    # For each configuration the kind of device on which it needs the most: it may be placed on any of them.
    chosen = [max(each, key=lambda pair: need_bytes(pair[1])) for each in zip(*pairs, strict=True)]
    requests = [Request(trial, guess, need_bytes(guess)) for trial, (_, guess) in zip(trials, chosen, strict=True)]
    raw = {trial.trial_id: pair[0] for trial, pair in zip(trials, chosen, strict=True)}
    keys = [calibration_key(workload, device, settings) for device in kinds.values()]
    known = [sample for key in keys for sample in calibration.load_samples(key)] if settings.calibration else []
    return Estimates(requests, raw, known)


def calibration_key(workload: Workload, device: Device, settings: Settings) -> str:
    """What a study's samples are kept under."""
    return calibration.key(workload.name, device.name, settings.expandable_segments)


def whole_bytes(devices: Sequence[Device], settings: Settings) -> int:
    """The most that a trial can be given: the whole of the roomiest device, in bytes."""
    buffer_bytes = int(settings.gpu_memory_buffer_gb * GB)
    return max(budget_bytes(device, buffer_bytes) for device in devices)


def plan_requests(
    workload: Workload, requests: Sequence[Request], devices: Sequence[Device], settings: Settings
) -> tuple[Plan, list[Request]]:
    """The plan, and the requests as it can serve them.

    A trial of which only the margin is more than any device has is given a whole one; so is one that is too large, if
    it may accumulate.

    Raises:
        InputError: a trial fits on no device; the text names it and says what can be done.
    """
    buffer_bytes = int(settings.gpu_memory_buffer_gb * GB)
    whole = whole_bytes(devices, settings)
    served = [_within(request, whole, workload, settings) for request in requests]
    largest = max(served, key=lambda request: request.need_bytes)
    try:
        plan = make_plan(
            devices,
            [request.need_bytes for request in served],
            packing=settings.packing_used,
            buffer_bytes=buffer_bytes,
            max_workers=settings.max_workers,
            threads=settings.threads,
        )
    except InputError as error:
        remedy = "leave out the largest configurations" if settings.auto_memory else "lower --model-memory-gb"
        whose = f"{largest.trial.name}: " if settings.auto_memory else ""
        raise InputError(f"{whose}{error}: lower --gpu-memory-buffer-gb, {remedy}, or use a larger device") from error
    return plan, served


def _trials(workload: Workload, configurations: Sequence[Configuration], seed: int) -> list[Trial]:
    width = max(3, len(str(len(configurations))))
    return [
        Trial(f"t{number:0{width}d}", workload.name, each.name, each.values, seed)
        for number, each in enumerate(configurations, 1)
    ]


def _of_one_kind(
    workload: Workload, data: Any, configurations: Sequence[Configuration], device: Device, settings: Settings
) -> list[tuple[MemoryEstimate, MemoryEstimate]]:
    """Each configuration's estimate on one kind of device, before and after calibration."""
    method, expandable = settings.memory_estimation, settings.expandable_segments
    raw = estimate_all(workload, configurations, data, device, method=method, expandable_segments=expandable)
    if not settings.calibration:
        return [(each, each) for each in raw]
    return list(zip(raw, calibrated(raw, workload.name, device.name, expandable), strict=True))


def _within(request: Request, whole: int, workload: Workload, settings: Settings) -> Request:
    may_shrink = settings.on_oom == "accumulate" and workload.accumulated(request.trial.config) is not None
    if whole and (request.estimate.total_bytes <= whole or may_shrink):
        return replace(request, need_bytes=min(request.need_bytes, whole))
    return request
