"""A search that suggests trials while others run, each estimated as it comes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.errors import InputError, option
from tuner.estimation.service import memory_key
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine
from tuner.reporting.texts import count_text
from tuner.search.drawing import MAX_REJECTED_DRAWS
from tuner.search.searchers import Searcher, State
from tuner.spec.settings import Settings
from tuner.study.planning import Estimates, Whole, estimate_requests, fits, to_trials, within
from tuner.study.selection import configurations_of
from tuner.trial import GB, Configuration, Device, Objective, Request, Status, Trial
from tuner.workloads.base import Trainable
from tuner.workloads.protocols import check, prerequisites
from tuner.workloads.task import Selection, Tasks

ESTIMATES = 8  # so many suggestions in a row may be of a footprint that cannot be estimated
FIRST = 8  # so many suggestions are asked for before anything runs, to plan by; with fewer workers only so many
STATES: Mapping[Status, State] = {
    "completed": "completed",
    "pruned": "pruned",
    "diverged": "unfit",
    "too_large": "unfit",
    "out_of_memory": "unfit",
}


@dataclass
class LiveSearch:
    """Suggests a study's trials."""

    workload: Trainable  # what they train
    searcher: Searcher  # what suggests values
    fixed: Mapping[str, object]  # values of all of them
    settings: Settings  # the study's
    objective: Objective  # what they are compared by
    trials: list[Trial] = field(default_factory=list)  # those suggested so far, in the order of their ids
    estimates: Estimates = field(default_factory=Estimates)  # of all trials of the study so far
    fault: str = ""  # why the last suggestion could not be used; empty if it could
    refused: dict[tuple[object, ...], str] = field(
        default_factory=dict
    )  # why no footprint could be estimated, by ``memory_key``

    @property
    def left(self) -> int:
        """How many more it may suggest."""
        return (self.settings.num_samples or 0) - len(self.trials)

    def next(self, data: object) -> Trial | None:
        """The next suggestion that can be used; None if there is none, now or ever.

        Values that do not go together are told to the searcher as such, and are no trial.
        """
        for _ in range(MAX_REJECTED_DRAWS if self.left > 0 else 0):
            number = len(self.trials) + 1
            trial_id = f"t{number:0{max(3, len(str(self.settings.num_samples)))}d}"
            values = self.searcher.ask(trial_id)
            if values is None:
                return None
            try:
                found = to_configuration(self.workload, {**self.fixed, **values}, f"suggestion-{number}")
                _refuse_prerequisites(self.workload, found)
                check(self.workload, [found], data)
                (trial,) = to_trials([_selection(self.workload, [found])], self.settings)
            except InputError as error:
                self.fault = str(error)
                self.searcher.tell(trial_id, "unfit")
                continue
            self.trials.append(replace(trial, trial_id=trial_id))
            self.fault = ""
            return self.trials[-1]
        return None

    def refuse(self, trial: Trial, reason: str) -> None:
        """The last suggestion cannot be used either, for this reason: it is told so, and is no trial."""
        self.trials.remove(trial)
        self.fault = reason
        self.searcher.tell(trial.trial_id, "unfit")

    def ended_early(self) -> str:
        """A line on why there are fewer trials than it might have suggested; empty if there are not."""
        if not self.left:
            return ""
        number, why = self.settings.num_samples, f", the last one because of {self.fault}" if self.fault else ""
        trials = f"{len(self.trials)} of {count_text(number or 0, 'trial')}"
        return f"search: ended after {trials}, as it suggests none that can be used{why}"

    def recall(self, trials: Sequence[Trial], ended: Mapping[str, Attempt], epochs: Iterable[EpochLine]) -> None:
        """Tells the searcher again what it suggested before this process began, and what came of it."""
        self.trials = list(trials)
        replay(self.searcher, trials, ended, list(epochs), self.objective)


def replay(
    searcher: Searcher,
    trials: Sequence[Trial],
    ended: Mapping[str, Attempt],
    epochs: Sequence[EpochLine],
    objective: Objective,
) -> None:
    """Tells a searcher of trials of an earlier process: first of those that have ended, each with its end.

    What the others have reported follows, so that a pruner judges them by all that is known.
    """
    reports: dict[str, list[EpochLine]] = {}
    for line in epochs:
        reports.setdefault(line.trial_id, []).append(line)
    for trial in trials:
        searcher.recall(trial.trial_id, trial.config)
        if row := ended.get(trial.trial_id):
            for line in reports.get(trial.trial_id, []):
                report(searcher, line.trial_id, line.epoch, line.metrics, objective)
            searcher.tell(row.trial_id, STATES.get(row.status, "failed"), row.metrics.get(objective.metric))
    left = {trial.trial_id for trial in trials} - ended.keys()
    for line in epochs:
        if line.trial_id in left:
            report(searcher, line.trial_id, line.epoch, line.metrics, objective)


