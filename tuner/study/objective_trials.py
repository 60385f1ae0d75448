"""The trials of a user's Optuna study: answers what objectives ask of them, and tells what they came to."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import fail_stale_trials
from optuna.storages._heartbeat import BaseHeartbeat, is_heartbeat_enabled
from optuna.trial import FrozenTrial, TrialState
from rpds import HashTrieMap

from tuner.decisions import events
from tuner.decisions.constraints import broken, infeasible
from tuner.decisions.state import State
from tuner.errors import InputError, WorkloadError, is_writable
from tuner.records.recorded_study import RecordedStudy
from tuner.records.study_record import Scale
from tuner.search.optuna_trials import OptunaTrials
from tuner.search.searchers import State as Ending
from tuner.study.sampled import Sampled
from tuner.trial import ConfigValue, Outcome, Question, Status
from tuner.values import Condition, plain
from tuner.workloads.optuna_objective import Call, OptunaObjective, Uncaught

OWNER = "tuner"  # the system attribute that says which of our trials an unfinished one is: STUDY/TRIAL
# Optuna takes infinite values, which earlier versions wrote as ``diverged``; a trial without a number fails.
STATES: Mapping[Status, Ending] = {
    "completed": "completed",
    "diverged": "completed",
    "infeasible": "completed",
    "pruned": "pruned",
}
Callback = Callable[[optuna.Study, FrozenTrial], None]


class ObjectiveTrials(OptunaTrials):
    """The Optuna trial of each of our trials. A retry goes on with the same one, and so with its suggestions."""

    asked_by_objectives = True

    def __init__(
        self,
        study: optuna.Study,
        objective: OptunaObjective,
        callbacks: Sequence[Callback] = (),
        timeout: float | None = None,
        study_id: str = "",
    ) -> None:
        """Takes what is called after each trial, the seconds after which no more begin, and a resumed study's id."""
        super().__init__(study)
        self.id = study_id or token_hex(8)
        self._callbacks = callbacks
        self._timeout, self._until = timeout, math.inf
        self._uncaught: dict[str, str] = {}  # what trials raised that is to end the study, by id
        self.fault = ""  # the first of these
        self._values = objective.values
        self._heartbeats: dict[str, Event] = {}  # by trial id; set to end one
        self._begun = False  # whether it has a folder

    def begin(self, folder: Path, ended: HashTrieMap[str, events.Ended]) -> None:
        """Takes up again the trials that a process left unfinished in this folder.

        Of some it had recorded the end, but was killed before it told the study: these are given, by trial id.
        """
        self._begun = True
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Earlier versions had the folder in a user attribute.
            owner = frozen.system_attrs.get(OWNER) or frozen.user_attrs.get(OWNER, "")
            where, _, trial_id = str(owner).rpartition("/")
            if where in (self.id, str(folder.resolve())):
                self._keep(trial_id, optuna.Trial(self.study, frozen._trial_id))
        for trial_id in list(self._trials):
            if end := ended.get(trial_id):
                self._end(trial_id, end.result.status, end.metrics)

    def answer(self, question: Question) -> object:
        """What Optuna's trial answers; raises what it raises."""
        self._count_time()
        call, trial = question.content, self._trial(question.trial_id)
        if isinstance(call, Uncaught):
            self._uncaught[question.trial_id] = call.text
            return None
        assert isinstance(call, Call)
        if not call.allowed:
            raise AttributeError(call.name)
        if call.name == "system_attrs":  # which only a frozen trial has
            return self._frozen(trial).system_attrs
        target = self.study if call.of_study else trial
        if call.arguments is None:
            return getattr(target, call.name)
        # A retry repeats reports.
        if call.name == "report" and call.arguments[1] in self._frozen(trial).intermediate_values:
            return None
        _check_writable([*call.arguments, *(call.keywords or {}).values()])
        answer: object = getattr(target, call.name)(*call.arguments, **(call.keywords or {}))
        return answer

    def hear(self, state: State, event: events.Event) -> None:
        """Begins a trial when it starts, and tells the study what it came to."""
        if isinstance(event, events.Reported | events.Concluded):
            self._count_time()
        if isinstance(event, events.Started):
            self._trial(event.placement.trial.trial_id)
        elif isinstance(event, events.Concluded):
            self._end(event.ended.trial.trial_id, event.ended.result.status, event.ended.metrics)
        elif isinstance(event, events.Dropped):
            self._end(event.outcome.trial.trial_id, event.outcome.status, {})

    def _count_time(self) -> None:
        """Counts the time limit from the first sign of an objective, without the start of workers."""
        if self._timeout is not None and self._until == math.inf:
            self._until = time.monotonic() + self._timeout

    def tell(self, trial_id: str, state: Ending, *values: float | None, excess: Sequence[float] = ()) -> None:
        """A trial has ended, and so does its heartbeat."""
        if trial_id in self._heartbeats:
            self._heartbeats.pop(trial_id).set()
        super().tell(trial_id, state, *values, excess=excess)

    def described(self, outcome: Outcome) -> Outcome:
        """The outcome with its trial's number and suggestions; ``infeasible`` if that breaks a constraint."""
        trial = outcome.trial
        if (suggested := self._trials.get(trial.trial_id)) is None:
            return outcome
        params = {name: plain(value) for name, value in suggested.params.items()}
        outcome = replace(
            outcome, trial=replace(trial, name=named(suggested.number), config={**trial.config, **params})
        )
        return (
            infeasible(outcome, self._broken(self._frozen(suggested))) if outcome.status == "completed" else outcome
        )

    def _broken(self, frozen: FrozenTrial) -> str:
        """Which constraints a trial breaks. The sampler computes its own when the study is told, which is later."""
        sampler, excesses = self.study.sampler, {str(name): value for name, value in frozen.constraints.items()}
        check = getattr(getattr(sampler, "_base_sampler", sampler), "_constraints_func", None)
        with suppress(Exception):  # Optuna raises it again
            excesses.update({str(place): value for place, value in enumerate(check(frozen) if check else ())})
        figures = {f"constraint {name}": value for name, value in excesses.items()}
        return broken([Condition(name, "<=", "0", 0.0) for name in figures], figures)

    def scales(self) -> dict[str, Scale]:
        """The scale of each range that objectives have asked for, by parameter."""
        return {
            name: "log" if distribution.log else "linear"
            for trial in self.study.get_trials(deepcopy=False)
            for name, distribution in trial.distributions.items()
            if isinstance(distribution, FloatDistribution | IntDistribution)
        }

    @property
    def ended_by(self) -> str:
        """Why no more trials begin; empty as long as they do."""
        if self.fault or self.study._stop_flag:
            return self.fault or "as study.stop() was called"
        return "by its timeout" if time.monotonic() >= self._until else ""

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """No values for a new trial, as its objective asks for them itself; None if no more begin.

        Before the study has a folder, it is only foreseen.
        """
        if self.ended_by:
            return None
        if self._begun:
            self._trial(trial_id)
        return {}

    def name_of(self, trial_id: str) -> str:
        """What a trial is called, by the number of the study's next trial before it has one."""
        if trial_id in self._trials:
            return named(self._trials[trial_id].number)
        trials = self.study.get_trials(deepcopy=False)
        return named(next((one.number for one in trials if one.state is TrialState.WAITING), len(trials)))

    def close(self) -> None:
        """Fails the trials that have not ended, as Optuna does."""
        for trial_id in list(self._trials):
            self.tell(trial_id, "failed")
        self.study._thread_local.in_optimize_loop = False

    def _end(self, trial_id: str, status: Status, metrics: Mapping[str, float | None]) -> None:
        trial = self._trial(trial_id)  # one that never asked for anything has its place, too
        uncaught = self._uncaught.pop(trial_id, "")
        self.tell(trial_id, STATES.get(status, "failed"), *(metrics.get(name) for name in self._values))
        if uncaught and status == "failed":
            self.fault = self.fault or f"{named(trial.number)} failed, and catch does not name its {uncaught}"
            return
        for callback in self._callbacks:
            callback(self.study, deepcopy(self._frozen(trial)))

    def _trial(self, trial_id: str) -> optuna.Trial:
        if trial_id not in self._trials:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                self._keep(trial_id, self._ask(f"{self.id}/{trial_id}"))
        return self._trials[trial_id]

    def _ask(self, owner: str) -> optuna.Trial:
        """The study's next trial, which says whose it is.

        ``study.ask`` cannot say so as it makes one. A kill just after that would leave a trial that never ends.
        """
        study = self.study
        if is_heartbeat_enabled(study._storage):
            fail_stale_trials(study)
        if study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):  # the user has enqueued one
            trial = study.ask()
            study._storage.set_trial_system_attr(trial._trial_id, OWNER, owner)
            return trial
        study._thread_local.cached_all_trials = None  # as ``study.ask`` does
        made = optuna.trial.create_trial(state=TrialState.RUNNING, system_attrs={OWNER: owner})
        return optuna.Trial(study, study._storage.create_new_trial(study._study_id, made))

    def _keep(self, trial_id: str, trial: optuna.Trial) -> None:
        """Begins a trial's heartbeat, if the storage asks for one, which ends with the trial.

        So other processes do not take it for one that was lost, also while a retry waits for memory.
        """
        self._trials[trial_id], storage = trial, self.study._storage
        if is_heartbeat_enabled(storage):
            ended = self._heartbeats[trial_id] = Event()
            Thread(target=_beat, args=(storage, trial._trial_id, ended), daemon=True, name="heartbeat").start()


