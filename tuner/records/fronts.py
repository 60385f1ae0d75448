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
    found: dict[str, Rank] = {}
    for name, objective in objectives.items():
        found |= front_ranks([row for row in rows if row.workload == name], objective)
    return marked(rows, found)


def marked(rows: Sequence[Attempt], found: Mapping[str, Rank]) -> list[Attempt]:
    """The rows with their fronts as a metric, as far as they are ``found``."""
    return [
        replace(row, metrics={**row.metrics, FRONT: int(found[key][0])}) if (key := key_of(row)) in found else row
        for row in rows
    ]


def front_ranks(rows: Sequence[Attempt], objective: Objective) -> dict[str, Rank]:
    """The ranks of one workload's completed trials that have all values of several objectives, by ``key_of``."""
    if not objective.others:
        return {}
    losses = {key_of(row): row.losses(objective) for row in rows if row.status == "completed"}
    valued = {key: values for key, values in losses.items() if all(map(math.isfinite, values))}
    return _ranked(list(valued), list(valued.values())) if valued else {}


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


def key_of(row: Attempt) -> str:
    """What tells a trial from those of other studies."""
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
