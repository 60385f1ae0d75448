"""Footprints learned from measured ones: a regression of bytes on the values of a configuration.

Memory is mostly a sum of products of sizes, such as ``batch · width + width² · layers``. So its prior is a Gaussian
process whose covariance is a product over the hyperparameters, each with a factor ``c₀ + c₁ · u · v + c₂ · u² · v²``
for a number and ``c₀ + c₁ · [u = v]`` for anything else. The coefficients are not chosen, as a few samples cannot
tell them: many are drawn, and each draw counts by the likelihood of the samples. A draw may leave a hyperparameter
out. Most leave a fraction out, as sizes are whole numbers and fractions are mostly rates. The allowance for errors
is the predicted standard deviation times a conformal quantile of the errors of samples that were left out.

Given 8 samples that ``spread`` chose, the median error is 5 to 9 % (``tests/estimation/test_learned_footprints.py``).
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

DRAWS = 1000
KEPT_DRAWS = 100  # the likeliest draws, by which predictions are made
MOST_SAMPLES = 48  # those that ``spread`` chooses first; a fit takes 0.1 s
QUANTILE = 0.90
LEAST_SCORE = 2.0  # standard deviations that are allowed for at least: few samples tell less
RELATIVE_NOISE = 0.06  # of a measured footprint, beside what no sum of products describes
NOISE_BYTES = 2**20
# The probability that a hyperparameter has no effect.
WITHOUT_EFFECT = {"size": 0.1, "fraction": 0.9, "category": 0.3}
# Mean and standard deviation of the logarithms of the coefficients c₀, c₁ and c₂.
COEFFICIENTS: Mapping[str, Sequence[tuple[float, float]]] = {
    "size": ((-1.5, 1.5), (0.0, 1.5), (-2.0, 2.0)),
    "fraction": ((-1.5, 1.5), (0.0, 1.5)),
    "category": ((0.0, 1.0), (-1.0, 1.0)),
}


@dataclass(frozen=True)
class Prediction:
    """The footprint of a configuration, and how much more it may be."""

    size_bytes: int
    margin_bytes: int


@dataclass(frozen=True)
class _Variable:
    """A hyperparameter: how its values become numbers."""

    key: str
    kind: str  # a key of ``COEFFICIENTS``
    scale: float = 1.0

    def column(self, configs: Sequence[Values]) -> list[Any]:
        """A number for each configuration, 0 if it lacks the key; a text if this is a category."""
        values = [config.get(self.key) for config in configs]
        if self.kind == "category":
            return [repr(value) for value in values]
        return [_number(value) / self.scale for value in values]


class LearnedFootprints:
    """A fit to samples."""

    def __init__(self, samples: Sequence[tuple[Values, float]]) -> None:
        """Fits at least one sample: a configuration and its bytes, which are above 0."""
        import numpy as np

        configs = [config for config, _ in samples]
        order = spread(configs, MOST_SAMPLES) if _variables(configs) else range(len(samples))
        self._configs = [configs[index] for index in order]
        self._bytes = np.array([float(samples[index][1]) for index in order])
        self._variables = _variables(self._configs)
        if self._variables:
            self._fit()

    def predict(self, config: Values) -> Prediction:
        """The footprint of any configuration.

        Samples of one configuration, for example an empty one, tell only what most of them took. Another one may take
        twice as much.
        """
        if not self._variables:
            size = math.ceil(_quantile(self._bytes.tolist()))
            return Prediction(size, 0 if config == self._configs[0] else size)
        covariance = self._covariance([config], self._configs)[:, 0]
        means = (covariance * self._weighted).sum(axis=1)
        explained = (covariance[:, None] @ self._inverse @ covariance[:, :, None])[:, 0, 0]
        mean = float(self._weights @ means)
        variances = (self._covariance([config], [config])[:, 0, 0] - explained).clip(min=0) + _noise(mean)
        deviation = math.sqrt(max(0.0, float(self._weights @ (variances + means**2)) - mean**2))
        least = float(self._bytes.min()) / 3
        return Prediction(math.ceil(max(mean, least)), math.ceil(self._score * deviation))

    def _fit(self) -> None:
        import numpy as np

        self._coefficients, scales = _draw(self._variables)
        self._scales = self._bytes.max() ** 2 * scales
        covariance = self._covariance(self._configs, self._configs)
        covariance += np.diag([_noise(size) for size in self._bytes])
        root = np.linalg.cholesky(covariance)
        white = np.linalg.solve(root, np.broadcast_to(self._bytes[:, None], (*root.shape[:2], 1)))[..., 0]
        likelihood = -(white**2).sum(axis=1) / 2 - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        kept = np.argsort(-likelihood)[:KEPT_DRAWS]
        self._scales = self._scales[kept]
        self._coefficients = [each[:, kept] for each in self._coefficients]
        self._weights = _normalised(likelihood[kept])
        self._inverse = np.linalg.inv(covariance[kept])
        self._weighted = self._inverse @ self._bytes
        self._score = max(LEAST_SCORE, _quantile(self._left_out(likelihood[kept])))

    def _covariance(self, some: Sequence[Values], others: Sequence[Values]) -> Array:
        """By draw, configuration and other configuration."""
        import numpy as np

        product = np.broadcast_to(self._scales[:, None, None], (len(self._scales), len(some), len(others))).copy()
        for variable, drawn in zip(self._variables, self._coefficients, strict=True):
            own, other = np.array(variable.column(some)), np.array(variable.column(others))
            alike = own[:, None] == other[None] if variable.kind == "category" else np.outer(own, other)
            powers = [alike.astype(float) ** power for power in range(len(drawn))]
            product *= np.tensordot(drawn, powers, axes=(0, 0))
        return product

    def _left_out(self, likelihood: Array) -> list[float]:
        """How many standard deviations each sample is above what all others predict.

        Without a sample a draw's likelihood is divided by the density that the others predict for that sample.
        """
        import numpy as np

        variances = 1 / np.diagonal(self._inverse, axis1=1, axis2=2)
        errors = self._weighted * variances  # by draw and sample
        densities = -(errors**2) / variances / 2 - np.log(variances) / 2
        scores = []
        for index in range(len(self._bytes)):
            weights = _normalised(likelihood - densities[:, index])
            error = float(weights @ errors[:, index])
            variance = float(weights @ (variances[:, index] + errors[:, index] ** 2)) - error**2
            scores.append(error / math.sqrt(variance))
        return scores


def _draw(variables: Sequence[_Variable]) -> tuple[list[Array], Array]:
    """Coefficients: for each variable an array by coefficient and draw. And the factor of each draw's variance.

    The factors make the variance of a largest configuration about 1.
    """
    import numpy as np

    random = np.random.default_rng(0)  # the same samples give the same fit
    coefficients: list[Array] = []
    for variable in variables:
        parameters = COEFFICIENTS[variable.kind]
        drawn = np.exp([random.normal(mean, deviation, DRAWS) for mean, deviation in parameters])
        idle = random.random(DRAWS) < WITHOUT_EFFECT[variable.kind]
        drawn[:, idle] = np.eye(len(parameters))[0][:, None]
        coefficients.append(drawn)
    largest = np.prod([drawn.sum(axis=0) for drawn in coefficients], axis=0)
    return coefficients, np.asarray(np.exp(random.normal(0.0, 1.0, DRAWS)) / largest)


def spread(configs: Sequence[Values], most: int) -> list[int]:
    """The indices of at most this many configurations: the first, and then always the one farthest from those before.

    Distance is that of the logarithms of sizes, over their range. Fractions count only if there is nothing else.
    """
    import numpy as np

    variables = _variables(configs)
    columns = []
    for variable in [each for each in variables if each.kind != "fraction"] or variables:
        values = np.array(variable.column(configs))
        if variable.kind == "category":
            columns += [(values == value) / math.sqrt(2) for value in np.unique(values)]
        else:
            least = np.abs(values[values != 0]).min()
            logarithms = np.sign(values) * np.log1p(np.abs(values) / least)
            columns.append((logarithms - logarithms.min()) / np.ptp(logarithms))
    points = np.array(columns, dtype=float).reshape(len(columns), len(configs)).T
    order: list[int] = []
    distances = np.full(len(configs), np.inf)
    while len(order) < min(most, len(configs)):
        order.append(int(distances.argmax()))
        distances = np.minimum(distances, ((points - points[order[-1]]) ** 2).sum(axis=1))
        distances[order] = -1
    return order


def _variables(configs: Sequence[Values]) -> list[_Variable]:
    """The hyperparameters in which the configurations differ."""
    found = []
    for key in sorted({key for config in configs for key in config}):
        values = [config.get(key) for config in configs]
        if all(value == values[0] for value in values):
            continue
        numbers = [_number(value) for value in values]
        if not all(value is None or _is_number(value) for value in values):
            found.append(_Variable(key, "category"))
            continue
        kind = "size" if all(number.is_integer() for number in numbers) else "fraction"
        found.append(_Variable(key, kind, max(map(abs, numbers)) or 1.0))
    return found


def _noise(size: float) -> float:
    """The variance of a measured footprint of this size."""
    return (RELATIVE_NOISE * size) ** 2 + float(NOISE_BYTES**2)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _number(value: object) -> float:
    """The value as a number; 0 for none."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _normalised(logarithms: Array) -> Array:
    """The weights with these logarithms, which may lack a common summand."""
    import numpy as np

    weights = np.exp(logarithms - logarithms.max())
    return np.asarray(weights / weights.sum())


def _quantile(values: Sequence[float]) -> float:
    """The conformal quantile: the ⌈(n + 1) · q⌉-th smallest of n values, or the largest if n is too small."""
    rank = min(len(values), math.ceil((len(values) + 1) * QUANTILE))
    return sorted(values)[rank - 1]
