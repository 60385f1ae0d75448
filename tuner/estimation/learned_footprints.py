"""Footprints learned from measured ones: a regression of bytes on the values of a configuration.

Memory is mostly a product of sizes, such as ``batch · width``, so its logarithm is taken to be a sum:

    log bytes = w₀ + Σ w · log size + Σ w · fraction + Σ w · [category]

A few samples cannot tell the weights alone. A prior says that memory grows nearly in proportion to a size, and that
fractions, which are mostly rates, hardly matter. The allowance for errors follows from the errors of samples that
were left out of the fit.

Given 8 samples that ``spread`` chose, the median error is 8 to 10 % (tests/estimation/test_learned_footprints.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

Values = Mapping[str, Any]  # a configuration, or a part of it

QUANTILE = 0.90
MARGIN = 1.5  # standard deviations
NOISE, LEAST_DEVIATION = 0.15, 0.06  # of a logarithm: what the prior is weighed against, and the least of errors
# Mean and standard deviation of a weight before there are samples.
PRIORS = {"size": (0.8, 0.3), "fraction": (0.0, 0.1), "category": (0.0, 1.0)}


@dataclass(frozen=True)
class Prediction:
    """The footprint of a configuration, and how much more it may be."""

    size_bytes: int
    margin_bytes: int


@dataclass(frozen=True)
class _Variable:
    """A hyperparameter: how its values become features."""

    key: str
    kind: str  # a key of ``PRIORS``
    values: tuple[Any, ...]  # the different values of the samples

    def features(self, configs: Sequence[Values]) -> list[list[float]]:
        """One row for each feature; a size that a configuration lacks counts as half the smallest one."""
        values = [config.get(self.key) for config in configs]
        if self.kind == "category":
            return [[float(repr(value) == known) for value in values] for known in self.values]
        if self.kind == "fraction":
            return [[_number(value) / max(map(abs, self.values)) for value in values]]
        least = min(abs(value) for value in self.values if value) / 2
        return [[math.log(max(abs(_number(value)), least)) for value in values]]


class LearnedFootprints:
    """A fit to samples."""

    def __init__(self, samples: Sequence[tuple[Values, float]]) -> None:
        """Fits at least one sample: a configuration and its bytes, which are above 0."""
        import numpy as np

        self._configs = [config for config, _ in samples]
        self._bytes = [size for _, size in samples]
        self._variables = _variables(self._configs)
        if not self._variables:
            return
        features = _features(self._variables, self._configs)
        priors = [PRIORS[variable.kind] for variable in self._variables for _ in variable.features([{}])]
        means, deviations = np.array([(0.0, math.inf), *priors]).T
        self._center = features.mean(axis=0)
        self._center[0] = 0
        self._weights, deviation = _fitted(features - self._center, np.log(self._bytes), means, deviations)
        self._margin = math.expm1(MARGIN * max(deviation, LEAST_DEVIATION))

    def predict(self, config: Values) -> Prediction:
        """The footprint of any configuration.

        Samples of one configuration, for example an empty one, tell only what most of them took. Another one may take
        twice as much.
        """
        if not self._variables:
            size = math.ceil(_quantile(self._bytes))
            return Prediction(size, 0 if config == self._configs[0] else size)
        features = _features(self._variables, [config])[0] - self._center
        expected = math.exp(float(features @ self._weights))
        return Prediction(math.ceil(expected), math.ceil(expected * self._margin))


def _fitted(features: Array, targets: Array, means: Array, deviations: Array) -> tuple[Array, float]:
    """The weights by least squares with a normal prior, and the root mean square of the leave-one-out errors.

    A target's leave-one-out error is e / (1 − h), where the leverage h is its diagonal entry in the hat matrix
    (Allen 1974).
    """
    import numpy as np

    rows = np.vstack([features / NOISE, np.diag(1 / deviations)])
    wanted = np.concatenate([targets / NOISE, means / deviations])
    weights = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    leverage = np.linalg.norm(np.linalg.qr(rows)[0][: len(targets)], axis=1) ** 2
    left_out = (targets - features @ weights) / np.maximum(1 - leverage, 1e-9)
    return weights, float(np.sqrt((left_out**2).mean()))


def spread(configs: Sequence[Values], most: int) -> list[int]:
    """The indices of at most this many configurations: the first, and then always the one farthest from those before.

    Distance is that of the features, over their range. Fractions count only if there is nothing else.
    """
    import numpy as np

    if not configs:
        return []
    variables = _variables(configs)
    points = _features([variable for variable in variables if variable.kind != "fraction"] or variables, configs)
    points = points / np.maximum(np.ptp(points, axis=0), 1e-9)
    order: list[int] = []
    distances = np.full(len(configs), np.inf)
    while len(order) < min(most, len(configs)):
        order.append(int(distances.argmax()))
        distances = np.minimum(distances, ((points - points[order[-1]]) ** 2).sum(axis=1))
        distances[order] = -1
    return order


def _features(variables: Sequence[_Variable], configs: Sequence[Values]) -> Array:
    """(configurations, features), of which the first is 1."""
    import numpy as np

    rows = [row for variable in variables for row in variable.features(configs)]
    return np.array([[1.0] * len(configs), *rows]).T


def _variables(configs: Sequence[Values]) -> list[_Variable]:
    """The hyperparameters in which the configurations differ."""
    found = []
    for key in sorted({key for config in configs for key in config}):
        values = [config.get(key) for config in configs]
        if all(value == values[0] for value in values):
            continue
        if not all(value is None or _is_number(value) for value in values):
            found.append(_Variable(key, "category", tuple(sorted({repr(value) for value in values}))))
            continue
        numbers = {_number(value) for value in values}
        kind = "size" if all(number.is_integer() for number in numbers) else "fraction"
        found.append(_Variable(key, kind, tuple(sorted(numbers))))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _number(value: object) -> float:
    """The value as a number; 0 for none."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _quantile(values: Sequence[float]) -> float:
    """The conformal quantile: the ⌈(n + 1) · q⌉-th smallest of n values, or the largest if n is too small."""
    rank = min(len(values), math.ceil((len(values) + 1) * QUANTILE))
    return sorted(values)[rank - 1]
