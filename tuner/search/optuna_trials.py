"""The one adapter between Optuna's studies and ours."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import optuna
from optuna.samplers import BaseSampler, BruteForceSampler, GPSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from tuner.objective import Direction
from tuner.search.domains import Space, in_optuna, size, suggested
from tuner.search.searchers import Searcher, State, explained
from tuner.trial import ConfigValue

FIRST_UNRUN = 10  # a sampler hears of at most this many more trials that never ran than of others
WIDEST = 10_000  # a range of more integers is one of numbers for a Gaussian process, which would list them all
EXCESS = "constraints"  # the user attribute with what ``excess_of`` returns
STATES: Mapping[State, TrialState] = {"pruned": TrialState.PRUNED, "unfit": TrialState.PRUNED}


class OptunaTrials(Searcher):
    """The trials of an Optuna study, by our ids: what is suggested to them, what they report, and how they end.

    Optuna's own loop is not used. Without a space, trials get no suggestions, and the study's pruner judges them.
    """

    prunes = True

    def __init__(
        self,
        study: optuna.Study,
        space: Space | None = None,
        points: Sequence[Mapping[str, ConfigValue]] = (),
        anew: Callable[[], BaseSampler] | None = None,
    ) -> None:
        """Takes the space to search, the points to suggest first, and a maker of samplers for resumed studies.

        It is called if the study's sampler does not suggest the values of earlier trials again. This thread counts as
        the study's own loop, which samplers end by ``study.stop``.
        """
        self.study, self._anew = study, anew
        study._thread_local.in_optimize_loop, study._stop_flag = True, False
        self._space = space or {}
        self._points = list(points)
        self._most = size(self._space) if isinstance(study.sampler, BruteForceSampler) else math.inf
        self._widest = WIDEST if isinstance(study.sampler, GPSampler) else math.inf
        self._trials: dict[str, optuna.Trial] = {}
        self._ends = False  # whether this sampler is replaced, as it suggests other values than in an earlier process
        self._unrun = 0  # trials that never ran as they break constraints, less those with a value
        self._stopped: dict[str, int] = {}  # after which epoch the pruner stopped a trial

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """Values for a new trial, without keys whose conditions do not hold; None if the sampler has no more."""
        if self.study._stop_flag or len(self.study.get_trials(deepcopy=False)) >= self._most:
            return None
        if self._ends and self._anew:
            self.study.sampler, self._ends = self._anew(), False
        return self._asked(trial_id)

    def recall(self, trial_id: str, values: Mapping[str, ConfigValue]) -> None:
        """Adds a trial of an earlier process; its reports and its end follow.

        The sampler suggests again, which restores its state. If it suggests other values, the trial keeps its earlier
        values, and a new sampler continues.
        """
        sampler, params = self.study.sampler, in_optuna(self._space, values)
        fits = isinstance(sampler, GPSampler)  # it would fit a model for values that are known
        self.study.sampler = RandomSampler() if fits else sampler
        suggestion = self._asked(trial_id, params)
        self.study.sampler = sampler
        if in_optuna(self._space, suggestion).items() <= params.items():
            return
        if not (fits or self._ends):
            name, goes_on = type(sampler).__name__, "it is told the earlier trials, and goes on with another seed"
            self.differs = f"search: {name} suggests other values now than {trial_id} had: {goes_on}"
        self._ends = True
        number, storage = self._trials[trial_id]._trial_id, self.study._storage
        frozen = storage.get_trial(number)
        frozen.params, frozen.distributions = {}, {}
        storage.set_trial_system_attr(number, "fixed_params", params)  # as ``study.enqueue_trial`` does
        self._trials[trial_id] = optuna.Trial(self.study, number)
        suggested(self._trials[trial_id], self._space, self._widest)

    def report(self, trial_id: str, epoch: int, value: float) -> bool:
        """Takes a trial's metric after an epoch, and returns whether the pruner stops the trial.

        If a retry repeats the epoch, the first metric counts. A trial whose attempt ended before it could be stopped
        is stopped when a retry reaches that epoch.
        """
        trial = self._trials.get(trial_id)
        if trial is not None and epoch not in self._frozen(trial).intermediate_values:
            trial.report(value, epoch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna's, about trials with different epochs
                if trial_id not in self._stopped and trial.should_prune():
                    self._stopped[trial_id] = epoch
        return self._stopped.get(trial_id, math.inf) <= epoch

    def tell(self, trial_id: str, state: State, *values: float | None, excess: Sequence[float] = ()) -> None:
        """A trial has ended, with its metric or, of several objectives, their values.

        A sampler that knows constraints also gets the values of trials that break them. Trials that never ran are
        reported only in limited numbers: TPE would prefer them while few trials keep the constraints.
        """
        if (trial := self._trials.pop(trial_id, None)) is None:
            return  # it was too large in an earlier process, which told so
        if excess:
            trial.set_user_attr(EXCESS, [*excess])
        numbers = [value for value in values if value is not None and not math.isnan(value)]
        if any(excess) and getattr(self.study.sampler, "_constraints_func", None) is excess_of:
            state = "completed" if numbers else "unfit" if self._unrun <= FIRST_UNRUN else "failed"
            self._unrun += not numbers
        self._unrun -= bool(numbers)
        if state == "completed" and numbers and len(numbers) == len(values):
            self.study.tell(trial, numbers)
        else:
            self.study.tell(trial, state=STATES.get(state, TrialState.FAIL))

    def _asked(self, trial_id: str, params: Mapping[str, ConfigValue] | None = None) -> Mapping[str, ConfigValue]:
        point = in_optuna(self._space, self._points[0]) if self._points else {}
        if point and (params is None or point.items() <= params.items()):
            self.study.enqueue_trial(point)
            self._points.pop(0)
        with explained(type(self.study.sampler).__name__, self._space):
            trial = self._trials[trial_id] = self.study.ask()
            return suggested(trial, self._space, self._widest)

    def _frozen(self, trial: optuna.Trial) -> FrozenTrial:
        return self.study._storage.get_trial(trial._trial_id)


def excess_of(trial: FrozenTrial) -> list[float]:
    """By how much a trial breaks each constraint, for Optuna's samplers."""
    excess: list[float] = trial.user_attrs.get(EXCESS, [])
    return excess


def new_study(
    sampler: BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    directions: Sequence[Direction] = ("minimize",),
) -> optuna.Study:
    """An Optuna study in memory. Hyperband's brackets follow from its name, which is therefore always the same."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = pruner or optuna.pruners.NopPruner()  # Optuna's default is the median
    return optuna.create_study(study_name="tuner", directions=directions, sampler=sampler, pruner=pruner)
