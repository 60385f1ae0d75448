"""Suggests values from the results of earlier trials: Optuna's samplers, and any searcher of Ray Tune.

Their loops are not used. A searcher suggests values when a trial can start, and gets the trial's result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol, TypeGuard

from tuner.errors import InputError, ParameterError, install_command, option
from tuner.search.domains import WHOLE, Domain, Space
from tuner.trial import ConfigValue, Direction, Objective

if TYPE_CHECKING:
    import optuna
    from ray import tune

# How a trial ended, for searchers. "pruned": a scheduler stopped it. "unfit": it diverged, ran out of memory or fits
# no device, so it ranks below all others. "failed": its values may be as good as others.
State = Literal["completed", "pruned", "unfit", "failed"]


class Searcher(Protocol):
    """Suggests values that are expected to have good metrics."""

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """Values for a new trial, or None if the searcher suggests none now."""

    def report(self, trial_id: str, epoch: int, value: float) -> None:
        """A trial's metric after an epoch."""

    def tell(self, trial_id: str, state: State, value: float | None) -> None:
        """A trial has ended, with its metric."""

    def recall(self, trial_id: str, values: Mapping[str, ConfigValue]) -> None:
        """Adds a trial of an earlier process; its results follow. Unsupported searchers raise ``InputError``."""


class OptunaSearcher:
    """A sampler of Optuna, by default its Tree-structured Parzen Estimator. ``points`` are suggested first."""

    _trials: dict[str, optuna.Trial]

    def __init__(
        self,
        space: Space,
        sampler: optuna.samplers.BaseSampler | None = None,
        seed: int = 0,
        direction: Direction = "minimize",
        points: Sequence[Mapping[str, ConfigValue]] = (),
    ) -> None:
        """Uses the sampler, or TPE with this seed. If Optuna is not installed, ``InputError`` is raised."""
        optuna = import_optuna()
        self._begins_anew = sampler is not None  # a seed of our own follows from how many trials there are
        # Without constant_liar it would repeatedly suggest values near those of running trials.
        sampler = sampler or optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._optuna = optuna
        self._study = optuna.create_study(direction=direction, sampler=sampler)
        self._space = space
        self._points = list(points)
        self._trials = {}
        self._epochs: dict[str, int] = {}

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """Values for a new trial."""
        if self._points:
            self._study.enqueue_trial(self._points.pop(0))
        return self._asked(trial_id)

    def _asked(self, trial_id: str) -> Mapping[str, ConfigValue]:
        """Values for a new trial, of which conditions may leave out some."""
        trial = self._trials[trial_id] = self._study.ask()
        values: dict[str, ConfigValue] = {}
        for key, domain in self._space.items():
            if domain.applies(values):
                values[key] = _suggested(trial, key, domain)
        return values

    def report(self, trial_id: str, epoch: int, value: float) -> None:
        """A trial's metric after an epoch; if a retry repeats the epoch, the first metric counts."""
        if epoch > self._epochs.get(trial_id, 0) and trial_id in self._trials:
            self._epochs[trial_id] = epoch
            self._trials[trial_id].report(value, epoch)

    def tell(self, trial_id: str, state: State, value: float | None) -> None:
        """A trial has ended."""
        states = self._optuna.trial.TrialState
        if state == "completed" and value is not None and math.isfinite(value):
            self._study.tell(self._trials.pop(trial_id), value)
        else:
            ended = states.PRUNED if state in ("pruned", "unfit") else states.FAIL
            self._study.tell(self._trials.pop(trial_id), state=ended)

    def recall(self, trial_id: str, values: Mapping[str, ConfigValue]) -> None:
        """Adds a trial of an earlier process, after which a sampler with a seed must not repeat its suggestions."""
        if self._begins_anew:
            self._begins_anew = False
            self._study.sampler.reseed_rng()
        self._study.enqueue_trial({key: values[key] for key in self._space if key in values})
        self._asked(trial_id)


