"""The options of what trials are compared by, and of when a study has seen enough."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from tuner.decisions.constraints import parse_constraint
from tuner.decisions.stopping import EndLimits
from tuner.errors import ParameterError
from tuner.objective import BEST, DIRECTIONS, SCORE, Direction
from tuner.spec.options import Options, Terminal, Texts, field
from tuner.values import Condition


def _listed(given: object) -> object:
    """One text as a list of it; None as an empty one."""
    return () if given is None else (given,) if isinstance(given, str) else given


def _directions(given: object) -> object:
    """The directions' full names; another word is refused when the choices are checked."""
    listed = _listed(given)
    return tuple(DIRECTIONS.get(word, word) for word in listed) if isinstance(listed, (list, tuple)) else listed


def _constraints(given: object) -> object:
    texts = _listed(given)
    for text in texts if isinstance(texts, (list, tuple)) else ():
        parse_constraint(str(text))
    return texts


def _score(given: object) -> object:
    if not SCORE.fullmatch(str(given)):
        raise ParameterError("score", given, "must be best, last, or mean:N with 1 to 9999 reports")
    return given


Score = Annotated[str, BeforeValidator(_score)]
Metrics = Annotated[Texts, BeforeValidator(_listed)]
Directions = Annotated[tuple[Direction, ...], BeforeValidator(_directions)]
Constraints = Annotated[Texts, BeforeValidator(_constraints)]


class ObjectiveOptions(Options, title="Configurations and data"):
    """What trials are compared by."""

    metric: Metrics = field(
        (),
        "The metric that trials are compared by, such as val_loss. With several metrics, such as val_loss and "
        "inference_gb, trials are ranked by Pareto fronts.",
        Terminal("NAME", common=True, unset="the workload's own"),
    )
    direction: Directions = field(
        (),
        "Whether a smaller or a larger metric is better: minimize (or min), or maximize (or max).",
        Terminal(
            "min|max",
            common=True,
            unset="what the workload says, else minimize; functions, scripts and metrics such as an accuracy need it",
            choices=("minimize", "maximize", "min", "max"),
        ),
    )

    score: Score = field(
        BEST,
        "Which reports of a function or a script count: best, last, or mean:N for the mean of the last N, such as "
        "of N folds.",
        Terminal("best|last|mean:N"),
    )
    constraints: Constraints = field(
        (),
        "A condition that the best trial must meet, such as 'estimated_gb <= 2' or 'val_latency_ms < 5': a "
        "name, a comparison and a number with a unit. A configuration that breaks one on estimated_gb, "
        "inference_gb, parameters or step_seconds is not run, as these are known before.",
        Terminal("CONDITION", "--constraint"),
    )

    inference_batch: int | None = field(
        None,
        "The batch size of the forward pass that inference_gb measures, for a workload.",
        Terminal("N", unset="that of training"),
        ge=1,
    )

    @property
    def compared_by(self) -> tuple[str, ...]:
        """The names of metrics and figures by which trials are compared or constrained."""
        return (*self.metric, *(one.name for one in self.limited_by))

    @property
    def limited_by(self) -> tuple[Condition, ...]:
        """The constraints."""
        return tuple(map(parse_constraint, self.constraints))


class EarlyEnd(Options, title="Execution"):
    """When a study ends before all of its trials have run."""

    fail_fast: int = field(
        3,
        "End the study if its first N trials fail with the same error, and at once if a report lacks the "
        "metric. 0 never ends it.",
        Terminal("N"),
        ge=0,
    )
    patience: int | None = field(None, "End the study after N trials without an improvement.", Terminal("N"), ge=1)
    target: float | None = field(
        None, "End the study once the metric of a completed trial has reached this value.", Terminal("VALUE")
    )

    @property
    def limits(self) -> EndLimits:
        """The same for the policy that ends a study."""
        return EndLimits(self.fail_fast, self.patience, self.target)
