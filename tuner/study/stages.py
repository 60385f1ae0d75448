"""The stages between selection and execution: each takes a frozen value and returns the next one.

    Selected ──load──► Loaded ──estimate──► Estimated ──place──► Placed ──execute──► rows

``study.py`` has the order. ``tuner plan`` and a dry run stop at ``Placed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, option
from tuner.placement.packing import Plan
from tuner.placement.simulation import expected_seconds
from tuner.records.attempts import Attempt
from tuner.records.epochs import read_epochs
from tuner.records.files import ATTEMPTS, EPOCHS
from tuner.records.journal import read_attempts
from tuner.records.study_folder import check_unused
from tuner.records.study_record import UNKNOWN, Scale, StudyRecord, read_study
from tuner.reporting import phases
from tuner.spec.settings import Settings
from tuner.study.auto_batch import SizedTrials, packed_uniformly, size_batches
from tuner.study.live_search import LiveSearch, first_suggestions, fitting
from tuner.study.planning import Estimates, Whole, check_estimate, plan_requests, to_trials, usable, whole_of
from tuner.study.resume import check_same, description, ended, remaining, with_batches_of
from tuner.trial import Device, Objective, Request, Trial, is_auto
from tuner.workloads.task import Selection, Tasks, load_tasks, objectives_of, smaller

if TYPE_CHECKING:
    from tuner.study.objective_trials import ObjectiveTrials


@dataclass(frozen=True)
class Selected:
    """What is to be tried, and who asked for it."""

    selections: Sequence[Selection]  # what to try of each workload, in the order in which trials are numbered
    settings: Settings
    label: str = ""  # ends the default folder's name: the mode
    command: str = ""  # what the user called
    # The options of ``tuner run`` that make this study, with which it is resumed; None if the call alone does.
    options: Mapping[str, object] | None = None
    # Suggests trials as others end; those in ``selections`` are what it suggested before.
    live: LiveSearch | None = None
    scales: Mapping[str, Scale] = field(default_factory=dict)  # of the ranges in the space, by hyperparameter
    optuna: ObjectiveTrials | None = None  # of a user's own Optuna study, whose trials these are
    shows_end: bool = False  # tables, advice and how to repeat the best trial are printed
    returns_table: bool = False  # the caller returns a table that a notebook shows, so that none is printed there
    from_python: bool = False  # the user called a function, so that texts name its parameters


@dataclass(frozen=True, kw_only=True)
class Loaded(Selected):
    """A selection with its data sets loaded."""

    tasks: Tasks  # the workloads with their data
    trials: Sequence[Trial]  # all that are known from the start
    record: StudyRecord = UNKNOWN  # what ``study.json`` says of the study that is resumed
    attempts: Sequence[Attempt] = ()  # the lines of its journal

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """What trials are compared by, by workload."""
        return objectives_of(self.tasks)


@dataclass(frozen=True, kw_only=True)
class Estimated(Loaded):
    """A loaded study with each trial's estimated needs."""

    devices: tuple[Device, ...]  # where trials may run
    sized: SizedTrials  # the trials, each with a batch that is a number, and their estimates


@dataclass(frozen=True, kw_only=True)
class Placed(Estimated):
    """An estimated study with a plan."""

    plan: Plan  # how the trials share the devices
    requests: Sequence[Request] = ()  # the trials that are left to run
    misfits: Sequence[Request] = ()  # those that fit no device and are left out
    seconds: float | None = None  # how long they are expected to take together; None if unknown

    @property
    def tried(self) -> Sequence[Trial]:
        """The trials that are known so far."""
        return self.live.trials if self.live else self.sized.trials

    @property
    def estimates(self) -> Estimates:
        """The estimates of the trials that are known so far."""
        return self.live.estimates if self.live else self.sized.estimates

    @property
    def whole(self) -> Whole:
        """The upper bounds of a trial's memory."""
        return whole_of(self.devices, self.settings)


