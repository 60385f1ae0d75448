"""Converts trials to Optuna's trials and distributions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from tuner.objective import Objective
from tuner.records.attempts import AFTER_METRICS, BEFORE_METRICS, JOURNAL_ONLY, Attempt
from tuner.records.epochs import EpochLine
from tuner.records.study_record import Scale, StudyRecord
from tuner.trial import ConfigValue
from tuner.values import categories, is_number, value_key

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

# A range that spans this factor is shown on a logarithmic scale, such as 0.001 to 0.1.
LOG_SPAN = 100
MOST_EXACT = 2**53  # Optuna stores whole numbers as floats, which have gaps above this


class Parameter(NamedTuple):
    """A hyperparameter in Optuna."""

    distribution: BaseDistribution
    by_key: Mapping[str, ConfigValue]  # Optuna's category or number for each value that was tried, by the value's key

    @classmethod
    def of(cls, values: Sequence[ConfigValue], scale: Scale | None) -> Parameter:
        """The hyperparameter that has had these values. Without a known scale, wide ranges are logarithmic."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if not all(map(is_finite, values)):
            by_key = categories(values)
            choices = sorted(by_key.values(), key=lambda choice: (type(choice).__name__, choice))
            return cls(CategoricalDistribution(choices), by_key)
        low, high = min(values), max(values)
        log = low > 0 and (high >= LOG_SPAN * low if scale is None else scale == "log")
        by_key = {value_key(value): value if abs(value) <= MOST_EXACT else float(value) for value in values}
        if all(isinstance(value, int) for value in by_key.values()):
            return cls(IntDistribution(int(low), int(high), log=log), by_key)
        return cls(FloatDistribution(float(low), float(high), log=log), by_key)


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna logs nothing but errors and warns of nothing in the block."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def frozen_trials(
    rows: Sequence[Attempt],
    varied: Sequence[str],
    objective: Objective,
    curves: Mapping[str, Mapping[int, EpochLine]],
    study: StudyRecord,
) -> list[FrozenTrial]:
    """Rows as Optuna's trials, numbered from 0, with the ``varied`` hyperparameters as parameters.

    The values are those of the objective and its ``others``. Intermediate values are those of ``curves``, by trial
    id and epoch. A parameter's distribution spans all values that were tried.
    """
    tried = {name: [row.config[name] for row in rows if name in row.config] for name in varied}
    parameters = {name: Parameter.of(values, study.scales.get(name)) for name, values in tried.items() if values}
    begun = _moment(study.started)
    return [
        _trial(number, row, objective, curves.get(row.trial_id, {}), parameters, begun)
        for number, row in enumerate(rows)
    ]


def _trial(
    number: int,
    row: Attempt,
    objective: Objective,
    curve: Mapping[int, EpochLine],
    parameters: Mapping[str, Parameter],
    begun: datetime,
) -> FrozenTrial:
    """A row as Optuna's trial. One that never started has the time at which the study began."""
    from optuna.trial import FrozenTrial, TrialState

    params = {
        name: parameters[name].by_key[value_key(value)] for name, value in row.config.items() if name in parameters
    }
    values = {epoch: line.metrics.get(objective.metric) for epoch, line in curve.items()}
    objective_values = [value for one in objective.all if (value := row.metrics.get(one.metric)) is not None]
    whole = len(objective_values) == len(objective.all)
    whether = TrialState.COMPLETE if whole else TrialState.FAIL  # also with an infinite value, as in Optuna
    state = {"pruned": TrialState.PRUNED, "completed": whether, "diverged": whether}.get(row.status, TrialState.FAIL)
    ended = begun if row.ended_at is None else datetime.fromtimestamp(row.ended_at)
    names = (*BEFORE_METRICS, *row.metrics, *AFTER_METRICS, *JOURNAL_ONLY)
    attributes = {name: entry for name in names if (entry := row.value(name)) is not None}
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=state,
        value=None,
        values=objective_values if whole and state is not TrialState.FAIL else None,
        datetime_start=ended if row.started_at is None else datetime.fromtimestamp(row.started_at),
        datetime_complete=ended,
        params=params,
        distributions={name: parameters[name].distribution for name in params},
        user_attrs=attributes,
        system_attrs={},
        intermediate_values={epoch: float(entry) for epoch, entry in values.items() if is_finite(entry)},
    )


def _moment(text: str) -> datetime:
    """A time of ``study.json`` in Optuna's form, local time without a zone; now if it is no time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").astimezone().replace(tzinfo=None)
    except ValueError:
        return datetime.now()


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number, and no bool."""
    return is_number(value) and math.isfinite(value)
