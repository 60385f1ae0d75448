"""A study from its options to its results: the only file that knows the order of the stages."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, TunerError
from tuner.execution.loop import Correction, Decisions, Executor, run_trials
from tuner.interrupts import Interrupt, orderly
from tuner.journal import read_attempts
from tuner.memory import calibration
from tuner.memory.feedback import Feedback
from tuner.placement import Packer, Plan, need_bytes
from tuner.planning import (
    Estimates,
    calibration_key,
    estimate_requests,
    plan_requests,
    usable,
    whole_bytes,
    with_epochs,
)
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
from tuner.results import ATTEMPTS, RESULTS, Row, StudyFolder, read_study
from tuner.resume import check_same, description, remaining, to_ending
from tuner.retry import Retry, next_attempt
from tuner.settings import Settings
from tuner.trial import ACCUMULATION, GB, SUCCESSFUL, Configuration, Device, MemoryEstimate, Outcome, Request

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
    options: Mapping[str, Any] | None = None,
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
        options: the options of ``tune run`` that make this study, with which ``--resume`` makes it again.
        again: from the best row, the folder and the plan, how to have that trial again; None prints no end.
        executor: what runs the trials; Ray by default.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
        KeyboardInterrupt: after everything that was finished has been written.
    """
    settings.check()
    console = make_console()
    configurations = with_epochs(configurations, workload, settings.epochs)
    data = load_data()
    described = description(workload.name, data, configurations, settings.seed)
    attempts = _earlier_attempts(settings, described)
    executor = executor or _ray(settings)
    interrupt = Interrupt()
    with orderly(interrupt), closing(executor):
        devices = usable(executor.devices(settings.device), settings)
        if settings.auto_memory and not settings.dry_run:
            executor.prepare(devices)  # starting Ray and estimating take seconds, so they overlap
        estimates = estimate_requests(workload, data, configurations, devices, settings)
        plan, requests = _plan(workload, estimates.requests, attempts, devices, settings)
        about = workload.describe(data)
        console.print(plan_text(plan, requests, about), markup=False, soft_wrap=True)
        interrupt.check()
        if settings.dry_run:
            if requests:
                text = estimates_text([(request.trial.name, request.estimate) for request in requests])
                console.print(text, markup=False, soft_wrap=True)
            return StudyResult(plan, estimates.raw)
        folder = _open_folder(settings, workload, label, len(attempts), console)
        with closing(folder):
            if not settings.resume:
                folder.describe({**described, **_description(command, options, about, settings, plan)})
            broken: BaseException | None = None
            try:
                _execute(workload, data, requests, estimates, plan, executor, folder, console, settings, interrupt)
            except KeyboardInterrupt as error:
                broken = error
        result = StudyResult(plan, estimates.raw, by_metric(folder.rows(), workload.metric), folder.path)
        if settings.auto_memory and settings.calibration:
            _learn(console, workload, result, settings)
        if again:
            with suppress(OSError):  # nobody reads it any more: a closed pipe or terminal
                _print_end(console, result, workload.metric, again, settings)
        if broken:
            raise broken
    return result


def _earlier_attempts(settings: Settings, described: Mapping[str, Any]) -> list[Row]:
    """The journal of the study that is gone on with; empty for a new one.

    Raises:
        InputError: there is none, or it is of something else.
    """
    if not settings.resume:
        return []
    check_same(read_study(Path(settings.resume)), described, settings.resume)
    return read_attempts(Path(settings.resume) / ATTEMPTS)[0]


def _plan(
    workload: Workload,
    requests: Sequence[Request],
    attempts: Sequence[Row],
    devices: Sequence[Device],
    settings: Settings,
) -> tuple[Plan, list[Request]]:
    """The plan for the trials that are left, and these; only where nothing is left, it is one for all of them."""
    if not attempts:
        return plan_requests(workload, requests, devices, settings)
    whole = whole_bytes(devices, settings)
    policy = settings.retry_policy
    left = remaining(requests, attempts, policy, whole_bytes=whole, accumulated=workload.accumulated)
    if left:
        return plan_requests(workload, left, devices, settings)
    shown = [replace(request, need_bytes=min(request.need_bytes, whole)) for request in requests]
    return plan_requests(workload, shown, devices, settings)[0], []


