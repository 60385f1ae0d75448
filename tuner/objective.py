"""What trials are compared by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["minimize", "maximize"]
DirectionWord = Literal["minimize", "maximize", "min", "max"]  # what a user may write

DIRECTIONS: Mapping[object, Direction] = {
    "minimize": "minimize",
    "min": "minimize",
    "maximize": "maximize",
    "max": "maximize",
}


@dataclass(frozen=True)
class Objective:
    """What the trials of a workload are compared by."""

    metric: str
    direction: Direction = "minimize"
    others: tuple[Objective, ...] = ()  # what they are compared by as well: then trials are ranked by fronts

    @property
    def all(self) -> tuple[Objective, ...]:
        """This one and the others."""
        return self, *self.others

    def loss(self, value: float) -> float:
        """The value, or its negative if it is maximised: lower is better. NaN stays NaN."""
        return -value if self.direction == "maximize" else value

    def better(self, value: float, than: float) -> bool:
        """Whether one value is better than another one. NaN is never better."""
        return self.loss(value) < self.loss(than)

    @property
    def worst(self) -> float:
        """The infinity than which every number is better."""
        return self.loss(math.inf)
