"""What hyperparameters could have been, as Optuna's distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from tuner.records.attempts import Attempt
from tuner.records.study_record import Scale
from tuner.trial import ConfigValue

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# What a range spans where its values are shown on a logarithmic scale: 0.001 to 0.1, say.
LOG_SPAN = 100


def distributions(rows: Sequence[Attempt], scales: Mapping[str, Scale]) -> dict[str, BaseDistribution]:
    """What each hyperparameter could have been, by all values that were tried.

    Ranges without a known scale are logarithmic where they are wide.
    """
    tried: dict[str, list[ConfigValue]] = {}
    for row in rows:
        for name, value in row.config.items():
            tried.setdefault(name, []).append(value)
    return {name: _distribution(values, scales.get(name)) for name, values in tried.items()}


def _distribution(values: Sequence[ConfigValue], scale: Scale | None) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return CategoricalDistribution(sorted(set(values), key=lambda value: (type(value).__name__, value)))
    low, high = min(numbers), max(numbers)
    log = low > 0 and (high >= LOG_SPAN * low if scale is None else scale == "log")
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(float(low), float(high), log=log)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
