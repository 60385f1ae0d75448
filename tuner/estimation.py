"""Estimates without a study: the functions behind ``tune estimate`` and ``tune calibrate``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.devices import DeviceChoice, detect_devices
from tuner.errors import InputError
from tuner.memory import calibration as calibrations
from tuner.memory.estimate import Method, correct, cublas_workspace_bytes, estimate_all, to_estimate
from tuner.placement import need_bytes
from tuner.space import configurations, load_configurations, mode_file, select
from tuner.study import Settings, run_study
from tuner.trial import GB, Configuration, MemoryEstimate
from tuner.workloads import find_workload

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tuner.workloads.base import Workload

Step = Callable[[], "tuple[nn.Module, Optimizer | None, Callable[[], Tensor]]"]


def choose(
    workload: str, mode: str, config: str | None, only: str | None, limit: int | None, overrides: Sequence[str] = ()
) -> tuple[Workload, list[Configuration], str]:
    """The workload, the configurations that were asked for, and what their list is called.

    Args:
        workload: its name.
        mode: a mode, where ``config`` is None.
        config: a file of the user's own.
        only: just the configuration of this name.
        limit: just the first so many.
        overrides: ``key=value`` texts that replace values of every configuration.

    Raises:
        InputError: one of these cannot be used.
    """
    found = find_workload(workload)
    path = Path(config) if config else mode_file(workload, mode)
    chosen = select(load_configurations(path, found.hyperparameters), only=only, limit=limit)
    if overrides:
        values = dict(_override(text) for text in overrides)
        listed = [{**each.values, **values, "name": each.name} for each in chosen]
        chosen = configurations(listed, found.hyperparameters, source="--set")
    return found, chosen, path.stem


def estimate(
    *,
    workload: str = "graphsage",
    mode: str = "quick",
    config: str | None = None,
    overrides: Sequence[str] = (),
    data: str = "synthetic",
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = "auto",
    memory_estimation: Method = "auto",
    calibration: bool = True,
    expandable_segments: bool = False,
    step: Step | None = None,
) -> list[tuple[str, MemoryEstimate]]:
    """Says what training will take, without training: what ``tune estimate`` prints.

    Args:
        workload: what would be trained.
        mode: a named list of configurations.
        config: a file of your own instead of a mode.
        overrides: ``"key=value"`` texts that replace values of every configuration.
        data: "synthetic", "ml-100k", or a folder.
        only: just the configuration of this name.
        limit: just the first so many.
        seed: seed of the validation split.
        device: "cuda", "cpu", or "auto" for GPUs where there are any.
        memory_estimation: "static", "traced", "measured", or "auto" for traced where a step can be followed.
        calibration: correct by what earlier trials on this device needed.
        expandable_segments: simulate PyTorch's CUDA allocator with that option.
        step: for a model of your own, instead of a workload: a function that builds and returns the model, its
            optimizer (or None) and a function that computes a batch's loss. It runs on tensors without content.

    Returns:
        Name and estimate of each configuration; of ``step`` alone under the name "step".

    Raises:
        InputError: something given cannot be used.
        Untraceable: ``step`` cannot be followed; the text names the operation.
    """
    target = detect_devices(device)[0]
    if step is not None:
        from tuner.memory.trace import trace_step

        workspace = cublas_workspace_bytes(target)
        trace = trace_step(step, device_kind=target.kind, cublas_workspace_bytes=workspace)
        return [("step", to_estimate(trace, target.kind, expandable_segments))]
    found, chosen, _ = choose(workload, mode, config, only, limit, overrides)
    raw = estimate_all(
        found,
        chosen,
        found.load_data(data, seed),
        target,
        method=memory_estimation,
        expandable_segments=expandable_segments,
    )
    known = calibrations.load(calibrations.key(found.name, target.name)) if calibration else None
    return [(each.name, correct(guess, known)) for each, guess in zip(chosen, raw, strict=True)]


def calibrate(
    *,
    workload: str = "graphsage",
    mode: str = "architecture",
    config: str | None = None,
    data: str = "synthetic",
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = "auto",
    expandable_segments: bool = False,
) -> pd.DataFrame:
    """Trains each configuration for an epoch, one at a time, and keeps what it took: what ``tune calibrate`` does.

    Args:
        workload: what to train.
        mode: a named list of configurations.
        config: a file of your own instead of a mode.
        data: "synthetic", "ml-100k", or a folder.
        only: just the configuration of this name.
        limit: just the first so many.
        seed: seed of the validation split, weights, batches and dropout.
        device: "cuda", "cpu", or "auto" for GPUs where there are any.
        expandable_segments: set PyTorch's CUDA allocator option of that name.

    Returns:
        For each configuration its peak, and the traced estimate before and after, in GB.

    Raises:
        InputError: something given cannot be used.
        ExecutionError: Ray does not start.
    """
    import pandas as pd

    found, chosen, label = choose(workload, mode, config, only, limit)
    options: Mapping[str, Any] = {"data": data, "seed": seed, "device": device, "memory_estimation": "traced"}
    before = estimate(
        workload=workload, mode=mode, config=config, only=only, limit=limit, calibration=False, **options
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            auto_memory=True,
            max_workers=1,
            threads=1,
            epochs=1,
            seed=seed,
            output=str(Path(folder) / "study"),
            device=device,
            memory_estimation="traced",
            expandable_segments=expandable_segments,
        )
        result = run_study(found, lambda: found.load_data(data, seed), chosen, settings, label=label)
    after = estimate(workload=workload, mode=mode, config=config, only=only, limit=limit, **options)
    peaks = {row["name"]: row["peak_memory_gb"] for row in result.rows}
    return pd.DataFrame(
        {
            "name": [name for name, _ in before],
            "peak_memory_gb": [peaks[name] for name, _ in before],
            "before_gb": [round(guess.total_bytes / GB, 4) for _, guess in before],
            "after_gb": [round(guess.total_bytes / GB, 4) for _, guess in after],
            "margin": [round(guess.margin, 4) for _, guess in after],
        }
    )


def to_record(name: str, guess: MemoryEstimate) -> dict[str, Any]:
    """An estimate as plain values, in GB: its parts, total, margin, need and the interval that these span."""
    need = need_bytes(guess)
    low = guess.total_bytes - (need - guess.total_bytes)
    sizes = {f"{part}_gb": size for part, size in guess.parts().items()}
    sizes |= {"reserved_gb": guess.reserved_bytes, "estimated_memory_gb": guess.total_bytes}
    sizes |= {"low_gb": low, "need_gb": need}
    return {
        "name": name,
        **{key: round(size / GB, 4) for key, size in sizes.items()},
        "margin": round(guess.margin, 4),
        "method": guess.method,
        "note": guess.note,
    }


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: expected KEY=VALUE")
    try:
        return key, int(value)
    except ValueError:
        try:
            return key, float(value)
        except ValueError:
            return key, value
