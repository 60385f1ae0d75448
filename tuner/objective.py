"""What trials are compared by."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Direction = Literal["minimize", "maximize"]
DirectionWord = Literal["minimize", "maximize", "min", "max"]  # what a user may write

DIRECTIONS: Mapping[object, Direction] = {
    "minimize": "minimize",
    "min": "minimize",
    "maximize": "maximize",
    "max": "maximize",
}
BEST = "best"  # a score: the best report of a trial counts
SCORE = re.compile(r"best|last|mean:([1-9]\d{0,3})")


@dataclass(frozen=True)
class Objective:
    """What the trials of a workload are compared by."""

    metric: str
    direction: Direction = "minimize"
    others: tuple[Objective, ...] = ()  # what they are compared by as well: then trials are ranked by fronts
    score: str = BEST  # which reports of a trial count, by ``SCORE``

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

    @cached_property
    def last(self) -> int:
        """How many of a trial's last reports count, by their means; 0 if the best one does."""
        match = SCORE.fullmatch(self.score)
        assert match, self.score
        return int(match[1] or self.score != BEST)

    def mean(self, reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The means of the metrics of the last reports, which count."""
        counted = reports[-self.last :]
        names = dict.fromkeys(name for report in counted for name in report)
        return {name: mean([report[name] for report in counted if name in report]) for name in names}


def mean(values: Sequence[float]) -> float:
    """The mean, which is not finite if a value is not, or their sum is too large; ``fmean`` raises then."""
    return sum(values) / len(values)
