"""The ranks of trials with several objectives: by front, and within a front by crowding.

Source: K. Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, IEEE Transactions on Evolutionary
Computation 6, 2002.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.trial import FRONT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Rank = tuple[float, float]  # the front, and the negated crowding distance


def with_fronts(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> list[Attempt]:
    """The rows, where there are several objectives with the front of each."""
    return _with(rows, _ranks(rows, objectives))


def best_first(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> list[Attempt]:
    """The rows by workload in the order of ``objectives``: completed ones, the best first, then the others.

    With several objectives they have their fronts, and equal ones are ranked by the first objective.
    """
    order, found = list(objectives), _ranks(rows, objectives)

    def rank(row: Attempt) -> tuple[object, ...]:
        place = found.get(_key(row), (math.inf, 0.0))
        losses = row.losses(objectives[row.workload])
        return order.index(row.workload), row.status != "completed", *place, *losses

    return _with(sorted(rows, key=rank), found)


def _with(rows: Sequence[Attempt], found: Mapping[str, Rank]) -> list[Attempt]:
    return [
        replace(row, metrics={**row.metrics, FRONT: int(found[_key(row)][0])}) if _key(row) in found else row
        for row in rows
    ]


def _ranks(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> dict[str, Rank]:
    """The ranks of the completed trials that have all values of several objectives."""
    found: dict[str, Rank] = {}
    for workload, objective in objectives.items():
        own = [row for row in rows if objective.others and row.workload == workload and row.status == "completed"]
        losses = {_key(row): row.losses(objective) for row in own}
        valued = {key: values for key, values in losses.items() if all(map(math.isfinite, values))}
        found |= _ranked(list(valued), list(valued.values())) if valued else {}
    return found


def _ranked(keys: Sequence[str], values: Sequence[tuple[float, ...]]) -> dict[str, Rank]:
    import numpy as np
    from optuna.study._multi_objective import _fast_non_domination_rank

    losses = np.array(values)
    fronts = _fast_non_domination_rank(losses)
    crowding = np.zeros(len(keys))
    for front in set(fronts.tolist()):
        own = np.flatnonzero(fronts == front)
        crowding[own] = _crowding(losses[own])
    return {key: (float(fronts[place] + 1), -float(crowding[place])) for place, key in enumerate(keys)}


def _key(row: Attempt) -> str:
    return f"{row.study}/{row.trial_id}"


def _crowding(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance of each trial of a front to its neighbours, over all objectives; infinite at the ends."""
    import numpy as np

    distance = np.zeros(len(losses))
    for column in losses.T:
        order = np.argsort(column, kind="stable")
        least, most = column[order[0]], column[order[-1]]
        if most > least:
            distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / (most - least)
        distance[(column == least) | (column == most)] = math.inf
    return distance
