"""A study from its options to its results: the only file that knows the order of the stages."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.devices import DeviceChoice, detect_devices
from tuner.errors import InputError
from tuner.execution.loop import Executor, Weights, run_trials
from tuner.memory import calibration
from tuner.memory.estimate import Method, correct, estimate_all
from tuner.placement import Plan, need_bytes, place, plan_uniform
from tuner.report.tables import by_metric, estimate_accuracy, plan_text, results_table
from tuner.results import RESULTS, Row, StudyFolder
from tuner.trial import (
    GB,
    SUCCESSFUL,
    Configuration,
    Device,
    EpochReport,
    MemoryEstimate,
    Outcome,
    Placement,
    Request,
    Trial,
)

if TYPE_CHECKING:
    import pandas as pd

    from tuner.report.progress import Progress
    from tuner.workloads.base import Workload

WIDE = 200


@dataclass(frozen=True)
class Settings:
    """How a study runs, whatever it trains.

    Attributes:
        auto_memory: estimate every configuration and give each trial what the largest needs.
        model_memory_gb: what each trial is given otherwise, in GB.
        gpu_memory_buffer_gb: what is left alone on each device, in GB.
        max_workers: at most so many trials at once.
        threads: CPU threads for each trial; None divides the cores between the workers.
        epochs: replaces every configuration's number of epochs.
        seed: seed of the validation split, weights, batches and dropout.
        output: the study's folder; None makes one under ``results/``.
        device: "auto", "cpu" or "cuda".
        memory_estimation: how ``auto_memory`` estimates: "static", "traced", "measured" or "auto".
        calibration: correct estimates by what earlier trials needed, and keep what these need for later ones.
        expandable_segments: set PyTorch's allocator option of that name for the trials.
        dry_run: stop after the plan.
    """

    auto_memory: bool = False
    model_memory_gb: float = 1.5
    gpu_memory_buffer_gb: float = 2.0
    max_workers: int | None = None
    threads: int | None = None
    epochs: int | None = None
    seed: int = 0
    output: str | None = None
    device: DeviceChoice = "auto"
    memory_estimation: Method = "auto"
    calibration: bool = True
    expandable_segments: bool = False
    dry_run: bool = False

    def check(self) -> None:
        """Raises InputError for a number that makes no sense."""
        if not self.model_memory_gb > 0:
            raise InputError(f"--model-memory-gb {self.model_memory_gb:g}: must be more than 0")
        if not self.gpu_memory_buffer_gb >= 0:
            raise InputError(f"--gpu-memory-buffer-gb {self.gpu_memory_buffer_gb:g}: must be 0 or more")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: must be 0 or more")
        for option in ("max_workers", "threads", "epochs"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise InputError(f"--{option.replace('_', '-')} {value}: must be at least 1")


@dataclass(frozen=True)
class StudyResult:
    """What a study came to.

    Attributes:
        plan: how the trials shared the devices.
        rows: one for each configuration, best first, with the CSV's names; empty after a dry run.
        folder: where the results are; None after a dry run.
    """

    plan: Plan
    rows: list[Row]
    folder: Path | None

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
    rerun: Sequence[str] | None = None,
    executor: Executor | None = None,
) -> StudyResult:
    """Runs every configuration and writes the results as they come.

    Args:
        workload: what to train.
        load_data: gives the workload's data.
        configurations: what to try; complete and valid.
        settings: how.
        label: ends the default folder's name: the mode.
        rerun: the command's arguments that repeat this study, for the best trial's own command.
        executor: what runs the trials; Ray by default.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
        KeyboardInterrupt: after everything that was finished has been written.
    """
    from rich.console import Console

    settings.check()
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width that a line should be broken at
        console.width = WIDE
    configurations = _with_epochs(configurations, workload, settings.epochs)
    data = load_data()
    devices = detect_devices(settings.device)
    executor = executor or _ray(settings)
    try:
        if settings.auto_memory and not settings.dry_run:
            executor.prepare(devices)  # starting Ray and estimating take seconds, so they overlap
        raw = _estimates(workload, data, configurations, devices[0], settings)
        requests = make_requests(workload, configurations, raw, devices[0], settings)
        plan = _plan(devices, requests, settings)
        largest = max(requests, key=lambda request: request.estimate.total_bytes)
        text = plan_text(plan, largest.estimate, largest.trial.name, len(requests))
        console.print(text, markup=False, soft_wrap=True)
        if settings.dry_run:
            return StudyResult(plan, [], None)
        folder = StudyFolder(_folder(settings, workload.name, label), workload.metric)
        folder.describe(_description(settings, plan, rerun))
        recorder = _Recorder(folder, requests, workload.metric, plan, console)
        try:
            _run(workload, data, requests, plan, executor, recorder)
        finally:
            with _uninterrupted():
                recorder.interrupt()
                folder.close()
                if settings.auto_memory and settings.calibration:
                    _learn(console, workload, raw, folder.rows(), plan)
                _print_end(console, folder, workload.metric, rerun, plan, settings.auto_memory)
    finally:
        with _uninterrupted():
            executor.close()
    return StudyResult(plan, by_metric(folder.rows(), workload.metric), folder.path)


def _run(
    workload: Workload, data: Any, requests: Sequence[Request], plan: Plan, executor: Executor, recorder: _Recorder
) -> None:
    with recorder.progress, _terminate_as_interrupt():
        executor.open(workload, data, plan)
        run_trials(requests, partial(place, plan=plan), executor, recorder)


def _plan(devices: Sequence[Device], requests: Sequence[Request], settings: Settings) -> Plan:
    return plan_uniform(
        devices,
        max(request.need_bytes for request in requests),
        buffer_bytes=int(settings.gpu_memory_buffer_gb * GB),
        trials=len(requests),
        max_workers=settings.max_workers,
        threads=settings.threads,
    )


def make_requests(
    workload: Workload,
    configurations: Sequence[Configuration],
    raw: Sequence[MemoryEstimate],
    device: Device,
    settings: Settings,
) -> list[Request]:
    """A request for each configuration: its own estimate, and the largest one's need set aside for each.

    Args:
        workload: what they train.
        configurations: what to try.
        raw: their estimates before calibration.
        device: whose calibration is used.
        settings: seed, and whether to calibrate.
    """
    known = calibration.load(calibration.key(workload.name, device.name)) if settings.calibration else None
    estimates = [correct(each, known) for each in raw]
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


def _estimates(
    workload: Workload, data: Any, configurations: Sequence[Configuration], device: Device, settings: Settings
) -> list[MemoryEstimate]:
    """What each configuration will need, before calibration: estimated, or as given."""
    if not settings.auto_memory:
        return [MemoryEstimate("given", context_bytes=int(settings.model_memory_gb * GB))] * len(configurations)
    return estimate_all(
        workload,
        configurations,
        data,
        device,
        method=settings.memory_estimation,
        expandable_segments=settings.expandable_segments,
    )


class _Recorder:
    """Writes what the loop tells, and shows it."""

    def __init__(
        self, folder: StudyFolder, requests: Sequence[Request], metric: str, plan: Plan, console: Any
    ) -> None:
        from tuner.report.progress import Progress

        self._folder = folder
        self._unfinished = {request.trial.trial_id: request for request in requests}
        self._placements: dict[str, tuple[Placement, float]] = {}
        self._epochs: dict[str, int] = {}
        epochs = sum(request.trial.config["epochs"] for request in requests)
        self.progress: Progress = Progress(console, len(requests), epochs, metric, sum(plan.budgets))

    def started(self, placement: Placement) -> None:
        self._placements[placement.trial.trial_id] = placement, time.monotonic()
        self.progress.started(placement)

    def reported(self, report: EpochReport) -> None:
        self._epochs[report.trial_id] = report.epoch
        self.progress.reported(report)

    def finished(self, outcome: Outcome, weights: Weights) -> None:
        request = self._unfinished[outcome.trial.trial_id]
        self._folder.record(outcome, request.estimate, weights)
        del self._unfinished[outcome.trial.trial_id]
        self.progress.finished(outcome)

    def interrupt(self) -> None:
        """Gives every trial that has not ended a row with status ``interrupted``."""
        for trial_id, request in self._unfinished.items():
            outcome = Outcome(request.trial, "interrupted", error="interrupted before it started")
            if trial_id in self._placements:
                placement, began = self._placements[trial_id]
                outcome = Outcome(
                    request.trial,
                    "interrupted",
                    placement,
                    epochs=self._epochs.get(trial_id, 0),
                    seconds=time.monotonic() - began,
                    error="interrupted while it ran",
                )
            self._folder.record(outcome, request.estimate, bytes)


def _ray(settings: Settings) -> Executor:
    from tuner.execution.ray_executor import RayExecutor

    return RayExecutor(expandable_segments=settings.expandable_segments)


def _learn(console: Any, workload: Workload, raw: Sequence[MemoryEstimate], rows: Sequence[Row], plan: Plan) -> None:
    """Keeps what completed trials took, so that the next study on this machine estimates and packs better."""
    names = {device.label: device.name for device in plan.devices}
    samples: dict[str, list[calibration.Sample]] = {}
    for row in rows:
        estimate = raw[int(row["trial_id"][1:]) - 1]
        if row["status"] == "completed" and row["peak_memory_gb"] and estimate.method == "traced":
            key = calibration.key(workload.name, names[row["device"]])
            samples.setdefault(key, []).append(calibration.to_sample(estimate, int(row["peak_memory_gb"] * GB)))
    for key, found in samples.items():
        try:
            calibration.record(key, found)
        except InputError as error:  # the study is complete all the same
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


def _folder(settings: Settings, workload: str, label: str) -> Path:
    """The folder that was asked for, or a new one under ``results/``."""
    if settings.output:
        return Path(settings.output)
    base = Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{workload}-{label}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _description(settings: Settings, plan: Plan, rerun: Sequence[str] | None) -> dict[str, Any]:
    """What ``study.json`` holds."""
    packages = ("torch", "ray", "numpy")
    return {
        "command": shlex.join(["tune", *rerun]) if rerun is not None else "tune_hyperparameters_parallel()",
        "settings": dataclasses.asdict(settings),
        "plan": {**dataclasses.asdict(plan), "workers": plan.workers},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _print_end(
    console: Any, folder: StudyFolder, metric: str, rerun: Sequence[str] | None, plan: Plan, auto_memory: bool
) -> None:
    """The table, where the CSV is, and how to run the best configuration again."""
    rows = folder.rows()
    if not rows:
        return
    console.print(results_table(rows, metric))
    accuracy = estimate_accuracy(rows) if auto_memory else ""
    if accuracy:
        console.print(accuracy, markup=False, soft_wrap=True)
    console.print(f"results: {folder.path / RESULTS}", markup=False, soft_wrap=True)
    best = folder.best()
    if best is None:
        return
    again = f"tuner.load_best({str(folder.path)!r})"
    if rerun is not None:
        arguments = [*rerun, "--only", best["name"], "--threads", str(plan.threads)]
        again = f"{_python()} -m tuner {shlex.join(arguments)}"
    console.print(f"best: {best['name']}, {metric} {best[metric]:.4f}. Again: {again}", markup=False, soft_wrap=True)


def _python() -> str:
    """This interpreter, as short as it can be typed here."""
    return min(sys.executable, os.path.relpath(sys.executable), key=len)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Lets what finishes a study finish: a second Ctrl-C has no effect meanwhile."""
    with _handling(signal.SIGINT, signal.SIG_IGN):
        yield


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Ends a study in the same orderly way on SIGTERM (a batch system's time limit) as on Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _handling(signal.SIGTERM, interrupt):
        yield


@contextmanager
def _handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python allows it nowhere else
        yield
        return
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous)
