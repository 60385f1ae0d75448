"""The trials of a user's Optuna study: answers what objectives ask of them, and tells what they came to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.trial import TrialState

from tuner.errors import ParameterError
from tuner.execution.loop import Executor
from tuner.spec.commands import OptunaOptions
from tuner.spec.settings import Settings
from tuner.study.planning import with_learning
from tuner.study.result import StudyResult
from tuner.study.stages import Selected
from tuner.study.study import run_study
from tuner.trial import Configuration, Direction, Objective, Outcome, Question, Trial
from tuner.workloads.optuna_objective import ATTRIBUTES, CALLS, VALUE, Call, OptunaObjective
from tuner.workloads.task import Selection

CALL = "tuner.optuna.optimize"
OWNER = "tuner"  # the user attribute that says which of our trials an unfinished one is


def run_objective(options: OptunaOptions, executor: Executor | None = None) -> StudyResult:
    """Runs the trials of ``tuner.optuna.optimize``."""
    study, number = options.study, options.n_trials
    if not isinstance(study, optuna.Study):
        raise ParameterError("study", f"a {type(study).__name__}", "must be an optuna.Study", "optuna.create_study()")
    if number < 1:
        raise ParameterError("n_trials", number, "must be at least 1")
    directions = [direction.name.lower() for direction in study.directions]
    names = [VALUE] if len(directions) == 1 else [f"{VALUE}_{place}" for place in range(len(directions))]
    objective = OptunaObjective(options.objective, names)
    settings = with_learning(Settings.of(options.given()), [objective])
    listed = [Configuration(f"trial-{place}", {}) for place in range(1, number + 1)]
    compared = Objective(names[0], cast("Direction", directions[0]))
    selected = Selected(
        [Selection(objective, lambda: None, listed, compared)],
        settings,
        label="optuna",
        command=f"{CALL}(…)",
        optuna=OptunaTrials(study, objective),
        shows_end=True,
        from_python=True,
    )
    return run_study(selected, executor)


class OptunaTrials:
    """The Optuna trial of each of our trials. A retry goes on with the same one, and so with its suggestions."""

    def __init__(self, study: optuna.Study, objective: OptunaObjective) -> None:
        self._study = study
        self._values = objective.values
        self._trials: dict[str, optuna.Trial] = {}
        self._folder = ""

    def begin(self, folder: Path) -> None:
        """Takes up again the trials that a process left unfinished in this folder."""
        self._folder = str(folder.resolve())
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            where, _, trial_id = str(frozen.user_attrs.get(OWNER, "")).rpartition("/")
            if where == self._folder:
                self._trials[trial_id] = optuna.Trial(self._study, frozen._trial_id)

    def answer(self, question: Question) -> object:
        """What Optuna's trial answers; raises what it raises."""
        call, trial = question.content, self._trial(question.trial_id)
        assert isinstance(call, Call)
        if call.arguments is None:
            if call.name not in ATTRIBUTES:
                raise AttributeError(call.name)
            return getattr(trial, call.name)
        if call.name not in CALLS:
            raise AttributeError(call.name)
        # A retry repeats reports.
        if call.name == "report" and call.arguments[1] in self._frozen(trial).intermediate_values:
            return None
        answered: object = getattr(trial, call.name)(*call.arguments, **(call.keywords or {}))
        return answered

    def ended(self, outcome: Outcome) -> None:
        """Tells the study what a trial came to."""
        trial = self._trial(outcome.trial.trial_id)  # one that never asked for anything has its place, too
        del self._trials[outcome.trial.trial_id]
        values = [outcome.metrics.get(name, math.nan) for name in self._values]
        if outcome.status == "completed" and not any(map(math.isnan, values)):
            self._study.tell(trial, values)
        else:
            state = TrialState.PRUNED if outcome.status == "pruned" else TrialState.FAIL
            self._study.tell(trial, state=state)

    def described(self, trial: Trial) -> Trial:
        """The trial with the parameters that were suggested to it, for its row."""
        asked = self._trials.get(trial.trial_id)
        return trial if asked is None else replace(trial, config={**trial.config, **dict(_plain(asked))})

    def close(self) -> None:
        """Fails the trials that have not ended, as Optuna does."""
        for trial in self._trials.values():
            self._study.tell(trial, state=TrialState.FAIL)
        self._trials.clear()

    def _trial(self, trial_id: str) -> optuna.Trial:
        if trial_id not in self._trials:
            self._trials[trial_id] = self._study.ask()
            self._trials[trial_id].set_user_attr(OWNER, f"{self._folder}/{trial_id}")
        return self._trials[trial_id]

    def _frozen(self, trial: optuna.Trial) -> Any:
        return self._study._storage.get_trial(trial._trial_id)


def _plain(trial: optuna.Trial) -> Iterator[tuple[str, Any]]:
    for name, value in trial.params.items():
        yield name, value if type(value) in (int, float, str) else str(value)
