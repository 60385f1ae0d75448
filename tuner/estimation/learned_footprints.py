"""Footprints of trials whose step cannot be traced, learned from the peaks of those before them.

A regression predicts bytes from the values of a configuration. Memory is mostly a product of sizes, such as
``batch · width``, so its logarithm is taken to be a sum:

    log bytes = w₀ + Σ w · log size + Σ w · fraction + Σ w · [category]

A few samples cannot tell the weights alone. A prior says that memory grows nearly in proportion to a size, and that
fractions, which are mostly rates, hardly matter. The allowance for errors follows from the errors of samples that
were left out of the fit.

Given 8 samples that ``spread`` chose, the median error is 8 to 10 %, that of a constant 39 to 49 %
(tests/estimation/test_learned_footprints.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from tuner.decisions.plan import need_bytes
from tuner.estimation import calibration
from tuner.estimation.estimate_cache import WITHOUT_MEMORY
from tuner.trial import MB, SUCCESSFUL, AttemptResult, EpochReport, MemoryEstimate, Request, Trial
from tuner.values import config_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

Values = Mapping[str, object]  # a configuration, or a part of it

QUANTILE = 0.90
MARGIN = 1.5  # standard deviations
NOISE, LEAST_DEVIATION = 0.15, 0.06  # of a logarithm: what the prior is weighed against, and the least of errors
# Mean and standard deviation of a weight before there are samples.
PRIORS = {"size": (0.8, 0.3), "fraction": (0.0, 0.1), "category": (0.0, 1.0)}
FIRST = 8  # the number of first trials, chosen to differ, that keep ample memory; the others are estimated by them
# A fit is repeated when what is new is this share of what was fitted. A trial that ran out of memory, or took more
# than was allowed for it, counts as several.
NEW, SURPRISE = 0.25, 10
FITTED = 256  # the most samples of a fit: half of them the latest, the others spread over those before
GREW = 1.02  # a peak that grows by less tells nothing new
RAN_OUT = 1.25  # a trial that ran out of memory is taken to need at least this many times what it had
LEAST_BYTES = MB


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
            return [[float(repr(value) == category) for value in values] for category in self.values]
        numbers = [_number(value) or 0.0 for value in values]
        if self.kind == "fraction":
            return [[number / self._largest for number in numbers]]
        return [[math.log(max(abs(number), self._least)) for number in numbers]]

    @cached_property
    def _largest(self) -> float:
        return float(max(map(abs, self.values)))

    @cached_property
    def _least(self) -> float:
        return float(min(abs(value) for value in self.values if value)) / 2


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
            size = math.ceil(calibration.quantile(self._bytes, QUANTILE))
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
    variables = []
    for key in sorted({key for config in configs for key in config}):
        values = [config.get(key) for config in configs]
        if len(set(map(repr, values))) == 1:
            continue
        numbers = [number for value in values if (number := _number(value)) is not None]
        if len(numbers) < len(values):
            variables.append(_Variable(key, "category", tuple(sorted({repr(value) for value in values}))))
        else:
            kind = "size" if all(number.is_integer() for number in numbers) else "fraction"
            variables.append(_Variable(key, kind, tuple(sorted({*numbers}))))
    return variables


def _number(value: object) -> float | None:
    """The value as a number, which is 0 for a missing one; None if it is something else."""
    if value is None:
        return 0.0
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None


class LearnedFit:
    """Learns from the reports and results of one workload's trials.

    What is learned are the bytes above a trial's context, which is what it reported before its training began: in a
    study that is resumed, processes may be larger than those before. A trial that ran out of memory tells only that
    it needs more than it had.
    """

    def __init__(self) -> None:
        """Begins with nothing known."""
        self._values: dict[str, Values] = {}  # the configurations by key
        self._keys: dict[str, tuple[Trial, str]] = {}  # by trial: each report asks for it
        self._peaks: dict[str, int] = {}  # the largest peak of a configuration's trials above their contexts
        self._limits: dict[str, int] = {}  # the same of the largest memory with which one of them ran out
        self._contexts: dict[str, int] = {}  # by trial id
        self._least_context = 0  # the smallest of them
        self._context = self._own_bytes = 0  # the largest since ``choose_first``, and what that was given
        self._first: set[str] = set()
        self._learned: LearnedFootprints | None = None
        self._fitted = self._new = 0  # what it knew, and what has come since

    def choose_first(self, requests: Sequence[Request], own_bytes: int) -> list[str]:
        """The ids of the trials that teach the most. They keep their memory if nothing is known yet.

        ``own_bytes`` is the size of this process if trials run in it, and else 0.
        """
        self._context, self._own_bytes = 0, own_bytes
        missing = max(0, FIRST - len(self._peaks))
        indices = spread([_values(request.trial) for request in requests], missing)
        chosen = [requests[index].trial.trial_id for index in indices]
        self._first = set() if self._peaks else set(chosen)
        return chosen

    def report(self, trial: Trial, raw: MemoryEstimate, report: EpochReport) -> bool:
        """See ``FootprintFit.report``."""
        memory = report.memory_bytes
        if memory is None:
            return False
        if not report.metrics:  # its training begins
            self._contexts[trial.trial_id] = memory
            self._least_context = min(memory, self._least_context or memory)
            self._context = max(memory, self._context)
            return False
        return self._add_peak(trial, memory)

    def learn(self, trial: Trial, raw: MemoryEstimate, result: AttemptResult) -> bool:
        """See ``FootprintFit.learn``."""
        if result.status == "out_of_memory" and result.limit_bytes:
            key = self._key(trial)
            self._limits[key] = max(self._above(trial, result.limit_bytes), self._limits.get(key, 0))
            return self._add(SURPRISE)
        if result.peak_bytes and result.status in (*SUCCESSFUL, "paused", "diverged"):
            return self._add_peak(trial, result.peak_bytes)
        return False

    def correct(self, request: Request, raw: MemoryEstimate) -> Request:
        """See ``FootprintFit.correct``. The request is unchanged as long as nothing is known."""
        if not self._peaks and not self._limits:
            return request
        if self._learned is None:
            self._fit()
        assert self._learned is not None
        prediction = self._learned.predict(_values(request.trial))
        # Before the first trial of this process, what is expected of its workers, or what earlier ones took.
        context = self._context or max(raw.context_bytes, self._least_context, self._own_bytes)
        estimate = replace(
            raw,
            activation_bytes=prediction.size_bytes,
            context_bytes=context,
            # A cap counts what is allocated, which on the CPU is more than the resident peak that was measured.
            margin=calibration.UNCALIBRATED_MARGIN,
            headroom_bytes=prediction.margin_bytes + raw.headroom_bytes,
        )
        missing = max(0, context + self._least(request.trial) - need_bytes(estimate))
        estimate = replace(estimate, headroom_bytes=estimate.headroom_bytes + missing)
        keeps_room = request.trial.trial_id in self._first and len(self._peaks) < FIRST
        least = need_bytes(raw) if keeps_room else 0
        return replace(request, estimate=estimate, need_bytes=max(need_bytes(estimate), least))

    def _least(self, trial: Trial) -> int:
        """What the same configuration took, for example with another seed, or more than it ran out with."""
        key = config_key(_values(trial))
        if key in self._peaks:
            return math.ceil(self._peaks[key] * (1 + calibration.CALIBRATED_MARGIN))
        return math.ceil(self._limits.get(key, 0) * RAN_OUT)

    def _add_peak(self, trial: Trial, peak: int) -> bool:
        key, peak = self._key(trial), self._above(trial, peak)
        if peak <= GREW * self._peaks.get(key, 0):
            return False
        self._peaks[key] = peak
        prediction = self._learned.predict(self._values[key]) if self._learned else Prediction(0, 0)
        surprises = key in self._limits or peak > prediction.size_bytes + prediction.margin_bytes
        return self._add(SURPRISE if surprises else 1)

    def _add(self, weight: int) -> bool:
        """Counts what is new; returns whether it is enough for another fit."""
        self._new += weight
        if self._learned is not None and self._new < NEW * self._fitted:
            return False
        self._learned = None
        return True

    def _fit(self) -> None:
        """Fits the peaks, and then what ran out of memory although the fit gives it no more than it had."""
        samples = [(self._values[key], float(self._peaks[key])) for key in _some(self._peaks)]
        learned = LearnedFootprints(samples) if samples else None
        small: list[tuple[Values, float]] = []
        for key in _some(self._limits):
            enough = RAN_OUT * self._limits[key]
            if key not in self._peaks and (not learned or learned.predict(self._values[key]).size_bytes < enough):
                small.append((self._values[key], enough))
        self._learned = LearnedFootprints([*samples, *small]) if small or not learned else learned
        self._fitted, self._new = len(self._peaks) + len(self._limits), 0

    def _above(self, trial: Trial, size_bytes: int) -> int:
        return max(LEAST_BYTES, size_bytes - self._contexts.get(trial.trial_id, self._least_context))

    def _key(self, trial: Trial) -> str:
        known, key = self._keys.get(trial.trial_id, (None, ""))
        if known is not trial:  # its values may be others than before
            values = _values(trial)
            # Nothing is known of a trial whose values are chosen later.
            key = config_key(values) if values else trial.trial_id
            self._keys[trial.trial_id], self._values[key] = (trial, key), values
        return key


def _some(keys: Iterable[str]) -> list[str]:
    """At most ``FITTED`` of these keys."""
    listed, half = list(keys), FITTED // 2
    return listed if len(listed) <= FITTED else [*listed[: -half : math.ceil(len(listed) / half)], *listed[-half:]]


def _values(trial: Trial) -> Values:
    """The values that may decide a trial's memory."""
    values = {name: value for name, value in trial.config.items() if name not in WITHOUT_MEMORY}
    return {name: str(value) if value is None else value for name, value in values.items()}  # None would be missing
