"""Estimates without a study: the functions behind ``tune estimate`` and ``tune calibrate``."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.estimation.overheads import cublas_workspace_bytes
from tuner.estimation.registry import Method
from tuner.estimation.service import EstimationService
from tuner.machine.devices import DeviceChoice, detect_devices
from tuner.placement.packing import low_bytes, need_bytes
from tuner.records.attempts import Attempt
from tuner.search.configurations import Configs
from tuner.sizing.transformers.formula import Attention, TransformerConfig
from tuner.sizing.transformers.gpu_memory import transformer_estimates
from tuner.sizing.transformers.model_file import KEYS, transformer_config
from tuner.spec.settings import Settings
from tuner.study.auto_batch import refuse_auto
from tuner.study.prerequisites import needed
from tuner.study.selection import DEFAULT_DATA, DEFAULT_MODE, choose, is_workload
from tuner.study.study import run_study
from tuner.trial import GB, Device, MemoryEstimate, title

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tuner.workloads.lookup import Workloads

# Not after their parameters.
OPTIONS_NAMED_OTHERWISE = {"overrides": "--set", "calibration": "--no-calibration", "step": "step"}
Step = Callable[[], "tuple[nn.Module, Optimizer | None, Callable[[], Tensor]]"]


def estimate(
    model: str | Path | Workloads | None = None,
    *,
    workload: Workloads = (),
    mode: str = DEFAULT_MODE,
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    data: str | Mapping[str, str] = DEFAULT_DATA,
    skip_bad: bool = False,
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = "auto",
    memory_estimation: Method = "auto",
    calibration: bool = True,
    expandable_segments: bool = False,
    model_embd: int | None = None,
    model_layer: int | None = None,
    model_head: int | None = None,
    model_positions: int | None = None,
    batch_size: int | None = None,
    seq_len: int | None = None,
    mixed_precision: bool | None = None,
    checkpointing: bool | None = None,
    attention: Attention | None = None,
    vocabulary: int | None = None,
    tied: bool | None = None,
    step: Step | None = None,
) -> list[tuple[str, MemoryEstimate]]:
    """Says what training will take, without training: what ``tune estimate`` prints.

    Of a workload's configurations, of a model of your own (``step``), or of a GPT-style transformer, if ``model`` or
    one of its sizes is given: those from ``model_embd`` to ``tied``, which win over the file's.

    Args:
        model: a TOML file with a transformer's sizes, by the names of the arguments below; or, if it is no text, what
            ``workload`` takes.
        workload: what would be trained, or several names; without one, what ``config`` names, else "graphsage".
        mode: a named list of configurations.
        config: a file of your own instead of a mode, or its content, as ``run`` takes it.
        overrides: ``"key=value"`` texts that replace values of every configuration.
        data: "synthetic", "ml-100k", or a folder; or a mapping from workload to one of these.
        skip_bad: leave out data files that cannot be used, such as SWC files, instead of refusing them all.
        only: just the configuration of this name.
        limit: just the first so many.
        seed: seed of the validation split.
        device: "cuda", which need not be there, "cpu", or "auto" for GPUs where there are any; of a transformer
            always for a GPU.
        memory_estimation: "static", "traced", "measured", or "auto" for traced where a step can be followed.
        calibration: correct by what earlier trials on this device needed.
        expandable_segments: simulate PyTorch's CUDA allocator with that option.
        model_embd: a transformer's width.
        model_layer: its blocks.
        model_head: its attention heads; by default heads of 64.
        model_positions: its positions; by default ``seq_len``, or 512.
        batch_size: sequences in a batch.
        seq_len: tokens in a sequence; by default ``model_positions``.
        mixed_precision: whether it is to be trained under autocast; all precisions are estimated.
        checkpointing: whether each block is computed again in backward.
        attention: torch's kernel "sdpa", which is the default, or "explicit".
        vocabulary: tokens that there are; by default GPT-2's 50,257.
        tied: whether the head shares the token embedding's weight, as by default.
        step: for a model of your own, instead of a workload: a function that builds and returns the model, its
            optimizer (or None) and a function that computes a batch's loss. It runs on tensors without content.

    Returns:
        Name and estimate of each configuration, after those of what must be trained first, as "workload/name" where
        there are several workloads; of ``step`` alone under the name "step"; of a transformer as
        "float32", "amp" and "half".

    Raises:
        InputError: something given cannot be used.
        Untraceable: ``step`` cannot be followed; the text names the operation.
    """
    if not isinstance(model, (str, Path, NoneType)):
        if workload != ():
            raise InputError(f"estimate: two workloads were given, {model!r} and workload={workload!r}: give one")
        return estimate(**{**locals(), "model": None, "workload": model})
    if isinstance(model, str) and is_workload(model) and not Path(model).exists():
        raise InputError(
            f"estimate {model}: expected a TOML file; a workload is named by --workload {model}, workload="
        )
    if (of_transformer := transformer(**locals())) is not None:
        return transformer_estimates(of_transformer, _device("cuda" if device == "auto" else device))
    target = _device(device)
    if step is not None and memory_estimation not in ("auto", "traced"):
        raise InputError(f"memory_estimation={memory_estimation!r}: a step of your own can only be traced")
    if step is not None:
        from tuner.estimation.tracing.tracer import trace_step

        workspace = cublas_workspace_bytes(target)
        trace = trace_step(step, device_kind=target.kind, cublas_workspace_bytes=workspace)
        return [("step", trace.to_estimate(target.kind, expandable_segments))]
    selections, _ = choose(
        workload=workload,
        mode=mode,
        config=config,
        data=data,
        skip_bad=skip_bad,
        only=only,
        limit=limit,
        seed=seed,
        overrides=overrides,
    )
    refuse_auto(selections)
    service = EstimationService(memory_estimation, calibration, expandable_segments)
    found = []
    for selection in selections:
        listed = [*needed(selection), *selection.configurations]
        estimates = service.estimate_all(selection.workload, listed, selection.load_checked(), target)
        name = partial(title, selection.workload.name, several=len(selections) > 1)
        found += [(name(each.name), guess.calibrated) for each, guess in zip(listed, estimates, strict=True)]
    return found


def transformer(**chosen: Any) -> TransformerConfig | None:
    """The transformer that arguments of ``estimate`` describe, or None if they are about something else.

    Raises:
        InputError: they are about both, or its sizes cannot be used.
    """
    sizes = {name: chosen[name] for name in KEYS}
    if chosen["model"] is None and all(value is None for value in sizes.values()):
        return None
    for name, parameter in inspect.signature(estimate).parameters.items():
        if name not in (*KEYS, "model", "device") and chosen.get(name, parameter.default) != parameter.default:
            option = OPTIONS_NAMED_OTHERWISE.get(name, f"--{name.replace('_', '-')}")
            raise InputError(f"{option} is of no use to a transformer's sizes, which were given too: leave one out")
    return transformer_config(chosen["model"], sizes)


def calibrate(
    workload: Workloads = (),
    *,
    mode: str = DEFAULT_MODE,
    config: Configs | None = None,
    data: str | Mapping[str, str] = DEFAULT_DATA,
    skip_bad: bool = False,
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = "auto",
    expandable_segments: bool = False,
) -> pd.DataFrame:
    """Trains each configuration for two epochs, one at a time, and keeps what it took: what ``tune calibrate`` does.

    Args:
        workload: what to train, or several names; without one, what ``config`` names, else "graphsage".
        mode: a named list of configurations.
        config: a file of your own instead of a mode, or its content, as ``run`` takes it.
        data: "synthetic", "ml-100k", or a folder; or a mapping from workload to one of these.
        skip_bad: leave out data files that cannot be used, such as SWC files, instead of refusing them all.
        only: just the configuration of this name.
        limit: just the first so many.
        seed: seed of the validation split, weights, batches and dropout.
        device: "cuda", "cpu", or "auto" for GPUs where there are any.
        expandable_segments: set PyTorch's CUDA allocator option of that name.

    Returns:
        For each configuration its status, its peak, and the traced estimate before and after, in GB.

    Raises:
        InputError: something given cannot be used.
        ExecutionError: Ray does not start.
    """
    selections, label = choose(
        workload=workload, mode=mode, config=config, data=data, only=only, limit=limit, seed=seed, skip_bad=skip_bad
    )
    refuse_auto(selections)
    settings = Settings(
        auto_memory=True,
        max_workers=1,
        threads=1,
        caps=False,  # what it takes is the question
        epochs=2,  # a whole batch with the optimizer's state may be in the second only
        seed=seed,
        device=device,
        memory_estimation="traced",
        expandable_segments=expandable_segments,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, output=str(Path(folder) / "study"))
        result = run_study(selections, settings, label=label, command="tune calibrate")
    rows = sorted(result.trials, key=lambda row: row.trial_id)
    before = [result.estimates[row.trial_id] for row in rows]
    after: list[MemoryEstimate] = []
    service = EstimationService(expandable_segments=expandable_segments)
    for name in dict.fromkeys(row.workload for row in rows):
        mine = [guess for row, guess in zip(rows, before, strict=True) if row.workload == name]
        after += service.calibrated(mine, name, result.plan.devices[0].name)
    return _before_and_after(rows, before, after)


def _before_and_after(
    rows: Sequence[Attempt], before: Sequence[MemoryEstimate], after: Sequence[MemoryEstimate]
) -> pd.DataFrame:
    import pandas as pd

    several = len({row.workload for row in rows}) > 1
    return pd.DataFrame(
        {
            "name": [title(row.workload, row.name, several=several) for row in rows],
            "status": [row.status for row in rows],
            "peak_memory_gb": [row.peak_memory_gb for row in rows],
            "before_gb": [round(estimate.total_bytes / GB, 4) for estimate in before],
            "after_gb": [round(estimate.total_bytes / GB, 4) for estimate in after],
            "need_gb": [round(need_bytes(estimate) / GB, 4) for estimate in after],
        }
    )


def _device(choice: DeviceChoice) -> Device:
    """The device to estimate for; a GPU need not be there to be estimated for."""
    try:
        return detect_devices(choice)[0]
    except InputError:
        if choice != "cuda":
            raise
        return Device("", "cuda", 0, "a GPU", 0, 0, cores=1)


def to_record(name: str, guess: MemoryEstimate) -> dict[str, Any]:
    """An estimate as plain values, in GB: its parts, total, margin, need and the interval that these span."""
    sizes = {f"{part}_gb": size for part, size in guess.parts().items()}
    sizes |= {"reserved_gb": guess.reserved_bytes, "estimated_memory_gb": guess.total_bytes}
    sizes |= {"headroom_gb": guess.headroom_bytes, "low_gb": low_bytes(guess), "need_gb": need_bytes(guess)}
    return {
        "name": name,
        **{key: round(size / GB, 4) for key, size in sizes.items()},
        "margin": round(guess.margin, 4),
        "method": guess.method,
        "note": guess.note,
    }