def _execute(
    workload: Workload,
    data: Any,
    requests: Sequence[Request],
    estimates: Estimates,
    plan: Plan,
    executor: Executor,
    folder: StudyFolder,
    console: Console,
    settings: Settings,
    interrupt: Interrupt,
) -> None:
    """Runs the trials; whatever happens, every one of them has a row in the end."""
    epochs = sum(request.trial.config["epochs"] for request in requests)
    progress = Progress(console, len(requests), epochs, workload.metric, sum(plan.budgets))
    recorder = Recorder(folder, progress, requests)
    feedback = _feedback(estimates, folder)
    decisions = _decisions(workload, feedback, settings)
    try:
        with progress:
            if requests:
                executor.open(workload, data, plan, folder.checkpoints)
            corrected = map(feedback.correct, requests)
            run_trials(corrected, Packer(plan), executor, recorder, decisions, interrupt)
    except BaseException as error:
        cause = "interrupted" if isinstance(error, KeyboardInterrupt) else "the study broke off"
        with suppress(TunerError):  # that the rows cannot be written either would hide why
            recorder.close(cause)
        raise
    recorder.close("")


def _feedback(estimates: Estimates, folder: StudyFolder) -> Feedback:
    """What is known of the trials' memory; the attempts of a study that is gone on with have told some already."""
    feedback = Feedback(estimates.raw, estimates.known, need_bytes)
    trials = {request.trial.trial_id: request.trial for request in estimates.requests}
    for row in folder.attempts():
        if f"config/{ACCUMULATION}" not in row and row["trial_id"] in trials:
            feedback.learn(trials[row["trial_id"]], to_ending(row))
    return feedback


def _decisions(workload: Workload, feedback: Feedback, settings: Settings) -> Decisions:
    """What follows an attempt, and what it tells of the trials that wait."""
    policy = settings.retry_policy
    jitter = Random(settings.seed)

    def try_again(request: Request, outcome: Outcome, whole_bytes: int) -> Retry | None:
        return next_attempt(
            request,
            outcome.ending,
            policy,
            whole_bytes=whole_bytes,
            accumulated=workload.accumulated,
            random=jitter.random,
        )

    def learn(outcome: Outcome) -> Correction | None:
        return feedback.correct if feedback.learn(outcome.trial, outcome.ending) else None

    return Decisions(try_again, learn)


def _ray(settings: Settings) -> Executor:
    from tuner.execution.ray_executor import RayExecutor

    return RayExecutor(
        expandable_segments=settings.expandable_segments,
        address=settings.address,
        caps=settings.caps,
        checkpoint_seconds=settings.checkpoint_seconds,
    )


def _learn(console: Console, workload: Workload, result: StudyResult, settings: Settings) -> None:
    """Keeps what completed trials took, so that the next study on this machine estimates and packs better."""
    devices = {device.label: device for device in result.plan.devices}
    samples: dict[str, list[calibration.Sample]] = {}
    for row in result.rows:
        estimate = result.estimates[row["trial_id"]]
        as_estimated = estimate.method == "traced" and f"config/{ACCUMULATION}" not in row
        if row["status"] == "completed" and row["peak_memory_gb"] and as_estimated and row["device"] in devices:
            key = calibration_key(workload, devices[row["device"]], settings)
            samples.setdefault(key, []).append(calibration.to_sample(estimate, int(row["peak_memory_gb"] * GB)))
    try:
        for key, measured in samples.items():
            calibration.record(key, measured)
    except TunerError as error:  # the study is complete all the same
        console.print(f"not calibrated: {error}", markup=False, soft_wrap=True)


def _open_folder(settings: Settings, workload: Workload, label: str, attempts: int, console: Console) -> StudyFolder:
    """The folder that was asked for, that of the study that is gone on with, or a new one that no other study has."""
    if settings.resume:
        folder = StudyFolder.resume(Path(settings.resume), workload.metric)
        if len(folder.attempts()) != attempts:  # it was not locked when they were read
            folder.close()
            raise InputError(f"--resume {settings.resume}: another run has just written there; look at it again")
        for note in folder.notes:
            console.print(note, markup=False, soft_wrap=True)
        return folder
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
    command: str, options: Mapping[str, Any] | None, data: str, settings: Settings, plan: Plan
) -> dict[str, Any]:
    """What ``study.json`` holds, beside what makes the study the one that it is."""
    packages = ("torch", "ray", "numpy")
    return {
        "command": command,
        "options": options,
        "data": data,
        "settings": dataclasses.asdict(settings),
        "plan": {**dataclasses.asdict(plan), "workers": plan.workers},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _print_end(console: Console, result: StudyResult, metric: str, again: Again, settings: Settings) -> None:
    """The table, how good the estimates were, where the CSV is, and how to have the best trial again."""
    assert result.folder is not None
    console.print(results_table(result.rows, metric))
    lines = [estimate_accuracy(result.rows)] if settings.auto_memory else []
    lines.append(f"results: {result.folder / RESULTS}")
    best = next((row for row in result.rows if row["status"] == "completed"), None)
    if best:
        lines.append(
            f"best: {best['name']}, {metric} {best[metric]:.4f}. Again: {again(best, result.folder, result.plan)}"
        )
    console.print("\n".join(line for line in lines if line), markup=False, soft_wrap=True)
