"""The order of a workload's trials, the best first. Only this module decides which trial is the best.

With several objectives trials are ranked by front, and within a front by crowding. Source: K. Deb et al., A fast and
elitist multiobjective genetic algorithm: NSGA-II, IEEE Transactions on Evolutionary Computation 6, 2002.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.seed_statistics import LARGEST_SUMMED, by_mean, has_seeds, id_order
from tuner.trial import FRONT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Rank = tuple[float, float]  # the front, and the negated crowding distance
NO_RANK: Rank = (math.inf, 0.0)


def ranked(rows: Sequence[Attempt], objective: Objective) -> list[Attempt]:
    """One workload's rows, the best first.

    Completed trials come first: with several objectives by fronts, which become the column ``front``; with several
    seeds by the order of ``by_mean``; then by their own values. Those with an infinitely bad value follow, whatever
    their front; then trials that reported the metric without completing, and the others. Ties go to the lowest trial
    id.
    """
    several = has_seeds(rows) and not objective.others
    means = by_mean(rows, objective) if several else []
    places = {(group[0].study, group[0].name): place for place, group in enumerate(means)}

    def order(pair: tuple[Attempt, Rank]) -> tuple[object, ...]:
        row, front = pair
        losses, completed = row.losses(objective), row.status == "completed"
        if not stands(row, objective):
            return 2, not completed, losses
        place = places.get((row.study, row.name), 0) * completed
        return not completed, place, math.inf in losses, front, losses, id_order(row)

    pairs = sorted(zip(rows, _fronts(rows, objective), strict=True), key=order)
    return [row if rank == NO_RANK else _with(row, rank) for row, rank in pairs]


def _with(row: Attempt, rank: Rank) -> Attempt:
    return replace(row, metrics={**row.metrics, FRONT: int(rank[0])})


def stands(row: Attempt, objective: Objective) -> bool:
    """Whether a trial can be the best: it has reported every metric, and breaks no constraint."""
    return row.status != "infeasible" and all(
        isinstance(row.value(one.metric), (int, float)) for one in objective.all
    )


def best_of(rows: Sequence[Attempt], objective: Objective) -> Attempt | None:
    """The best of one workload's rows; None if none has reported the metric. One that is not completed says so."""
    return next((row for row in ranked(rows, objective)[:1] if stands(row, objective)), None)


def best_first(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> list[Attempt]:
    """The rows of the workloads of ``objectives`` in their order, each workload's best first."""
    by_workload = {name: [row for row in rows if row.workload == name] for name in objectives}
    return [row for name, objective in objectives.items() for row in ranked(by_workload[name], objective)]


def contenders(rows: Sequence[Attempt], objective: Objective, unfinished: Collection[str]) -> list[Attempt]:
    """The best of these ranked rows, and those that may still become it. Each row can be the best.

    ``unfinished`` configurations have seeds to come, so the best seed of each may become it. All others are final.
    """
    if not rows or rows[0].status != "completed" or objective.others:
        return list(rows[:1])
    first = {row.name: row for row in reversed(rows) if row.status == "completed"}
    final = next((row for row in rows if first.get(row.name) is row and row.name not in unfinished), None)
    return [row for row in rows if first.get(row.name) is row and (row.name in unfinished or row is final)]


def _fronts(rows: Sequence[Attempt], objective: Objective) -> list[Rank]:
    """The rank of each completed trial that has all values of several objectives."""
    ranks = [NO_RANK] * len(rows)
    if not objective.others:
        return ranks
    places = [place for place, row in enumerate(rows) if row.status == "completed" and stands(row, objective)]
    if not places:
        return ranks
    import numpy as np
    from optuna.study._multi_objective import _fast_non_domination_rank

    valued = np.array([rows[place].losses(objective) for place in places])
    fronts = _fast_non_domination_rank(valued)
    worst = (valued == math.inf).any(axis=1)  # these follow the others, so they are not their neighbours
    for front, which in set(zip(fronts.tolist(), worst.tolist(), strict=True)):
        members = np.flatnonzero((fronts == front) & (worst == which))
        for one, distance in zip(members.tolist(), _crowding(valued[members]).tolist(), strict=True):
            ranks[places[one]] = front + 1.0, -distance
    return ranks


def _crowding(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance of each trial of a front to its neighbours, over all objectives; infinite at the ends."""
    import numpy as np

    distance = np.zeros(len(losses))
    for column in np.clip(losses, -LARGEST_SUMMED, LARGEST_SUMMED).T:  # the difference of infinities is no number
        order = np.argsort(column, kind="stable")
        least, most = column[order[0]], column[order[-1]]
        if most > least:
            distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / (most - least)
        distance[(column == least) | (column == most)] = math.inf
    return distance
