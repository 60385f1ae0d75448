"""One call before three methods: what a configuration will need, by formula, by tracing or by measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from tuner.errors import InputError, TunerError, WorkloadError
from tuner.estimation import calibration
from tuner.estimation.allocator import RELEASE
from tuner.estimation.imports import import_bytes
from tuner.estimation.static import estimate_static
from tuner.machine.caps import MMAP_THRESHOLD_BYTES
from tuner.trial import CHECKPOINTING, MAX_BATCH, MB, UNNAMED, Configuration, Device, MemoryEstimate

if TYPE_CHECKING:
    from tuner.estimation.trace import Trace
    from tuner.workloads.base import Config, Workload

Method = Literal["auto", "static", "traced", "measured"]
METHODS: tuple[str, ...] = get_args(Method)
# Until a calibration says better. CUDA: 200 to 723 MiB were seen, by driver, GPU and lazy loading. CPU: trials with
# a few MB of tensors peaked at 340 to 370 MB, 265 of which a Ray worker has before its first.
CONTEXT_BYTES = {"cuda": 500 * MB, "cpu": 350 * MB}
RAY_BYTES = 90 * MB  # of a worker's on the CPU are Ray's: a process that measures a step has them not
# torch.utils.checkpoint imports torch.compile's machinery at its first call, see ``tuner.training.recompute``.
CHECKPOINTING_BYTES = 76 * MB
# A worker's heap holds its smaller tensors (``tuner.machine.caps``), with gaps between them; larger ones leave none.
# By the smallest caps under which GraphSAGE 32x2 to 256x4, 512x2 with batches of 80,000 and an MLP still ran, the
# gaps are 14 to 43 % of these tensors. Until a calibration knows it better.
HEAP_SLACK = 0.5
# cuBLAS takes a workspace for each handle and stream at its first product. Bytes of one, by torch's defaults: 32 MiB
# on Hopper, 8.125 MiB before.
CUBLAS_WORKSPACE_BYTES = 8_519_680
CUBLAS_HOPPER_WORKSPACE_BYTES = 32 * MB
HOPPER = ("H100", "H200", "H800", "H20", "GH200")
# The training loop reads these, and no allocation depends on them.
WITHOUT_MEMORY = ("lr", "epochs", MAX_BATCH)


def estimate_all(
    workload: Workload,
    configurations: Sequence[Configuration],
    data: Any,
    device: Device,
    *,
    method: Method = "auto",
    expandable_segments: bool = False,
) -> list[MemoryEstimate]:
    """One estimate for each configuration, before calibration; those that take the same memory share one.

    Args:
        workload: what will be trained.
        configurations: complete configurations.
        data: what ``workload.load_data`` returned.
        device: where; its kind decides how memory is counted.
        method: "static", "traced", "measured", or "auto": traced where a step can be followed. Where the method
            asked for cannot be used, the next best is, and the estimate's ``note`` says so.
        expandable_segments: simulate the allocator with this option.

    Raises:
        InputError: unknown method, or none can be used.
    """
    if method not in METHODS:
        raise InputError(f"--memory-estimation {method!r}: choose one of {', '.join(METHODS)}")
    found: dict[tuple[tuple[str, Any], ...], MemoryEstimate] = {}
    for configuration in configurations:
        key = memory_key(configuration.values)
        if key not in found:
            try:
                found[key] = estimate(workload, configuration.values, data, device, method, expandable_segments)
            except InputError as error:
                named = "" if configuration.name == UNNAMED else f"{configuration.name}: "
                raise type(error)(f"{named}{error}") from error
    return [found[memory_key(configuration.values)] for configuration in configurations]


def estimate(
    workload: Workload, config: Config, data: Any, device: Device, method: Method, expandable_segments: bool = False
) -> MemoryEstimate:
    """The estimate of one configuration before any calibration, by the method asked for or the next best.

    Raises:
        InputError: no method can be used for it; the text says why none.
        WorkloadError: the workload is why.
    """
    ways: dict[str, Callable[[], MemoryEstimate]] = {
        "traced": lambda: _traced(workload, config, data, device, expandable_segments),
        "measured": lambda: _measured(workload, config, data, device, expandable_segments),
        "static": lambda: estimate_static(workload.name, workload.micro_batch(config), data),
    }
    first = "traced" if method == "auto" else method
    reasons: list[str] = []
    causes: dict[str, TunerError] = {}
    for way in dict.fromkeys([first, *ways]):
        try:
            found = replace(ways[way](), note="; ".join(reasons))
            return calibration.with_headroom(found) if device.kind == "cpu" else found
        except TunerError as error:
            reasons.append(f"not {way}: {error}")
            causes[way] = error
    # A step that was measured was a real one; one that was traced may have failed because it was traced.
    if isinstance(causes["measured"], WorkloadError):
        raise causes["measured"]
    raise InputError(f"the footprint cannot be estimated: {'; '.join(reasons)}") from causes[first]


def calibrated(
    estimates: Sequence[MemoryEstimate], workload: str, device: str, expandable_segments: bool
) -> list[MemoryEstimate]:
    """The estimates, corrected by what trials of this workload took on this device; only traced ones are.

    Raises:
        InputError: the calibration file is damaged.
    """
    known = calibration.load(calibration.key(workload, device, expandable_segments))
    return [calibration.apply(each, known) if known and each.method == "traced" else each for each in estimates]


def memory_key(config: Config) -> tuple[tuple[str, Any], ...]:
    """What of a configuration decides its memory; configurations with the same key share an estimate."""
    return tuple((name, value) for name, value in config.items() if name not in WITHOUT_MEMORY)


def _traced(
    workload: Workload, config: Config, data: Any, device: Device, expandable_segments: bool
) -> MemoryEstimate:
    from tuner.estimation.trace import trace_workload

    workspace = cublas_workspace_bytes(device)
    trace = trace_workload(workload, config, data, device_kind=device.kind, cublas_workspace_bytes=workspace)
    found = to_estimate(trace, device.kind, expandable_segments)
    if device.kind == "cpu":
        imports = import_bytes(type(workload)) + (CHECKPOINTING_BYTES if config.get(CHECKPOINTING) else 0)
        found = replace(found, context_bytes=found.context_bytes + imports)
    return found


def cublas_workspace_bytes(device: Device) -> int:
    """Bytes of one of cuBLAS' workspaces on this device; 0 on the CPU."""
    if device.kind == "cpu":
        return 0
    hopper = any(name in device.name for name in HOPPER)
    return CUBLAS_HOPPER_WORKSPACE_BYTES if hopper else CUBLAS_WORKSPACE_BYTES


