"""Suggests values from the results of earlier trials: Optuna's samplers, and any searcher of Ray Tune.

Their loops are not used. A searcher suggests values when a trial can start, and gets the trial's result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from tuner.errors import InputError, TunerError, one_line, option
from tuner.objective import Objective
from tuner.search.domains import WHOLE, Domain, Space
from tuner.trial import ConfigValue

if TYPE_CHECKING:
    from ray import tune

# How a trial ended, for searchers. "pruned": a scheduler stopped it. "unfit": it diverged, ran out of memory or fits
# no device, so it ranks below all others. "failed": its values may be as good as others.
State = Literal["completed", "pruned", "unfit", "failed"]


class Searcher:
    """Suggests values that are expected to have good metrics."""

    prunes = False  # whether it judges reports, too
    asked_by_objectives = False  # whether it hears of trials from these, and nobody else tells it
    differs = ""  # why it does not continue as the earlier process would have; empty if it does

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """Values for a new trial, or None if the searcher suggests none now."""
        raise NotImplementedError

    def report(self, trial_id: str, epoch: int, value: float) -> bool:
        """Takes a trial's metric after an epoch, and returns whether the trial should stop."""
        return False

    def tell(self, trial_id: str, state: State, *values: float | None, excess: Sequence[float] = ()) -> None:
        """Takes the end of a trial: its metric if it has one, and its excess over each constraint."""

    def recall(self, trial_id: str, values: Mapping[str, ConfigValue]) -> None:
        """Adds a trial of an earlier process; its results follow. Unsupported searchers raise ``InputError``."""
        raise NotImplementedError


class RaySearcher(Searcher):
    """A ``ray.tune.search.Searcher``."""

    def __init__(
        self, searcher: tune.search.Searcher, space: Space, objective: Objective, points: Sequence[object] = ()
    ) -> None:
        """Sets the searcher's space. If it has its own space, too, or cannot take this one, raises ``InputError``."""
        name = type(searcher).__name__
        if points:
            raise InputError(
                f"search={name}: it takes points in its own constructor: give {name}(points_to_evaluate=…)"
            )
        if conditional := [key for key, domain in space.items() if domain.conditions]:
            raise InputError(
                f"search={name}: {', '.join(conditional)}: searchers of ray.tune support no conditions: leave out "
                "'if', or use search='tpe' or 'random'"
            )
        self._searcher = searcher
        self._objective = objective
        self._space = space
        self._recalled: dict[str, Mapping[str, ConfigValue]] = {}
        self._reports: dict[str, dict[int, float]] = {}
        self._suggested: dict[str, str] = {}  # the searcher's name of each trial
        self._number = 0
        mode = "min" if objective.direction == "minimize" else "max"
        domains = {key: _ray_domain(domain) for key, domain in space.items()}
        with explained(name, space):
            taken = searcher.set_search_properties(objective.metric, mode, domains)
        if space and not taken:
            raise InputError(f"search={name}: it already has a space, a metric or a mode: give each in one place")

    def ask(self, trial_id: str) -> Mapping[str, ConfigValue] | None:
        """Values for a new trial, or None if the searcher suggests none now.

        Each suggestion has a new name, as Tune's searchers may repeat a known name's values, even if they failed.
        """
        self._number += 1
        self._suggested[trial_id] = f"{trial_id}-{self._number}"
        with explained(type(self._searcher).__name__, self._space):
            values = self._searcher.suggest(self._suggested[trial_id])
        if not isinstance(values, Mapping):
            return None
        space = self._space
        return {key: space[key].nearest(value) if key in space else value for key, value in values.items()}

    def report(self, trial_id: str, epoch: int, value: float) -> bool:
        """Takes a trial's metric after an epoch; if a retry repeats the epoch, the first metric counts."""
        reports = self._reports.setdefault(trial_id, {})
        if epoch not in reports and math.isfinite(value):
            reports[epoch] = value
            if trial_id not in self._recalled:
                result = {self._objective.metric: value, "training_iteration": epoch}
                self._searcher.on_trial_result(self._suggested[trial_id], result)
        return False

    def tell(self, trial_id: str, state: State, *values: float | None, excess: Sequence[float] = ()) -> None:
        """A trial has ended. A pruned trial has its best value, as in Tune.

        For Tune's OptunaSearch, a trial without a result and without an error is pruned; others ignore it.
        """
        (value,) = values or (None,)
        reports = list(self._reports.pop(trial_id, {}).values())
        if value is None and state == "pruned":
            value = min(reports, key=self._objective.loss, default=None)
        if trial_id in self._recalled:
            self._add(self._recalled.pop(trial_id), state, None if state == "unfit" else value, reports)
        elif value is None or state in ("unfit", "failed"):
            error = state not in ("pruned", "unfit")
            self._searcher.on_trial_complete(self._suggested.pop(trial_id), error=error)
        elif trial_id in self._suggested:
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
            raise InputError(f"{resume}: {type(inner).__name__} cannot take earlier trials: start a new study")
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


@contextmanager
def explained(name: str, space: Space) -> Iterator[None]:
    """Raises an error of another library's search in the block as ``InputError``.

    It has the name of the search and the keys that the error names, or else all of them.
    """
    try:
        yield
    except TunerError:
        raise
    except Exception as error:  # each search has its own
        text = f"{type(error).__name__}: {one_line(error)}"
        keys = [key for key in space if re.search(rf"\b{re.escape(key)}\b", text)] or list(space)
        listed = ", ".join(f"{key} = {space[key]}" for key in keys)
        raise InputError(f"{option('search', name)}: it cannot take {listed}: {text}") from error


def is_of_tune(search: object) -> bool:
    """Whether an object is a searcher of Ray Tune."""
    return all(hasattr(search, name) for name in ("suggest", "on_trial_complete", "set_search_properties"))


def _ray_domain(domain: Domain) -> tune.search.sample.Domain:
    """The domain in Tune's form, whose integer ranges exclude their end. Steps are rounded to in ``ask``."""
    from ray import tune

    if domain.kind == "choice":
        return tune.choice(list(domain.values))
    low, high = domain.ends
    if domain.kind in WHOLE:
        return (tune.randint if domain.kind == "int" else tune.lograndint)(low, high + 1)
    return (tune.uniform if domain.kind == "uniform" else tune.loguniform)(low, high)