class RaySearcher:
    """A ``ray.tune.search.Searcher``."""

    def __init__(self, searcher: tune.search.Searcher, space: Space, objective: Objective) -> None:
        """Sets the searcher's space. If it has its own space, too, ``InputError`` is raised."""
        if conditional := [key for key, domain in space.items() if domain.conditions]:
            raise InputError(
                f"search={type(searcher).__name__}: {', '.join(conditional)}: searchers of ray.tune know no "
                "conditions: leave out 'if', or use search='optuna' or 'random'"
            )
        self._searcher = searcher
        self._objective = objective
        self._space = space
        self._recalled: dict[str, Mapping[str, ConfigValue]] = {}
        self._reports: dict[str, dict[int, float]] = {}
        self._suggested: dict[str, str] = {}  # the searcher's name of each trial
        self._number = 0
        mode = "min" if objective.direction == "minimize" else "max"
        domains = {key: _ray_domain(each) for key, each in space.items()}
        taken = searcher.set_search_properties(objective.metric, mode, domains)
        if space and not taken:
            name = type(searcher).__name__
            raise InputError(f"search={name}: it has a space, a metric or a mode of its own: give these in one place")

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """Values for a new trial, or None if the searcher suggests none now.

        Each suggestion has a new name, as Tune's searchers may repeat a known name's values, even if they failed.
        """
        self._number += 1
        self._suggested[trial_id] = f"{trial_id}-{self._number}"
        values = self._searcher.suggest(self._suggested[trial_id])
        if not isinstance(values, Mapping):
            return None
        return {key: self._space[key].nearest(each) if key in self._space else each for key, each in values.items()}

    def report(self, trial_id: str, epoch: int, value: float) -> None:
        """A trial's metric after an epoch; if a retry repeats the epoch, the first metric counts."""
        reports = self._reports.setdefault(trial_id, {})
        if epoch in reports or not math.isfinite(value):
            return
        reports[epoch] = value
        if trial_id not in self._recalled:
            result = {self._objective.metric: value, "training_iteration": epoch}
            self._searcher.on_trial_result(self._suggested[trial_id], result)

    def tell(self, trial_id: str, state: State, value: float | None) -> None:
        """A trial has ended. A pruned trial has its best value, as in Tune.

        For Tune's OptunaSearch, a trial without a result and without an error is pruned; others ignore it.
        """
        reports = list(self._reports.pop(trial_id, {}).values())
        if value is None and state == "pruned":
            value = min(reports, key=self._objective.loss, default=None)
        if trial_id in self._recalled:
            self._add(self._recalled.pop(trial_id), state, None if state == "unfit" else value, reports)
        elif value is None or state in ("unfit", "failed"):
            error = state not in ("pruned", "unfit")
            self._searcher.on_trial_complete(self._suggested.pop(trial_id), error=error)
        else:
            result = {self._objective.metric: value, "training_iteration": len(reports)}
            self._searcher.on_trial_complete(self._suggested.pop(trial_id), result)

    def recall(self, trial_id: str, values: Mapping[str, ConfigValue]) -> None:
        """Adds a trial of an earlier process."""
        from ray.tune.search import Searcher as TuneSearcher

        inner = self._searcher
        while isinstance(getattr(inner, "searcher", None), TuneSearcher):  # such as a ConcurrencyLimiter's
            inner = inner.searcher
        resume = option("resume")
        if type(inner).add_evaluated_point is TuneSearcher.add_evaluated_point:
            name = type(inner).__name__
            raise InputError(f"{resume}: {name} cannot take earlier trials: start a new study")
        if not self._space:
            raise InputError(f"{resume}: a searcher needs the keys of space={{...}} for earlier trials: give it")
        self._recalled[trial_id] = {key: values[key] for key in self._space}

    def _add(
        self, values: Mapping[str, ConfigValue], state: State, value: float | None, reports: list[float]
    ) -> None:
        pruned = state in ("pruned", "unfit")
        failed = state == "failed" or (value is None and not pruned)
        worst = self._objective.worst if value is None else value
        self._searcher.add_evaluated_point(
            dict(values), worst, error=failed, pruned=pruned, intermediate_values=reports
        )


def to_searcher(
    search: object, space: Space, objective: Objective, seed: int, points: Sequence[Mapping[str, ConfigValue]] = ()
) -> Searcher:
    """The searcher for ``search``: "optuna", an Optuna sampler, or a searcher of Ray Tune.

    ``points`` are suggested first.
    Anything else, or a missing Optuna, raises ``InputError``.
    """
    if search == "optuna" or is_sampler(search):
        if not space:
            raise InputError(
                f"{option('search')}: an Optuna sampler needs a space: give space={{...}} or a file with 'space:'"
            )
        return OptunaSearcher(space, search if is_sampler(search) else None, seed, objective.direction, points)
    if all(hasattr(search, name) for name in ("suggest", "on_trial_complete", "set_search_properties")):
        if points:
            name = type(search).__name__
            raise InputError(
                f"search={name}: it takes points in its own constructor: give {name}(points_to_evaluate=…)"
            )
        return RaySearcher(search, space, objective)
    raise InputError(
        f"search={search!r}: give 'grid', 'random', 'optuna', an Optuna sampler or a searcher of ray.tune.search"
    )


def is_sampler(search: object) -> TypeGuard[optuna.samplers.BaseSampler]:
    """Whether it is one of Optuna's samplers."""
    return hasattr(search, "infer_relative_search_space") and hasattr(search, "sample_independent")


def import_optuna() -> ModuleType:
    """Imports Optuna and silences its log. If it is not installed, ``InputError`` is raised."""
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise ParameterError("search", "optuna", "Optuna is not installed", install_command("optuna")) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggested(trial: optuna.Trial, key: str, domain: Domain) -> ConfigValue:
    """A value that Optuna suggests. It knows no steps of logarithms, so these are rounded here."""
    value: ConfigValue
    if domain.is_constant:
        return domain.values[0]
    if domain.kind == "choice":
        value = trial.suggest_categorical(key, domain.values)
        return value
    low, high = domain.ends
    log, whole = domain.kind.startswith("log"), domain.kind in WHOLE
    step = None if log else domain.step
    if step is not None:
        high = float(domain.nearest(high))  # the last step, which may end before the range does
    if whole:
        value = trial.suggest_int(key, int(low), int(high), log=log, step=int(step or 1))
    else:
        value = trial.suggest_float(key, low, high, log=log, step=step)
    return domain.nearest(value)


def _ray_domain(domain: Domain) -> tune.search.sample.Domain:
    """The domain in Tune's form, whose integer ranges exclude their end. Steps are rounded to in ``ask``."""
    from ray import tune

    if domain.kind == "choice":
        return tune.choice(list(domain.values))
    low, high = domain.ends
    if domain.kind in WHOLE:
        return (tune.randint if domain.kind == "int" else tune.lograndint)(low, high + 1)
    return (tune.uniform if domain.kind == "uniform" else tune.loguniform)(low, high)
