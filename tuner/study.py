"""A study from its options to its results: the only file that knows the order of the stages."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.devices import detect_devices
from tuner.errors import InputError, TunerError
from tuner.execution.loop import Executor, run_trials
from tuner.interrupts import Interrupt, orderly
from tuner.memory import calibration
from tuner.memory.estimate import calibrated, estimate_all
from tuner.placement import Plan, need_bytes, place, plan_uniform
from tuner.recorder import Recorder
from tuner.report.progress import Progress
from tuner.report.tables import (
    by_metric,
    estimate_accuracy,
    estimates_text,
    make_console,
    plan_text,
    results_table,
)
from tuner.results import RESULTS, Row, StudyFolder
from tuner.settings import Settings
from tuner.trial import GB, SUCCESSFUL, Configuration, Device, MemoryEstimate, Request, Trial

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from tuner.workloads.base import Workload

Again = Callable[[Row, Path, Plan], str]


@dataclass(frozen=True)
class StudyResult:
    """What a study came to.

    Attributes:
        plan: how the trials shared the devices.
        estimates: each trial's estimate before calibration, by trial id.
        rows: one for each configuration, best first, with the CSV's names; empty after a dry run.
        folder: where the results are; None after a dry run.
    """

    plan: Plan
    estimates: Mapping[str, MemoryEstimate]
    rows: list[Row] = field(default_factory=list)
    folder: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 if every trial was completed or pruned on purpose, else 1."""
        return 0 if all(row["status"] in SUCCESSFUL for row in self.rows) else 1

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame with the CSV's columns."""
        import pandas as pd

        from tuner.results import columns

        return pd.DataFrame(self.rows, columns=columns(self.rows))


def run_study(
    workload: Workload,
    load_data: Callable[[], Any],
    configurations: Sequence[Configuration],
    settings: Settings,
    *,
    label: str,
    command: str,
    again: Again | None = None,
    executor: Executor | None = None,
) -> StudyResult:
    """Runs every configuration and writes the results as they come.

    Args:
        workload: what to train.
        load_data: gives the workload's data.
        configurations: what to try; complete and valid.
        settings: how.
        label: ends the default folder's name: the mode.
        command: what the user called, for ``study.json``.
        again: from the best row, the folder and the plan, how to have that trial again; None prints no end.
        executor: what runs the trials; Ray by default.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
        KeyboardInterrupt: after everything that was finished has been written.
    """
    settings.check()
    console = make_console()
    configurations = _with_epochs(configurations, workload, settings.epochs)
    data = load_data()
    devices = detect_devices(settings.device)
    executor = executor or _ray(settings)
    interrupt = Interrupt()
    with orderly(interrupt), closing(executor):
        if settings.auto_memory and not settings.dry_run:
            executor.prepare(devices)  # starting Ray and estimating take seconds, so they overlap
        estimates = _estimates(workload, data, configurations, devices[0], settings)
        requests = make_requests(workload, configurations, estimates, devices[0], settings)
        plan = _plan(devices, requests, settings)
        about = workload.describe(data)
        console.print(plan_text(plan, requests, about), markup=False, soft_wrap=True)
        by_id = {request.trial.trial_id: raw for request, raw in zip(requests, estimates, strict=True)}
        interrupt.check()
        if settings.dry_run:
            text = estimates_text([(request.trial.name, request.estimate) for request in requests])
            console.print(text, markup=False, soft_wrap=True)
            return StudyResult(plan, by_id)
        folder = _make_folder(settings, workload, label)
        folder.describe(_description(command, about, configurations, settings, plan))
        broken: BaseException | None = None
        try:
            _execute(workload, data, requests, plan, executor, folder, console, interrupt)
        except KeyboardInterrupt as error:
            broken = error
        result = StudyResult(plan, by_id, by_metric(folder.rows(), workload.metric), folder.path)
        if settings.auto_memory and settings.calibration:
            _learn(console, workload, result, settings)
        if again:
            with suppress(OSError):  # nobody reads it any more: a closed pipe or terminal
                _print_end(console, result, workload.metric, again, settings)
        if broken:
            raise broken
    return result


def make_requests(
    workload: Workload,
    configurations: Sequence[Configuration],
    estimates: Sequence[MemoryEstimate],
    device: Device,
    settings: Settings,
) -> list[Request]:
    """A request for each configuration: its own estimate, and the largest one's need set aside for each.

    Args:
        workload: what they train.
        configurations: what to try.
        estimates: theirs, before calibration.
        device: whose calibration is used.
        settings: seed, and whether to calibrate.
    """
    if settings.auto_memory and settings.calibration:
        estimates = calibrated(estimates, workload.name, device.name, settings.expandable_segments)
    need = max(need_bytes(estimate) for estimate in estimates)
    width = max(3, len(str(len(configurations))))
    return [
        Request(
            Trial(f"t{number:0{width}d}", workload.name, configuration.name, configuration.values, settings.seed),
            estimate,
            need,
        )
        for number, (configuration, estimate) in enumerate(zip(configurations, estimates, strict=True), 1)
    ]


