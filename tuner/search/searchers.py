"""What suggests the next values by what came of those before: Optuna's samplers, and any searcher of Ray Tune.

Neither's loop is used: a searcher is asked for values when there is room for a trial, and told what came of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from tuner.errors import InputError
from tuner.search.domains import Domain, Space

# How a trial ended, as searchers know it. One that a scheduler stopped is "pruned". One that diverged, ran out of all
# memory or fits no device is "unfit": worse than all others, whatever its metric was before, which is worth knowing.
# One that broke says nothing of its values and has "failed".
State = Literal["completed", "pruned", "unfit", "failed"]
EXTRA = "pip install 'tuner[optuna]'"


class Searcher(Protocol):
    """Suggests values; smaller metrics are better. Trials are known by their ids."""

    def ask(self, trial_id: str) -> Mapping[str, Any] | None:
        """Values for a new trial; None if there are none, now or ever."""

    def report(self, trial_id: str, epoch: int, value: float) -> None:
        """A trial's metric after an epoch."""

    def tell(self, trial_id: str, state: State, value: float | None) -> None:
        """A trial has ended, with its metric."""

    def recall(self, trial_id: str, values: Mapping[str, Any]) -> None:
        """A trial that was suggested before this process began; what came of it is told as of any other.

        Raises:
            InputError: the searcher cannot be told of such trials.
        """


class OptunaSearcher:
    """A sampler of Optuna's, by default its Tree-structured Parzen Estimator."""

    def __init__(self, space: Space, sampler: Any = None, seed: int = 0) -> None:
        """Begins without trials.

        Args:
            space: what to suggest from.
            sampler: an ``optuna.samplers.BaseSampler``; None for TPE.
            seed: of TPE.

        Raises:
            InputError: Optuna is not installed.
        """
        optuna = import_optuna()
        # Without constant_liar it would suggest the neighbourhood of trials that still run over and over.
        sampler = sampler or optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._optuna = optuna
        self._study = optuna.create_study(direction="minimize", sampler=sampler)
        self._distributions = {key: _distribution(optuna, domain) for key, domain in space.items()}
        self._trials: dict[str, Any] = {}
        self._epochs: dict[str, int] = {}

    def ask(self, trial_id: str) -> Mapping[str, Any] | None:
        """Values for a new trial."""
        self._trials[trial_id] = self._study.ask(self._distributions)
        return dict(self._trials[trial_id].params)

    def report(self, trial_id: str, epoch: int, value: float) -> None:
        """A trial's metric after an epoch; the first time counts where an attempt repeats it."""
        if epoch > self._epochs.get(trial_id, 0) and trial_id in self._trials:
            self._epochs[trial_id] = epoch
            self._trials[trial_id].report(value, epoch)

    def tell(self, trial_id: str, state: State, value: float | None) -> None:
        """A trial has ended."""
        states = self._optuna.trial.TrialState
        if state == "completed" and value is not None and math.isfinite(value):
            self._study.tell(self._trials.pop(trial_id), value)
        else:
            told = states.PRUNED if state in ("pruned", "unfit") else states.FAIL
            self._study.tell(self._trials.pop(trial_id), state=told)

    def recall(self, trial_id: str, values: Mapping[str, Any]) -> None:
        """A trial that was suggested before this process began."""
        self._study.enqueue_trial({key: values[key] for key in self._distributions if key in values})
        self.ask(trial_id)