@dataclass(eq=False)
class UsersOptunaStudy(Sampled):
    """A user's own Optuna study, which hears of trials from their objectives."""

    objectives: ObjectiveTrials = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.searcher, ObjectiveTrials)
        self.objectives, self.searcher = self.searcher, None

    def open(self, folder: Path, state: State) -> None:
        """Takes up again the trials that an earlier process left unfinished."""
        self.objectives.begin(folder, state.ended)

    def scales(self) -> dict[str, Scale]:
        """The scale of each range that objectives have asked for, by parameter."""
        return self.objectives.scales()

    def _ended_by(self) -> str:
        return self.objectives.ended_by


def check_has_trials(study: optuna.Study, recorded: RecordedStudy, where: str) -> None:
    """Refuses to resume a folder with a study that lacks trials of it: other trials would get their names."""
    names, study_id = set[str](), recorded.record.id
    for trial in study.get_trials(deepcopy=False):
        owner = trial.system_attrs.get(OWNER, "")
        # Earlier versions had the owner in a user attribute, and no id.
        if not study_id or owner.startswith(f"{study_id}/") or OWNER in trial.user_attrs:
            names |= {named(trial.number), owner}
    for row in recorded.rows:
        if row.status != "interrupted" and not names & {
            row.name,
            f"{study_id}/{row.trial_id}",
        }:  # else it may not be told
            rule = f"study {study.study_name!r} is another one, and lacks its {row.name}"
            raise InputError(f"{where}: {rule}: load its own from an Optuna storage, or leave resume out")


def named(number: int) -> str:
    """What the trial of a number is called."""
    return f"trial-{number}"


def _check_writable(values: Sequence[object]) -> None:
    for value in values:
        if isinstance(value, (list, tuple)):
            _check_writable(value)
        elif isinstance(value, str) and not is_writable(value):
            raise WorkloadError(f"trial: {value!r:.60} has a character 0 or bytes that are not UTF-8: rename it")


def _beat(storage: BaseHeartbeat, number: int, ended: Event) -> None:
    while True:
        with suppress(Exception):  # the database is locked or away; the next one may get through
            storage.record_heartbeat(number)
        if ended.wait(storage.get_heartbeat_interval()):
            return