def report(
    searcher: Searcher, trial_id: str, epoch: int, metrics: Mapping[str, float | None], objective: Objective
) -> bool:
    """Tells a searcher what a trial is compared by, if it reports that; whether the trial is to be stopped."""
    if epoch == 0 or objective.metric not in metrics:
        return False
    value = metrics[objective.metric]
    return searcher.report(trial_id, epoch, math.nan if value is None else value)


def fitting(
    requests: Sequence[Request], whole: Whole, tasks: Tasks, settings: Settings
) -> tuple[list[Request], list[Request]]:
    """The requests that some device can serve, and those that none can."""
    fit = [fits(within(request, whole, tasks, settings), whole) for request in requests]
    return (
        [request for request, has_room in zip(requests, fit, strict=True) if has_room],
        [request for request, has_room in zip(requests, fit, strict=True) if not has_room],
    )


def misfit_text(request: Request, whole: Whole) -> str:
    """Why a trial was not run."""
    if request.need_bytes <= whole.device_bytes:
        need, most = request.host_bytes / GB, whole.ram_bytes / GB
        return f"not run: needs {need:.2f} GB of RAM, and no machine has more than {most:.2f} GB for it"
    need, most = request.need_bytes / GB, whole.device_bytes / GB
    return f"not run: needs {need:.2f} GB, and no device has more than {most:.2f} GB for it"


def first_suggestions(
    live: LiveSearch,
    left: Sequence[Request],
    tasks: Tasks,
    devices: Sequence[Device],
    whole: Whole,
) -> list[Request]:
    """What a live search suggests before anything runs, so that there is something to plan by."""
    settings = live.settings
    found: list[Request] = []
    fit = len(fitting(left, whole, tasks, settings)[0])
    while fit < min(FIRST, settings.max_workers or FIRST) and (request := suggested(live, tasks, devices)):
        found.append(request)
        fit += bool(fitting([request], whole, tasks, settings)[0])
    if not live.trials:
        why = live.fault or "it suggests nothing"
        raise InputError(f"{option('search', settings.search)}: none of its suggestions can be used: {why}")
    return found


def suggested(live: LiveSearch, tasks: Tasks, devices: Sequence[Device]) -> Request | None:
    """The request of the next suggestion whose footprint can be estimated; None if there is none.

    Its estimate is added to the search's. A model that cannot be built of some values must not end the trials of
    others.
    """
    for _ in range(ESTIMATES):
        trial = live.next(tasks[live.workload.name].data)
        if trial is None:
            return None
        key = memory_key(trial.config)
        if key not in live.refused:
            try:
                found = _estimated(trial, live, tasks, devices)
                live.estimates = live.estimates.with_more(found)
                return found.requests[0]
            except InputError as error:
                live.refused[key] = str(error)
        live.refuse(trial, live.refused[key])
    return None


def _estimated(trial: Trial, live: LiveSearch, tasks: Tasks, devices: Sequence[Device]) -> Estimates:
    """What a suggested trial will need; one that takes the same memory as an earlier one needs what that one does."""
    key = memory_key(trial.config)
    for earlier in live.estimates.requests:
        if memory_key(earlier.trial.config) == key:
            raw = live.estimates.raw[earlier.trial.trial_id]
            return Estimates((replace(earlier, trial=trial),), {trial.trial_id: raw})
    return estimate_requests({trial.workload: tasks[trial.workload]}, [trial], devices, live.settings)


def to_configuration(workload: Trainable, values: Mapping[str, object], name: str) -> Configuration:
    """The complete configuration of some values.

    Raises:
        InputError: the workload does not allow them, they do not go together, or something must be trained first.
    """
    (found,) = configurations_of(workload, [{**values, "name": name}], "a suggestion")
    _selection(workload, [found])
    return found


def _refuse_prerequisites(workload: Trainable, found: Configuration) -> None:
    for key, wanted in prerequisites(workload, found.values).items():
        raise InputError(
            f"{wanted.name} must be trained first: do that, and give the path by {option('overrides', f'{key}=PATH')}"
        )


def _selection(workload: Trainable, listed: Sequence[Configuration]) -> Selection:
    return Selection(workload, lambda: None, listed)