class RaySearcher:
    """A ``ray.tune.search.Searcher``."""

    def __init__(self, searcher: Any, space: Space, metric: str) -> None:
        """Tells it of the space, unless it has one of its own.

        Args:
            searcher: what suggests.
            space: what to suggest from; empty where the searcher has its own.
            metric: what results are called.

        Raises:
            InputError: it has a space of its own, and another was given.
        """
        self._searcher = searcher
        self._metric = metric
        self._keys = tuple(space)
        self._recalled: dict[str, Mapping[str, Any]] = {}
        self._reports: dict[str, dict[int, float]] = {}
        self._asked: dict[str, str] = {}  # the searcher's own name of a trial
        self._number = 0
        taken = searcher.set_search_properties(metric, "min", {key: _ray_domain(each) for key, each in space.items()})
        if space and not taken:
            name = type(searcher).__name__
            raise InputError(f"search={name}: it has a space, a metric or a mode of its own: give these in one place")

    def ask(self, trial_id: str) -> Mapping[str, Any] | None:
        """Values for a new trial; None if there are none, now or ever.

        Tune's searchers may give the values of a name that they know once more, also where these were told to have
        failed. So each suggestion has a name of its own.
        """
        self._number += 1
        self._asked[trial_id] = f"{trial_id}-{self._number}"
        found = self._searcher.suggest(self._asked[trial_id])
        return found if isinstance(found, Mapping) else None

    def report(self, trial_id: str, epoch: int, value: float) -> None:
        """A trial's metric after an epoch; the first time counts where an attempt repeats it."""
        reports = self._reports.setdefault(trial_id, {})
        if epoch in reports or not math.isfinite(value):
            return
        reports[epoch] = value
        if trial_id not in self._recalled:
            result = {self._metric: value, "training_iteration": epoch}
            self._searcher.on_trial_result(self._asked[trial_id], result)

    def tell(self, trial_id: str, state: State, value: float | None) -> None:
        """A trial has ended; a pruned one with the best that it had, as in Tune.

        An end without result and error is what Tune's OptunaSearch takes for pruned, and others pass over.
        """
        reports = list(self._reports.pop(trial_id, {}).values())
        if value is None and state == "pruned":
            value = min(reports, default=None)
        if trial_id in self._recalled:
            self._add(self._recalled.pop(trial_id), state, None if state == "unfit" else value, reports)
        elif value is None or state in ("unfit", "failed"):
            error = state not in ("pruned", "unfit")
            self._searcher.on_trial_complete(self._asked.pop(trial_id), error=error)
        else:
            result = {self._metric: value, "training_iteration": len(reports)}
            self._searcher.on_trial_complete(self._asked.pop(trial_id), result)

    def recall(self, trial_id: str, values: Mapping[str, Any]) -> None:
        """A trial that was suggested before this process began.

        Raises:
            InputError: the searcher cannot be told of such trials.
        """
        from ray.tune.search import Searcher as TuneSearcher

        asked = self._searcher
        while isinstance(getattr(asked, "searcher", None), TuneSearcher):  # a ConcurrencyLimiter hands them on
            asked = asked.searcher
        if type(asked).add_evaluated_point is TuneSearcher.add_evaluated_point:
            name = type(asked).__name__
            raise InputError(f"--resume: {name} cannot be told of earlier trials: start a new study")
        if not self._keys:
            raise InputError("--resume: a searcher is told of earlier trials by the keys of space={...}: give that")
        self._recalled[trial_id] = {key: values[key] for key in self._keys}

    def _add(self, values: Mapping[str, Any], state: State, value: float | None, reports: list[float]) -> None:
        pruned = state in ("pruned", "unfit")
        failed = state == "failed" or (value is None and not pruned)
        worst = math.inf if value is None else value
        self._searcher.add_evaluated_point(
            dict(values), worst, error=failed, pruned=pruned, intermediate_values=reports
        )


def to_searcher(search: Any, space: Space, metric: str, seed: int) -> Searcher:
    """The searcher that is meant by ``search``: "optuna", an Optuna sampler, or a searcher of Ray Tune.

    Args:
        search: what the user gave.
        space: what to suggest from.
        metric: what the searcher is to make small.
        seed: of its random numbers, where it is ours.

    Raises:
        InputError: it is none of these, or Optuna is not installed.
    """
    if search == "optuna" or is_sampler(search):
        if not space:
            raise InputError("search: an Optuna sampler needs a space: give space={...} or a file with 'space:'")
        return OptunaSearcher(space, None if search == "optuna" else search, seed)
    if all(hasattr(search, name) for name in ("suggest", "on_trial_complete", "set_search_properties")):
        return RaySearcher(search, space, metric)
    raise InputError(
        f"search={search!r}: give 'grid', 'random', 'optuna', an Optuna sampler or a searcher of ray.tune.search"
    )


def is_sampler(search: Any) -> bool:
    """Whether it is one of Optuna's samplers."""
    return hasattr(search, "infer_relative_search_space") and hasattr(search, "sample_independent")


def import_optuna() -> Any:
    """Optuna, which keeps quiet.

    Raises:
        InputError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError(f"--search optuna: Optuna is not installed: {EXTRA}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, domain: Domain) -> Any:
    kinds = optuna.distributions
    if domain.kind == "choice":
        return kinds.CategoricalDistribution(domain.values)
    of = kinds.IntDistribution if domain.kind in ("int", "logint") else kinds.FloatDistribution
    return of(*domain.values, log=domain.kind.startswith("log"))


def _ray_domain(domain: Domain) -> Any:
    """The domain as Tune has it, whose ranges of whole numbers leave out their end."""
    from ray import tune

    if domain.kind == "choice":
        return tune.choice(list(domain.values))
    low, high = domain.values
    if domain.kind in ("int", "logint"):
        return (tune.randint if domain.kind == "int" else tune.lograndint)(low, high + 1)
    return (tune.uniform if domain.kind == "uniform" else tune.loguniform)(low, high)
