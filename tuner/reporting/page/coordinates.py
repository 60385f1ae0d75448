"""What was tried against what came of it: parallel coordinates, and the metric against each hyperparameter."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tuner.records.rows import Row
from tuner.reporting.page.axes import Axis, metric_axis, value_axis, varying
from tuner.reporting.page.figure import Figure, count_text, number_text
from tuner.reporting.page.means import Compared, compared

MOST = 12  # so many hyperparameters are drawn
QUARTERS = 4
HEAD_PIXELS = 8  # a letter of an axis' head takes at most so many CSS pixels
COMMON = 0.6  # a value that this share of the best has is named


def parallel_coordinates(rows: Sequence[Row], metric: str) -> Figure:
    """A line for each trial through its hyperparameters to its metric; of several seeds, for each configuration.

    Args:
        rows: of one workload, best first.
        metric: its column.
    """
    found = compared(rows, metric)
    done, count = found.rows, len(found.rows)
    title = f"What the {found.noun}s tried, and what came of it"
    keys = varying(done)[:MOST]
    if count < 2 or not keys:
        return Figure("coordinates", title, _too_few(found, metric))
    axes = [axis.first(count) for axis in (*(_axis(key, found) for key in keys), _level(found))]
    data = {
        "axes": [axis.to_record() for axis in axes],
        "metric": found.metric,
        "ids": [row["trial_id"] for row in done],
        "values": [row[found.metric] for row in done],
    }
    text = f"{count_text(count, found.noun)}, each a line from left to right; the stronger its colour, "
    text += f"the lower {found.metric}. {_common(done, keys)}"
    apart = max(90, *(HEAD_PIXELS * len(axis.label) for axis in axes))
    return Figure("coordinates", title, text.strip(), data, height=380, minimum_width=apart * len(axes))


def against_each(rows: Sequence[Row], metric: str) -> list[Figure]:
    """The metric against each hyperparameter that varies: one small figure each, on the axes of parallel coordinates.

    Where the points are means of several seeds, the single trials are there as well.

    Args:
        rows: of one workload, best first.
        metric: its column.
    """
    found = compared(rows, metric)
    done, count = found.rows, len(found.rows)
    if count < 2:
        return []
    level, figures = _level(found), []
    for number, key in enumerate(varying(done)[:MOST]):
        axis = _axis(key, found)
        places = zip(axis.places[count:], level.places[count:], found.trials, strict=True)
        data = {
            "axis": number,
            "medians": _medians(axis.first(count), level.first(count)),
            "trials": [(x, y, row["trial_id"], row[found.metric]) for x, y, row in places],
        }
        figures.append(Figure("against", axis.label, _effect(axis, found), data, height=240))
    return figures


def _axis(key: str, found: Compared) -> Axis:
    """A hyperparameter's axis, with the places of the rows and then those of the trials behind means."""
    return value_axis(key, [*found.rows, *found.trials])


def _level(found: Compared) -> Axis:
    """The metric's axis, with the same places."""
    return metric_axis(found.metric, [*found.rows, *found.trials])


def _too_few(found: Compared, metric: str) -> str:
    if not found.rows:
        return f"No trial has ended with a {metric} yet, so there is nothing to compare."
    if len(found.rows) == 1:
        return f"Only one {found.noun} has ended well, so there is nothing to compare."
    return f"All {found.noun}s have the same hyperparameters, so there is nothing to compare."


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


def _effect(axis: Axis, found: Compared) -> str:
    if axis.scale != "even":
        return _numeric_effect(axis, found)
    groups: dict[str, list[float]] = {}
    for row in found.rows:
        groups.setdefault(number_text(row.get(axis.key)), []).append(row[found.metric])
    medians = {value: statistics.median(group) for value, group in groups.items()}
    low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    said = {value: f"{number_text(medians[value])}, {count_text(len(groups[value]), found.noun)}" for value in groups}
    median = f"{found.median[0].upper()}{found.median[1:]}"
    return f"{median} lowest at {low} ({said[low]}), highest at {high} ({said[high]})."


def _numeric_effect(axis: Axis, found: Compared) -> str:
    """In which quarter of the trials by this hyperparameter the metric was lowest, and the rank correlation."""
    rows, metric = found.rows, found.metric
    known = sorted(
        (row for row in rows if isinstance(row.get(axis.key), (int, float))), key=lambda row: row[axis.key]
    )
    if len(known) < len(rows) or len(known) < 2 * QUARTERS:
        return f"{metric} of {count_text(len(rows), found.noun)} against {axis.label}."
    cuts = [number * len(known) // QUARTERS for number in range(QUARTERS + 1)]
    quarters = [known[start:end] for start, end in pairwise(cuts)]
    medians = [statistics.median(row[metric] for row in quarter) for quarter in quarters]
    best = min(range(QUARTERS), key=medians.__getitem__)
    low, high = quarters[best][0][axis.key], quarters[best][-1][axis.key]
    rho = rank_correlation([row[axis.key] for row in known], [row[metric] for row in known])
    return (
        f"Of the quarters by {axis.label}, that from {number_text(low)} to {number_text(high)} has the lowest "
        f"{found.median} ({number_text(medians[best])}). Rank correlation {rho:+.2f}."
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
