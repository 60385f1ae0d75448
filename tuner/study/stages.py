"""The stages between selection and execution: each takes one of these values and returns the next, which adds to it.

    Selected ──load──► Loaded ──estimate──► Estimated ──place──► Placed ──execute──► rows

``study.py`` has the order. A plan and a dry run go the same way and end with ``Placed``.
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
from tuner.study.alternatives import alternatives
from tuner.study.auto_batch import SizedTrials, packed_uniformly, size_batches
from tuner.study.live_search import LiveSearch, first_suggestions, fitting
from tuner.study.planning import Estimates, Whole, check_estimate, plan_requests, to_trials, usable, whole_of
from tuner.study.resume import check_same, description, ended, remaining, with_batches_of
from tuner.trial import Device, Objective, Request, Trial, is_auto
from tuner.workloads.task import Selection, Tasks, load_tasks, objectives_of, smaller

if TYPE_CHECKING:
    from tuner.study.optuna_trials import OptunaTrials


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
    optuna: OptunaTrials | None = None  # of a user's own Optuna study, whose trials these are
    shows_end: bool = False  # tables, advice and how to repeat the best trial are printed
    returns_table: bool = False  # the caller returns a table that a notebook shows, so that none is printed there
    from_python: bool = False  # the user called a function, so that texts name its parameters


@dataclass(frozen=True, kw_only=True)
class Loaded(Selected):
    """The same with data."""

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
    """The same with what each trial will need."""

    devices: tuple[Device, ...]  # where trials may run
    sized: SizedTrials  # the trials, each with a batch that is a number, and their estimates


@dataclass(frozen=True, kw_only=True)
class Placed(Estimated):
    """The same with a plan."""

    plan: Plan  # how the trials share the devices
    requests: Sequence[Request] = ()  # the trials that are left to run
    misfits: Sequence[Request] = ()  # those that fit no device and are left out
    seconds: float | None = None  # how long they are expected to take together; None if unknown
    alternatives: Sequence[str] = ()  # how long other ways to train would take, a line for each workload that has any

    @property
    def tried(self) -> Sequence[Trial]:
        """The trials that are known by now."""
        return self.live.trials if self.live else self.sized.trials

    @property
    def estimates(self) -> Estimates:
        """What the trials that are known by now are expected to take."""
        return self.live.estimates if self.live else self.sized.estimates

    @property
    def whole(self) -> Whole:
        """The most that a trial can be given."""
        return whole_of(self.devices, self.settings)


def load(selected: Selected) -> Loaded:
    """Loads the data, and what is left of the study that is resumed.

    Raises:
        InputError: data cannot be read, do not serve a configuration, or are not those of the study that is resumed.
    """
    settings = selected.settings
    check_estimate(settings, [each.workload for each in selected.selections])
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
    """Finds what each trial will need on these devices, and the batches that are to be found."""
    mine = usable(devices, loaded.settings)
    sized = size_batches(loaded.tasks, loaded.trials, mine, loaded.settings)
    return Estimated(**_values(loaded), devices=mine, sized=sized)


def place(estimated: Estimated) -> Placed:
    """Plans the trials that are left; if there are none, all of them. A live search is asked for its first trials."""
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
        seconds, others = expected_seconds(served, plan, more), alternatives(tasks, served, devices[0], settings)
        return Placed(**before, plan=plan, requests=served, misfits=misfits, seconds=seconds, alternatives=others)
    if misfits and not estimated.attempts:
        plan_requests(tasks, [min(misfits, key=lambda each: each.need_bytes)], devices, settings)  # says why not
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
    """Refuses a journal with another study's trials: files of that name would be removed with theirs."""
    known = {trial.trial_id for trial in trials}
    for row in attempts:
        if row.trial_id not in known:
            raise InputError(
                f"{folder / ATTEMPTS}: trial_id is {row.trial_id!r:.60}; the study has no such trial; remove its line"
            )


def _values(stage: Selected) -> dict[str, Any]:
    """What a stage knows, for the next one."""
    return {each.name: getattr(stage, each.name) for each in fields(stage)}
