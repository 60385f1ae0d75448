"""Estimates without a study: the functions behind ``tuner estimate`` and ``tuner calibrate``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from tuner.decisions.plan import low_bytes, need_bytes
from tuner.errors import InputError, ParameterError, TunerError, option
from tuner.estimation.estimators import trace_of, trace_of_step, with_context
from tuner.estimation.service import EstimationService
from tuner.estimation.tracing.trace import Trace, write_snapshot
from tuner.machine.devices import present_or_imagined
from tuner.records.attempts import Attempt
from tuner.records.files import SNAPSHOT
from tuner.reporting import phases
from tuner.sizing.transformers.formula import TransformerConfig
from tuner.sizing.transformers.gpu_memory import transformer_config, transformer_estimates
from tuner.spec.commands import CalibrateOptions, EstimateOptions, Step, TransformerOptions
from tuner.spec.listed import choose, is_workload
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.auto_batch import refuse_auto
from tuner.study.prerequisites import needed
from tuner.study.study import run_study
from tuner.trial import GB, Device, MemoryEstimate, title

if TYPE_CHECKING:
    import pandas as pd


@public(EstimateOptions)
def estimate(options: EstimateOptions) -> list[tuple[str, MemoryEstimate]]:
    """Estimates the memory of training without training, as ``tuner estimate`` does.

    Of a workload's configurations, of a model of your own (``step``), or of a GPT-style transformer, if ``model`` or
    one of its sizes is given. A transformer is always estimated for a GPU.

    Returns:
        Name and estimate of each configuration, after those of what must be trained first, as "workload/name" where
        there are several workloads; of ``step`` alone under the name "step"; of a transformer as
        "float32", "amp" and "half".

    Raises:
        InputError: something given cannot be used.
        Untraceable: ``step`` cannot be traced; the text names the operation.
    """
    model, device = options.model, options.device
    if not isinstance(model, (str, Path, NoneType)):
        if "workload" in options.model_fields_set:
            raise InputError(
                f"estimate: two workloads were given, {model!r} and workload={options.workload!r}: give one"
            )
        options = options.changed(model=None, workload=model)
    if isinstance(model, str) and is_workload(model) and not Path(model).exists():
        raise InputError(
            f"estimate {model}: expected a TOML file; a workload is named by {option('workload', model)}"
        )
    if options.snapshot is not None:
        _check_snapshot(options.snapshot)
    if (of_transformer := transformer(options)) is not None:
        return transformer_estimates(of_transformer, present_or_imagined("cuda" if device == "auto" else device))
    target = present_or_imagined(device)
    if options.snapshot is not None and target.kind != "cuda":
        remedy = f"give {option('device', 'cuda')}, which need not exist"
        raise ParameterError("snapshot", options.snapshot, "shows a GPU's allocator", remedy)
    if options.step is not None:
        of_step = _of_step(options.step, options, target)
        _write_snapshot(options, partial(trace_of_step, options.step, target, origins=True))
        return [("step", of_step)]
    selections, _ = choose(options, options.seed)
    refuse_auto(selections)
    number = sum(len(selection.configurations) for selection in selections)
    if options.snapshot is not None and number > 1:
        rule = f"is of one configuration, not of {number}"
        raise ParameterError("snapshot", options.snapshot, rule, f"choose it with {option('only', 'NAME')}")
    service = EstimationService(
        options.memory_estimation, options.calibration, options.expandable_segments, tell=phases.estimating
    )
    estimates = []
    for selection in selections:
        phases.show("loading data")
        listed, data = [*needed(selection), *selection.configurations], selection.load_checked()
        guesses = service.estimate_all(selection.workload, listed, data, target)
        name = partial(title, selection.workload.name, several=len(selections) > 1)
        estimates += [
            (name(configuration.name), guess.calibrated) for configuration, guess in zip(listed, guesses, strict=True)
        ]
        _write_snapshot(options, partial(trace_of, selection.workload, listed[-1].values, data, target, origins=True))
    return estimates


def _check_snapshot(file: str) -> None:
    """Refuses a file that exists, lies in no folder, or lacks the ending that reports look for."""
    path = Path(file)
    if path.suffix != SNAPSHOT:
        raise ParameterError("snapshot", file, f"must end with {SNAPSHOT}")
    if path.exists():
        raise ParameterError("snapshot", file, "already exists", "give another name")
    if not path.parent.is_dir():
        raise ParameterError("snapshot", file, "its folder does not exist", "make it first")


def _write_snapshot(options: EstimateOptions, trace: Callable[[], Trace]) -> None:
    """Traces once more with the origin of each allocation, and writes the snapshot if one is asked for.

    Raises:
        InputError: the step cannot be traced, or the file cannot be written.
    """
    if options.snapshot is None:
        return
    try:
        write_snapshot(trace(), Path(options.snapshot))
    except OSError as error:
        raise InputError(f"{option('snapshot', options.snapshot)}: cannot be written: {error.strerror}") from error
    except TunerError as error:
        raise InputError(f"{option('snapshot', options.snapshot)}: {error.text}") from error


def _of_step(step: Step, options: EstimateOptions, device: Device) -> MemoryEstimate:
    """The estimate of the user's own step."""
    if options.memory_estimation not in ("auto", "traced"):
        rule = "a step of your own can only be traced"
        raise ParameterError("memory_estimation", options.memory_estimation, rule)
    estimate = trace_of_step(step, device).to_estimate(device.kind, options.expandable_segments)
    return with_context(estimate, device, alone=True)


