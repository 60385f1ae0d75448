"""The order of a workload's trials, the best first. Whatever names, shows or keeps the best one asks this module."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.fronts import front_ranks, key_of, marked
from tuner.records.seed_statistics import averages, has_seeds, id_order


def ranked(rows: Sequence[Attempt], objective: Objective) -> list[Attempt]:
    """One workload's rows, the best first.

    Completed trials come first: by fronts if there are several objectives, which are the column ``front`` then; with
    several seeds by the means of their configurations, as ``averages`` has them; then by their own values. Trials
    that reported the metric without completing follow, then the others. Ties go to the lowest trial id.
    """
    fronts = front_ranks(rows, objective)
    means = averages(rows, objective) if has_seeds(rows) and not objective.others else []
    places = {(average.study, average.name): place for place, average in enumerate(means)}

    def order(row: Attempt) -> tuple[object, ...]:
        losses = row.losses(objective)
        if not stands(row, objective):
            return 2, row.status != "completed", losses
        place = places.get((row.study, row.name), 0) if row.status == "completed" else 0
        front = fronts.get(key_of(row), (math.inf, 0.0))
        return row.status != "completed", place, front, losses, id_order(row)

    return marked(sorted(rows, key=order), fronts)


def stands(row: Attempt, objective: Objective) -> bool:
    """Whether a trial can be the best: it has reported every metric, and breaks no constraint."""
    return row.status != "infeasible" and all(
        isinstance(row.value(one.metric), (int, float)) for one in objective.all
    )


def best_of(rows: Sequence[Attempt], objective: Objective) -> Attempt | None:
    """The best of one workload's rows; None if none has reported the metric. One that is not completed says so."""
    return next((row for row in ranked(rows, objective)[:1] if stands(row, objective)), None)


def best_first(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> list[Attempt]:
    """The rows by workload in the order of ``objectives``, each workload's best first."""
    by_workload: dict[str, list[Attempt]] = {name: [] for name in objectives}
    for row in rows:
        by_workload[row.workload].append(row)
    return [row for name, own in by_workload.items() for row in ranked(own, objectives[name])]


def contenders(rows: Sequence[Attempt], objective: Objective, unfinished: Collection[str]) -> list[Attempt]:
    """Of ranked rows of which each can be the best: the best one, and those that may still become it.

    Seeds may follow of ``unfinished`` configurations, so the best seed of each may become it. All others are final.
    """
    if not rows or rows[0].status != "completed" or objective.others:
        return list(rows[:1])
    first = {row.name: row for row in reversed(rows) if row.status == "completed"}
    final = next((row for row in rows if first.get(row.name) is row and row.name not in unfinished), None)
    return [row for row in rows if first.get(row.name) is row and (row.name in unfinished or row is final)]
