"""How much each hyperparameter matters, by Optuna's PED-ANOVA."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tuner.errors import InputError, one_line
from tuner.records.attempts import CONFIG, Attempt
from tuner.records.optuna_space import distributions
from tuner.records.study_record import Scale
from tuner.trial import Objective

if TYPE_CHECKING:
    from optuna.importance import BaseImportanceEvaluator
    from optuna.trial import FrozenTrial

LEAST = 10  # trials; with fewer, the order of hyperparameters is chance
BEST_SHARE = 1 / 3  # of the trials are compared with all; below ten of them the estimate is noise
RESAMPLES = (20, 10)  # as many of these as have at most RESAMPLED trials in all, for the sake of time; else none
RESAMPLED = 10_000


@dataclass(frozen=True)
class Importance:
    """A hyperparameter's share of the importance of all, from 0 to 1."""

    key: str  # the hyperparameter
    share: float
    low: float  # between low and high are 80 % of the resamples, and the share itself
    high: float


def importances(
    rows: Sequence[Attempt], keys: Sequence[str], objective: Objective, scales: Mapping[str, Scale]
) -> list[Importance]:
    """How much each hyperparameter tells the best third of the trials from all, the most important one first.

    Source: Watanabe, Bansal, Hutter: PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
    Subspaces (IJCAI 2023), as in ``optuna.importance``. The spread is that of bootstrap resamples of the trials.

    Args:
        rows: completed trials that have the objective's metric and all hyperparameters.
        keys: the hyperparameters to judge.
        objective: what trials are compared by.
        scales: those of the search space's ranges.

    Raises:
        InputError: there are fewer than ten trials or two hyperparameters, no differences between the trials, or
            Optuna fails. The text says which.
    """
    if len(keys) < 2:
        raise InputError("fewer than two hyperparameters vary in all completed trials")
    if len(rows) < LEAST:
        raise InputError(f"{len(rows)} completed trials are too few to judge, at least {LEAST} are needed")
    if len({row.number(objective.metric) for row in rows}) == 1:
        raise InputError(f"all completed trials have the same {objective.metric}")
    random, times = Random(0), resamples(len(rows))
    try:
        with _quiet():
            trials = _as_trials(rows, keys, objective, scales)
            shares = _shares(trials, keys, objective)
            spread = [_shares(random.choices(trials, k=len(trials)), keys, objective) for _ in range(times)]
    except Exception as error:  # of numbers that Optuna cannot take; the rest of a report does not depend on it
        raise InputError(f"Optuna could not compute it: {type(error).__name__}: {one_line(error, 200)}") from error
    found = []
    for key, share in shares.items():
        values = sorted([share] if not spread else [each[key] for each in spread])
        tenth = len(values) // 10
        low, high = values[tenth], values[len(values) - 1 - tenth]
        found.append(Importance(key, share, min(low, share), max(high, share)))
    return sorted(found, key=lambda each: -each.share)


def resamples(trials: int) -> int:
    """How many resamples of so many trials there are."""
    return next((each for each in RESAMPLES if each * trials <= RESAMPLED), 0)


def judged(rows: Sequence[Attempt], varying: Sequence[str]) -> list[str]:
    """The names of the varying columns that all rows have a value in."""
    return [key.removeprefix(CONFIG) for key in varying if all(row.value(key) is not None for row in rows)]


def _as_trials(
    rows: Sequence[Attempt], keys: Sequence[str], objective: Objective, scales: Mapping[str, Scale]
) -> list[FrozenTrial]:
    from optuna.trial import create_trial

    known = {key: each for key, each in distributions(rows, scales).items() if key in keys}
    return [
        create_trial(
            params={key: row.config[key] for key in keys}, distributions=known, value=row.number(objective.metric)
        )
        for row in rows
    ]


def _shares(trials: Sequence[FrozenTrial], keys: Sequence[str], objective: Objective) -> dict[str, float]:
    import optuna

    study = optuna.create_study(direction=objective.direction)
    study.add_trials(trials)
    found = optuna.importance.get_param_importances(study, evaluator=_evaluator(), params=list(keys))
    return {key: float(found[key]) for key in keys}


def _evaluator() -> BaseImportanceEvaluator:
    from optuna.importance import PedAnovaImportanceEvaluator

    try:
        return PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    except TypeError:  # Optuna 4 has another name for it
        return PedAnovaImportanceEvaluator(baseline_quantile=BEST_SHARE)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna logs nothing and warns of nothing in the block."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