def _execute(
    workload: Workload,
    data: Any,
    requests: Sequence[Request],
    plan: Plan,
    executor: Executor,
    folder: StudyFolder,
    console: Console,
    interrupt: Interrupt,
) -> None:
    """Runs the trials; whatever happens, every one of them has a row in the end."""
    epochs = sum(request.trial.config["epochs"] for request in requests)
    progress = Progress(console, len(requests), epochs, workload.metric, sum(plan.budgets))
    recorder = Recorder(folder, progress, requests)
    try:
        with progress:
            executor.open(workload, data, plan)
            run_trials(requests, partial(place, plan=plan), executor, recorder, interrupt)
    except BaseException as error:
        cause = "interrupted" if isinstance(error, KeyboardInterrupt) else "the study broke off"
        with suppress(TunerError):  # that the rows cannot be written either would hide why
            recorder.close(cause)
        raise
    recorder.close("")


def _estimates(
    workload: Workload, data: Any, configurations: Sequence[Configuration], device: Device, settings: Settings
) -> list[MemoryEstimate]:
    """What each configuration will need, before calibration: estimated, or as given."""
    if not settings.auto_memory:
        return [MemoryEstimate("given", context_bytes=int(settings.model_memory_gb * GB))] * len(configurations)
    method, expandable = settings.memory_estimation, settings.expandable_segments
    return estimate_all(workload, configurations, data, device, method=method, expandable_segments=expandable)


def _plan(devices: Sequence[Device], requests: Sequence[Request], settings: Settings) -> Plan:
    largest = max(requests, key=lambda request: request.estimate.total_bytes)
    try:
        return plan_uniform(
            devices,
            largest.need_bytes,
            buffer_bytes=int(settings.gpu_memory_buffer_gb * GB),
            trials=len(requests),
            max_workers=settings.max_workers,
            threads=settings.threads,
        )
    except InputError as error:
        remedy = "leave out the largest configurations" if settings.auto_memory else "lower --model-memory-gb"
        whose = f"{largest.trial.name}: " if settings.auto_memory else ""
        raise InputError(f"{whose}{error}: lower --gpu-memory-buffer-gb, {remedy}, or use a larger device") from error


def _ray(settings: Settings) -> Executor:
    from tuner.execution.ray_executor import RayExecutor

    return RayExecutor(expandable_segments=settings.expandable_segments)


def _learn(console: Console, workload: Workload, result: StudyResult, settings: Settings) -> None:
    """Keeps what completed trials took, so that the next study on this machine estimates and packs better."""
    names = {device.label: device.name for device in result.plan.devices}
    samples: dict[str, list[calibration.Sample]] = {}
    for row in result.rows:
        estimate = result.estimates[row["trial_id"]]
        if row["status"] == "completed" and row["peak_memory_gb"] and estimate.method == "traced":
            key = calibration.key(workload.name, names[row["device"]], settings.expandable_segments)
            samples.setdefault(key, []).append(calibration.to_sample(estimate, int(row["peak_memory_gb"] * GB)))
    try:
        for key, measured in samples.items():
            calibration.record(key, measured)
    except TunerError as error:  # the study is complete all the same
        console.print(f"not calibrated: {error}", markup=False, soft_wrap=True)


def _with_epochs(
    configurations: Sequence[Configuration], workload: Workload, epochs: int | None
) -> list[Configuration]:
    if epochs is None:
        return list(configurations)
    most = workload.hyperparameters["epochs"].high
    if epochs > most:
        raise InputError(f"--epochs {epochs}: must be at most {most:g}")
    return [Configuration(each.name, {**each.values, "epochs": epochs}) for each in configurations]


def _make_folder(settings: Settings, workload: Workload, label: str) -> StudyFolder:
    """The folder that was asked for, or a new one under ``results/`` that no other study has."""
    if settings.output:
        return StudyFolder(Path(settings.output), workload.metric)
    base = Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{workload.name}-{label}"
    number, path = 1, base
    while True:
        try:
            return StudyFolder(path, workload.metric, new=True)
        except FileExistsError:
            number += 1
            path = base.with_name(f"{base.name}-{number}")


def _description(
    command: str, data: str, configurations: Sequence[Configuration], settings: Settings, plan: Plan
) -> dict[str, Any]:
    """What ``study.json`` holds."""
    packages = ("torch", "ray", "numpy")
    return {
        "command": command,
        "data": data,
        "settings": dataclasses.asdict(settings),
        "plan": {**dataclasses.asdict(plan), "workers": plan.workers},
        "configurations": [{"name": each.name, **each.values} for each in configurations],
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _print_end(console: Console, result: StudyResult, metric: str, again: Again, settings: Settings) -> None:
    """The table, how good the estimates were, where the CSV is, and how to have the best trial again."""
    assert result.folder is not None
    console.print(results_table(result.rows, metric))
    lines = [estimate_accuracy(result.rows, result.plan.footprint_bytes)] if settings.auto_memory else []
    lines.append(f"results: {result.folder / RESULTS}")
    best = next((row for row in result.rows if row["status"] == "completed"), None)
    if best:
        lines.append(
            f"best: {best['name']}, {metric} {best[metric]:.4f}. Again: {again(best, result.folder, result.plan)}"
        )
    console.print("\n".join(line for line in lines if line), markup=False, soft_wrap=True)