def load(selected: Selected) -> Loaded:
    """Loads the data, and the record and the journal of a resumed study.

    Raises:
        InputError: data cannot be read, do not serve a configuration, or are not the resumed study's.
    """
    settings = selected.settings
    check_estimate(settings, [selection.workload for selection in selected.selections])
    folder = settings.resume
    record = read_study(Path(folder), option("resume", folder)) if folder else UNKNOWN
    if folder and not settings.dry_run:
        check_unused(Path(folder))  # a plan of what cannot begin would be for nothing
    trials = to_trials(selected.selections, settings)
    if record.auto_batch or any(is_auto(trial.config) for trial in trials):
        settings = packed_uniformly(settings)
    trials, attempts = with_batches_of(record, trials), list[Attempt]()
    phases.show("loading data")
    tasks = load_tasks(selected.selections)
    if folder:
        check_same(record, description(tasks, trials, settings), folder)
        attempts = read_attempts(Path(folder) / ATTEMPTS, record.workloads)[0]
        _check_ids(attempts, trials, Path(folder))
    if selected.live:
        selected.live.settings = settings
    before = {**_values(selected), "settings": settings}
    return Loaded(**before, tasks=tasks, trials=trials, record=record, attempts=attempts)


def estimate(loaded: Loaded, devices: Sequence[Device]) -> Estimated:
    """Estimates each trial's needs on these devices, and finds every batch that is ``auto``."""
    mine = usable(devices, loaded.settings)
    sized = size_batches(loaded.tasks, loaded.trials, mine, loaded.settings)
    return Estimated(**_values(loaded), devices=mine, sized=sized)


def place(estimated: Estimated) -> Placed:
    """Plans the trials that are left, or all of them if none is. A live search suggests its first trials."""
    tasks, settings, devices, live = estimated.tasks, estimated.settings, estimated.devices, estimated.live
    whole = whole_of(devices, settings)
    requests = estimated.sized.estimates.requests
    shrink = partial(smaller, tasks)
    left = remaining(requests, estimated.attempts, settings.retry_policy, whole=whole, smaller=shrink)
    if live:
        epochs = read_epochs(Path(settings.resume or "") / EPOCHS)
        live.recall(estimated.trials, ended(estimated.attempts, left), epochs)
        live.estimates = estimated.sized.estimates
        left += first_suggestions(live, left, tasks, devices, whole)
    fit, misfits = fitting(left, whole, tasks, settings) if settings.search or settings.skip_too_large else (left, [])
    before = _values(estimated)
    if fit:
        more = len(fit) + live.left if live else 0
        plan, served = plan_requests(tasks, fit, devices, settings, more)
        seconds = expected_seconds(served, plan, more)
        return Placed(**before, plan=plan, requests=served, misfits=misfits, seconds=seconds)
    if misfits and not estimated.attempts:
        smallest = min(misfits, key=lambda request: request.need_bytes)
        plan_requests(tasks, [smallest], devices, settings)  # says why it does not fit
    shown = [
        replace(
            request,
            need_bytes=min(request.need_bytes, whole.device_bytes),
            host_bytes=min(request.host_bytes, whole.ram_bytes),
        )
        for request in requests
    ]
    return Placed(**before, plan=plan_requests(tasks, shown, devices, settings)[0], misfits=misfits)


def _check_ids(attempts: Sequence[Attempt], trials: Sequence[Trial], folder: Path) -> None:
    """Refuses a journal with another study's trials, as their names would be used to remove files."""
    known = {trial.trial_id for trial in trials}
    for row in attempts:
        if row.trial_id not in known:
            raise InputError(
                f"{folder / ATTEMPTS}: trial_id is {row.trial_id!r:.60}; the study has no such trial; remove its line"
            )


def _values(stage: Selected) -> dict[str, Any]:
    """The fields of a stage, for the next stage."""
    return {part.name: getattr(stage, part.name) for part in fields(stage)}