def transformer(options: EstimateOptions) -> TransformerConfig | None:
    """The transformer that these options describe, or None if they are about something else.

    Raises:
        InputError: they are about both, or its sizes cannot be used.
    """
    sizes = {name: value for name, value in options.values().items() if name in TransformerOptions.declared()}
    model = options.model if isinstance(options.model, (str, Path)) else None
    if model is None and all(value is None for value in sizes.values()):
        return None
    for name in options.changes():
        if name not in (*sizes, "model", "device"):
            raise InputError(
                f"{option(name)} has no effect on a transformer, whose sizes were given too: leave one out"
            )
    return transformer_config(None if model is None else str(model), sizes)


@public(CalibrateOptions)
def calibrate(options: CalibrateOptions) -> pd.DataFrame:
    """Trains each configuration for two epochs, one at a time, and records its peak, as ``tuner calibrate`` does.

    Returns:
        For each configuration its status, its peak, and the traced estimate before and after, in GB.

    Raises:
        InputError: something given cannot be used.
        ExecutionError: Ray does not start.
    """
    selections, label = choose(options, options.seed)
    refuse_auto(selections)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            max_workers=1,
            threads=1,
            caps=False,  # a cap would bound the peak that is measured
            epochs=2,  # a whole batch with the optimizer's state may be in the second only
            seed=options.seed,
            device=options.device,
            memory_estimation="traced",
            expandable_segments=options.expandable_segments,
            output=str(Path(folder) / "study"),
        )
        result = run_study(StudySpec(selections, settings, label, "tuner calibrate"))
    rows = sorted(result.trials, key=lambda row: row.trial_id)
    before = [result.estimates[row.trial_id] for row in rows]
    after: list[MemoryEstimate] = []
    service = EstimationService(expandable_segments=options.expandable_segments)
    for name in dict.fromkeys(row.workload for row in rows):
        mine = [guess for row, guess in zip(rows, before, strict=True) if row.workload == name]
        after += service.calibrated(mine, [name] * len(mine), result.plan.devices[0].name)
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


def to_record(name: str, guess: MemoryEstimate) -> dict[str, object]:
    """An estimate as plain values, in GB: its parts, total, margin, need and the interval that these span."""
    sizes = {f"{part}_gb": size for part, size in guess.parts().items()}
    sizes |= {"reserved_gb": guess.reserved_bytes, "estimated_memory_gb": guess.total_bytes}
    sizes |= {"least_gb": guess.least_bytes}
    sizes |= {"headroom_gb": guess.headroom_bytes, "low_gb": low_bytes(guess), "need_gb": need_bytes(guess)}
    return {
        "name": name,
        **{key: round(size / GB, 4) for key, size in sizes.items()},
        "margin": round(guess.margin, 4),
        "method": guess.method,
        "note": guess.note,
    }
