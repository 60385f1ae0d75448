"""What was tried against what came of it: parallel coordinates, and the metric against each hyperparameter."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tuner.study_folder import Row
from tuner.trial import SUCCESSFUL
from tuner.views.page.axes import Axis, metric_axis, value_axis, varying
from tuner.views.page.figure import Figure, count_text, number_text

MOST = 12  # so many hyperparameters are drawn
QUARTERS = 4
COMMON = 0.6  # a value that this share of the best has is named


def judged(rows: Sequence[Row], metric: str) -> list[Row]:
    """The rows that ended well and have the metric, in their order."""
    return [row for row in rows if row["status"] in SUCCESSFUL and row.get(metric) is not None]


def parallel_coordinates(rows: Sequence[Row], metric: str) -> Figure:
    """A line for each trial through its hyperparameters to its metric.

    Args:
        rows: of one workload, best first.
        metric: its column.
    """
    title = "What the trials tried, and what came of it"
    done = judged(rows, metric)
    keys = varying(done)[:MOST]
    if len(done) < 2 or not keys:
        return Figure("coordinates", title, _too_few(done, metric))
    axes = [*(value_axis(key, done) for key in keys), metric_axis(metric, done)]
    data = {
        "axes": [axis.to_record() for axis in axes],
        "metric": metric,
        "ids": [row["trial_id"] for row in done],
        "values": [row[metric] for row in done],
    }
    text = f"{count_text(len(done), 'trial')}, each a line from left to right; the stronger its colour, "
    text += f"the lower {metric}. {_common(done, keys)}"
    return Figure("coordinates", title, text.strip(), data, height=380, minimum_width=90 * len(axes))


def against_each(rows: Sequence[Row], metric: str) -> list[Figure]:
    """The metric against each hyperparameter that varies: one small figure each, on the axes of parallel coordinates.

    Args:
        rows: of one workload, best first.
        metric: its column.
    """
    done = judged(rows, metric)
    if len(done) < 2:
        return []
    level, figures = metric_axis(metric, done), []
    for number, key in enumerate(varying(done)[:MOST]):
        axis = value_axis(key, done)
        data = {"axis": number, "medians": _medians(axis, level)}
        figures.append(Figure("against", axis.label, _effect(axis, done, metric), data, height=240))
    return figures


def _too_few(rows: Sequence[Row], metric: str) -> str:
    if not rows:
        return f"No trial has ended with a {metric} yet, so there is nothing to compare."
    if len(rows) == 1:
        return "Only one trial has ended well, so there is nothing to compare."
    return "All trials have the same hyperparameters, so there is nothing to compare."


def _common(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """What most of the best tenth, and at least three, have in common."""
    best = rows[: max(3, len(rows) // 10)]
    if len(rows) < 2 * len(best):
        return ""
    found = []
    for key in keys:
        value, count = Counter(number_text(row.get(key)) for row in best).most_common(1)[0]
        share = sum(number_text(row.get(key)) == value for row in rows) / len(rows)
        if count >= COMMON * len(best) and count / len(best) > share:
            found.append(f"{count} have {key.removeprefix('config/')} {value}")
    return f"Of the best {len(best)}, {', '.join(found)}." if found else ""


def _medians(axis: Axis, level: Axis) -> list[tuple[float, float]]:
    """The median place for each value of an even axis; none for others."""
    if axis.scale != "even":
        return []
    groups: dict[float, list[float]] = {}
    for x, y in zip(axis.places, level.places, strict=True):
        if x is not None and y is not None:
            groups.setdefault(x, []).append(y)
    return [(x, round(statistics.median(groups[x]), 4)) for x in sorted(groups)]


def _effect(axis: Axis, rows: Sequence[Row], metric: str) -> str:
    if axis.scale != "even":
        return _numeric_effect(axis, rows, metric)
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(number_text(row.get(axis.key)), []).append(row[metric])
    medians = {value: statistics.median(group) for value, group in groups.items()}
    low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    return (
        f"Median {metric} lowest at {low} ({number_text(medians[low])}, {count_text(len(groups[low]), 'trial')}), "
        f"highest at {high} ({number_text(medians[high])}, {count_text(len(groups[high]), 'trial')})."
    )


def _numeric_effect(axis: Axis, rows: Sequence[Row], metric: str) -> str:
    """In which quarter of the trials by this hyperparameter the metric was lowest, and the rank correlation."""
    known = sorted(
        (row for row in rows if isinstance(row.get(axis.key), (int, float))), key=lambda row: row[axis.key]
    )
    if len(known) < len(rows) or len(known) < 2 * QUARTERS:
        return f"{metric} of {count_text(len(rows), 'trial')} against {axis.label}."
    cuts = [number * len(known) // QUARTERS for number in range(QUARTERS + 1)]
    quarters = [known[start:end] for start, end in pairwise(cuts)]
    medians = [statistics.median(row[metric] for row in quarter) for quarter in quarters]
    best = min(range(QUARTERS), key=medians.__getitem__)
    low, high = quarters[best][0][axis.key], quarters[best][-1][axis.key]
    rho = rank_correlation([row[axis.key] for row in known], [row[metric] for row in known])
    return (
        f"Of the quarters by {axis.label}, that from {number_text(low)} to {number_text(high)} has the lowest median "
        f"{metric} ({number_text(medians[best])}). Rank correlation {rho:+.2f}."
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, from -1 to 1, equal values sharing their mean rank; 0 where a list is constant.

    Source: Spearman (1904), computed as Pearson's correlation of the ranks.
    """
    ranks = _ranks(first), _ranks(second)
    return 0.0 if any(len(set(each)) < 2 for each in ranks) else statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: number for number, value in reversed(list(enumerate(order)))}
    counts = Counter(order)
    return [first[value] + (counts[value] - 1) / 2 for value in values]
