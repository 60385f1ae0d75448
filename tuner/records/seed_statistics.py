"""Means over seeds with confidence intervals, and which configurations differ significantly from the best.

The 95 % interval of a configuration's mean over n seeds is mean ± t · s / √n: s is the sample's standard deviation,
and t the 97.5 % quantile of Student's t with n - 1 degrees of freedom. Two configurations are compared in pairs, seed
by seed over their common seeds, as a seed's batches are the same for both. If the interval of the mean difference
includes 0, they cannot be told apart at 95 %. Nothing of this is made of seeds that agree exactly.

Source: NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.2.1 and 7.3.1.1 (paired observations). There
is no correction for multiple comparisons, nor for choosing the best by the same values.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from tuner.objective import Objective
from tuner.records.attempts import Attempt

LARGEST_SUMMED = 1e300  # larger values are divided by SCALE, which is exact, as their sum may be no number
SCALE = 2.0**64
NAMED = 40  # the most names that a sentence lists
Verdict = Literal["best", "=", "worse", "better", "not judged", ""]


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    half_width: float | None  # of the 95 % interval; None for a single value, and if all are the same
    count: int  # the number of values

    @property
    def deviation(self) -> float:
        """The standard deviation of the values; 0 for a single value."""
        return (self.half_width or 0.0) * math.sqrt(self.count) / t_quantile(max(1, self.count - 1))

    @property
    def includes_zero(self) -> bool:
        """Whether 0 is within the interval."""
        return self.half_width is not None and abs(self.mean) <= self.half_width


@dataclass(frozen=True)
class Average:
    """A configuration over its seeds."""

    name: str
    seeds: int  # the number of its trials that have a row
    values: Mapping[int, float]  # the metric by seed, of the completed trials
    interval: Interval | None  # the metric's mean; None if no trial is completed
    # The difference from the best configuration over their common seeds; None if there is nothing to compare.
    difference: Interval | None = None
    # "=" means that it cannot be told from the best, "not judged" that they have fewer than two common seeds. Rarely,
    # a configuration is "better" on the common seeds. Empty if there is only one seed.
    verdict: Verdict = ""
    study: str = ""

    @property
    def agrees(self) -> bool:
        """Whether several seeds gave exactly the same value, as of a program that does not use its seed."""
        return len(self.values) > 1 and len(set(self.values.values())) == 1


@cache
def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def interval_of(values: Sequence[float]) -> Interval:
    """The mean of one or more values with its 95 % interval."""
    count, scale = len(values), _scale(values)
    if count < 2:
        return Interval(_mean(values), None, count)
    deviation = statistics.stdev([value / scale for value in values])
    return Interval(_mean(values), t_quantile(count - 1) * deviation / math.sqrt(count) * scale, count)


def _mean(values: Sequence[float]) -> float:
    scale = _scale(values)
    return statistics.fmean([value / scale for value in values]) * scale


def _scale(values: Sequence[float]) -> float:
    return SCALE if max(map(abs, values)) > LARGEST_SUMMED else 1.0


def averages(rows: Sequence[Attempt], objective: Objective) -> list[Average]:
    """One workload's configurations over their seeds, in the order of ``by_mean``."""
    averaged = [_average(group, objective.metric) for group in by_mean(rows, objective)]
    if not has_seeds(rows) or not averaged[0].values:
        return averaged
    return [_judged(average, averaged[0], objective) for average in averaged]


def by_mean(rows: Sequence[Attempt], objective: Objective) -> list[list[Attempt]]:
    """The rows of each of one workload's configurations, the best first and those without a mean last.

    They are ranked by their means, with several seeds after those that have at least two completed ones; ties go to
    the lowest trial id.
    """
    by_name: dict[tuple[str, str], list[Attempt]] = {}
    for row in sorted(rows, key=id_order):
        by_name.setdefault((row.study, row.name), []).append(row)

    def order(group: Sequence[Attempt]) -> tuple[bool, float]:
        values = _values(group, objective.metric)
        return len(values) < 2, objective.loss(_mean([*values.values()])) if values else math.inf

    return sorted(by_name.values(), key=order)


def has_seeds(rows: Sequence[Attempt]) -> bool:
    """Whether trials have several seeds."""
    return len({row.seed for row in rows}) > 1


def id_order(row: Attempt) -> tuple[int, str]:
    """The order of trials by their ids."""
    return len(row.trial_id), row.trial_id


def _values(rows: Sequence[Attempt], metric: str) -> dict[int, float]:
    completed = {row.seed: row.number(metric) for row in rows if row.status == "completed"}
    return {seed: value for seed, value in completed.items() if math.isfinite(value)}


def _average(rows: Sequence[Attempt], metric: str) -> Average:
    values = _values(rows, metric)
    interval = interval_of(list(values.values())) if values else None
    average = Average(rows[0].name, len(rows), values, interval, study=rows[0].study)
    return replace(average, interval=replace(interval, half_width=None)) if interval and average.agrees else average


def _judged(average: Average, best: Average, objective: Objective) -> Average:
    if average is best:
        return replace(average, verdict="best")
    # Halves, as the difference of two finite numbers may be too large for one.
    halves = [average.values[seed] / 2 - best.values[seed] / 2 for seed in average.values if seed in best.values]
    if not halves or average.agrees or best.agrees:
        return replace(average, verdict="not judged")
    half = interval_of(halves)
    if half.half_width is None:
        return replace(average, difference=replace(half, mean=2 * half.mean), verdict="not judged")
    difference = Interval(2 * half.mean, 2 * half.half_width, half.count)
    if half.includes_zero:
        return replace(average, difference=difference, verdict="=")
    return replace(average, difference=difference, verdict="worse" if objective.loss(half.mean) > 0 else "better")


def summary(averaged: Sequence[Average]) -> str:
    """The result of the comparisons as text; empty if nothing was compared."""
    best = next((average for average in averaged if average.verdict == "best"), None)
    others = [average for average in averaged if average.verdict not in ("best", "")]
    lines = []
    if agree := [average.name for average in averaged if average.agrees]:
        lines.append(f"seeds agree exactly, so there is no interval and no comparison: {some_names(agree)}")
    if best is None or not others:
        return "\n".join(lines)
    if judged := [average for average in others if average.verdict != "not judged"]:
        same = [average.name for average in judged if average.verdict == "="]
        noun = f"other configuration{'s' * (len(judged) != 1)}"
        which = f"{len(same)} of {len(judged)} {noun} cannot be told from the best, {best.name},"
        if not same:
            which = f"the best, {best.name}, differs from {f'all {len(judged)}' if len(judged) > 1 else 'the'} {noun}"
        lines.append(
            f"{which} at 95 % (paired over {_counts(judged)} seeds; not corrected for many comparisons)"
            + (f": {some_names(same)}" if same else "")
        )
    unjudged = [average for average in others if average.verdict == "not judged" and not best.agrees]
    if skipped := [average.name for average in unjudged if not average.agrees]:
        lines.append(f"not judged, with fewer than two completed seeds in common: {some_names(skipped)}")
    return "\n".join(lines)


def some_names(names: Sequence[str], most: int = NAMED) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _counts(judged: Sequence[Average]) -> str:
    counts = sorted({average.difference.count for average in judged if average.difference})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