def to_estimate(
    trace: Trace, device_kind: Literal["cpu", "cuda"], expandable_segments: bool = False
) -> MemoryEstimate:
    """What a recorded step takes from a device of this kind.

    On CUDA that is what the caching allocator reserves, by replaying the record through its simulator; on the CPU
    the tensors' peak and the heap's gaps. What the allocator has beyond the tensors' peak is the fragmentation.
    """
    from tuner.estimation.allocator import replay

    parts = trace.parts_at_peak()
    allocated = sum(parts.values())
    reserved = allocated
    if device_kind == "cuda":
        reserved = replay(trace.events, expandable_segments=expandable_segments).peak_reserved_bytes
    return MemoryEstimate(
        method="traced",
        parameter_bytes=parts["parameters"],
        gradient_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activation_bytes=parts["activations"],
        data_bytes=parts["data"],
        workspace_bytes=parts["workspace"],
        fragmentation_bytes=reserved - allocated,
        heap_bytes=round(HEAP_SLACK * _most_in_heap(trace)) if device_kind == "cpu" else 0,
        context_bytes=CONTEXT_BYTES[device_kind],
        margin=calibration.UNCALIBRATED_MARGIN,
    )


def _most_in_heap(trace: Trace) -> int:
    """The most bytes that are allocated at once in tensors of which none is mapped by itself."""
    live: dict[int, int] = {}
    now = most = 0
    for key, size in trace.events:
        if 0 <= size < MMAP_THRESHOLD_BYTES:
            live[key] = size
            now += size
            most = max(most, now)
        elif size == RELEASE:
            now -= live.pop(key, 0)
    return most


def _measured(
    workload: Workload, config: Config, data: Any, device: Device, expandable_segments: bool
) -> MemoryEstimate:
    from tuner.estimation.measure import measure

    found = measure(workload, config, data, device, expandable_segments).to_estimate()
    context = found.context_bytes + (RAY_BYTES if device.kind == "cpu" else 0)
    return replace(found, context_bytes=context, margin=calibration.UNCALIBRATED_MARGIN)
