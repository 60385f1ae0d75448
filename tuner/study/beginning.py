"""What a study begins with: its plan, what it goes on with, its folder and what is written there first."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.placement.packing import Plan
from tuner.records.attempts import Attempt
from tuner.records.epochs import read_epochs
from tuner.records.files import ATTEMPTS, EPOCHS
from tuner.records.journal import read_attempts
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import PlanRecord, StudyRecord
from tuner.reporting.plan_text import estimates_text, monitoring_text, plan_text
from tuner.spec.settings import Settings
from tuner.study.auto_batch import Sized
from tuner.study.live_search import LiveSearch, first_suggestions, fitting
from tuner.study.planning import Estimates, plan_requests, whole_bytes
from tuner.study.resume import check_same, ended, listed, remaining, with_more_samples, with_more_seeds
from tuner.study.stored_options import how_it_runs
from tuner.trial import Device, Request, Status, Trial, title
from tuner.workloads.lookup import classes_of
from tuner.workloads.task import Tasks, accumulated, describe, metrics_of

if TYPE_CHECKING:
    from rich.console import Console


def earlier_attempts(settings: Settings, study: StudyRecord, described: StudyRecord) -> list[Attempt]:
    """The journal of the study that is gone on with; empty for a new one.

    Raises:
        InputError: it is of something else.
    """
    if not settings.resume:
        return []
    check_same(study, described, settings.resume)
    return read_attempts(Path(settings.resume) / ATTEMPTS, study.workloads)[0]


def plan_left(
    tasks: Tasks,
    estimates: Estimates,
    trials: Sequence[Trial],
    attempts: Sequence[Attempt],
    devices: Sequence[Device],
    settings: Settings,
    live: LiveSearch | None,
) -> tuple[Plan, list[Request], list[Request]]:
    """The plan for the trials that are left, these, and those of a search that fit no device.

    Only where nothing is left, the plan is one for all of them. A live search is asked for its first trials.
    """
    whole = whole_bytes(devices, settings)
    policy, requests = settings.retry_policy, estimates.requests
    left = remaining(requests, attempts, policy, whole_bytes=whole, accumulated=partial(accumulated, tasks))
    if live:
        live.recall(trials, ended(attempts, left), read_epochs(Path(settings.resume or "") / EPOCHS))
        live.estimates = estimates
        left += first_suggestions(live, left, tasks, devices, whole)
    fit, misfits = fitting(left, whole, tasks, settings) if settings.search else (left, [])
    if fit:
        more = len(fit) + live.left if live else 0
        return *plan_requests(tasks, fit, devices, settings, more), misfits
    if misfits and not attempts:
        plan_requests(tasks, [min(misfits, key=lambda each: each.need_bytes)], devices, settings)  # says why not
    shown = [replace(request, need_bytes=min(request.need_bytes, whole)) for request in requests]
    return plan_requests(tasks, shown, devices, settings)[0], [], misfits


def print_beginning(
    console: Console,
    plan: Plan,
    requests: Sequence[Request],
    attempts: Sequence[Attempt],
    tasks: Tasks,
    sized: Sized,
    live: LiveSearch | None,
) -> None:
    """The plan, and what a search adds to it; where nothing is left to do, what would run trials again."""
    lines = [plan_text(plan, requests, describe(tasks), str(sized))]
    if live and live.left:
        lines.append(_search_text(live))
    if not requests:
        lines += _given_up_lines(attempts)
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def print_needs(console: Console, tasks: Tasks, requests: Sequence[Request]) -> None:
    """What each configuration will need, if any are left; it is the same for all of its seeds."""
    several = len(tasks) > 1
    listed = {title(each.trial.workload, each.trial.name, several=several): each.estimate for each in requests}
    if listed:
        console.print(estimates_text(list(listed.items())), markup=False, soft_wrap=True)


def print_monitoring(console: Console, plan: Plan, requests: Sequence[Request]) -> None:
    """What shows the devices' memory while the trials run, if any are left."""
    if requests and (watch := monitoring_text(plan)):
        console.print(watch, markup=False, soft_wrap=True)


def open_folder(settings: Settings, tasks: Tasks, label: str, attempts: int, console: Console) -> StudyFolder:
    """The folder that was asked for, that of the study that is gone on with, or a new one that no other study has."""
    if settings.resume:
        folder = StudyFolder.resume(Path(settings.resume), metrics_of(tasks))
        if len(folder.attempts()) != attempts:  # it was not locked when they were read
            folder.close()
            raise InputError(f"--resume {settings.resume}: another run has just written there; look at it again")
        for note in folder.notes:
            console.print(note, markup=False, soft_wrap=True)
        return folder
    if settings.output:
        return StudyFolder(Path(settings.output), metrics_of(tasks))
    base = Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{'+'.join(tasks)}-{label}"
    number, path = 1, base
    while True:
        try:
            return StudyFolder(path, metrics_of(tasks), new=True)
        except FileExistsError:
            number += 1
            path = base.with_name(f"{base.name}-{number}")


def describe_study(
    folder: StudyFolder,
    study: StudyRecord,
    described: StudyRecord,
    tried: Sequence[Trial],
    sized: Sized,
    plan: Plan,
    tasks: Tasks,
    settings: Settings,
    live: LiveSearch | None,
) -> StudyRecord:
    """Writes what ``study.json`` says of a study that begins; of one that is gone on with, where that has changed.

    Args:
        folder: the study's.
        study: what its ``study.json`` says.
        described: what makes the study the one that it is, with the command and the options that the user called.
        tried: the trials that are known by now.
        sized: the batches that were found for them.
        plan: how they share the devices.
        tasks: the workloads with their data.
        settings: the study's.
        live: suggests trials as others end.

    Returns:
        What it says now.
    """
    configurations = listed(tried, several=len(tasks) > 1)
    if not settings.resume:
        about = _begun(replace(described, configurations=configurations), sized, plan, tasks, settings)
    elif live or len(configurations) > len(study.configurations):
        about = with_more_samples(replace(study, configurations=configurations), settings.num_samples)
    elif settings.seeds > study.seeds:
        about = with_more_seeds(study, tried, settings.seeds)
    else:
        return study
    folder.describe(about)
    return about


def _begun(described: StudyRecord, sized: Sized, plan: Plan, tasks: Tasks, settings: Settings) -> StudyRecord:
    """What ``study.json`` says of a study that begins."""
    packages = ("torch", "ray", "numpy")
    return replace(
        described,
        auto_batch=sized.by_trial(),
        classes=classes_of([task.workload for task in tasks.values()]),
        metrics=metrics_of(tasks),
        data=describe(tasks),
        settings=how_it_runs(settings),
        plan=PlanRecord(**vars(plan), workers=plan.workers),
        versions={"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _search_text(live: LiveSearch) -> str:
    """A line: what a live search adds to the plan."""
    return (
        f"{'search':<10} {live.settings.search_name}: {live.left} more trials are suggested as there is room for "
        "them, "
        "and planned for as if they were like these"
    )


def _given_up_lines(attempts: Sequence[Attempt]) -> list[str]:
    """What would run the trials of a finished study again that did not end well; none if all did."""
    last = Counter({row.trial_id: row.status for row in attempts}.values())
    remedies: dict[Status, str] = {
        "out_of_memory": "--on-oom grow, a larger --max-attempts or more memory runs them again",
        "failed": "--max-failures 1 runs them again",
    }
    return [f"{last[status]} {status}: {remedy}" for status, remedy in remedies.items() if last[status]]
