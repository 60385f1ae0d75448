"""Constraints on what a trial takes or reports, such as ``estimated_gb <= 2``: parsed, never evaluated as code."""

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import ParameterError, joined
from tuner.trial import GB, KNOWN, MemoryEstimate, Outcome

PATTERN = re.compile(
    r"\s*([A-Za-z_][\w./@-]*)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\w*)\s*"
)
FORM = "expected a name, one of <= < >= > and a number, such as 'estimated_gb <= 2' or 'parameters < 5M'"
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
TIMES: Mapping[str, float] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# Units by the endings of names that have them.
UNITS: Mapping[str, Mapping[str, float]] = {
    "_gb": {"GB": 1.0, "MB": 2**-10},
    "_s": TIMES,
    "_seconds": TIMES,
    "_ms": {"ms": 1.0, "s": 1e3},
    "": {"K": 1e3, "M": 1e6, "B": 1e9},
}
ESTIMATED, INFERENCE, PARAMETERS, STEP = KNOWN
INFEASIBLE = 10  # so many times the trials that were asked for may be left out as they break constraints
LEAST = 1e-12  # the excess of a value that is equal to the bound, where that is not enough


@dataclass(frozen=True)
class Constraint:
    """A condition that a trial's figure must keep."""

    text: str
    name: str
    compare: str
    bound: float

    def excess(self, value: float) -> float:
        """By how much a value breaks it; 0 or less if it is kept. NaN is infinitely far."""
        if COMPARE[self.compare](value, self.bound):
            return 0.0
        distance = math.inf if math.isnan(value) else abs(value - self.bound)
        return distance or LEAST


def parse_constraint(text: str) -> Constraint:
    """A constraint from its text; raises ``InputError`` if it is none."""
    found = PATTERN.fullmatch(text)
    if not found:
        raise ParameterError("constraints", text, FORM)
    name, compare, number, unit = found.groups()
    units = next(units for ending, units in UNITS.items() if name.endswith(ending))
    if unit and unit not in units:
        raise ParameterError("constraints", text, f"{name} has the units {', '.join(units)}, not {unit}")
    return Constraint(text.strip(), name, compare, float(number) * units.get(unit, 1.0))


def known_figures(estimate: MemoryEstimate) -> dict[str, float]:
    """What an estimate knows of a trial before it runs; a footprint that is learned knows nothing."""
    if estimate.is_learned:
        return {}
    known = {PARAMETERS: float(estimate.parameters), INFERENCE: estimate.inference_bytes / GB}
    known[STEP] = estimate.step_seconds or 0.0
    return {ESTIMATED: estimate.total_bytes / GB} | {name: value for name, value in known.items() if value}


def broken(constraints: Sequence[Constraint], figures: Mapping[str, float | None]) -> str:
    """Which of the constraints these figures break; those without a figure are not looked at. Empty for none."""
    known = [(one, value) for one in constraints if (value := figures.get(one.name)) is not None]
    wrong = [
        f"{one.name} is {value:.6g}, not {one.compare} {one.bound:g}" for one, value in known if one.excess(value)
    ]
    return "; ".join(wrong)


def excesses(constraints: Sequence[Constraint], figures: Mapping[str, float | None]) -> list[float]:
    """By how much each constraint is broken, as samplers of Optuna take it; 0 where there is no figure."""
    return [one.excess(value) if (value := figures.get(one.name)) is not None else 0.0 for one in constraints]


def constrained(outcome: Outcome, constraints: Sequence[Constraint], wanted: Collection[str] = ()) -> Outcome:
    """How a trial ended: as ``infeasible`` if it is completed and breaks a constraint.

    It has the known figures that constraints name or that are ``wanted``, too.
    """
    if outcome.status != "completed" or not (constraints or wanted) or outcome.placement is None:
        return outcome
    known = known_figures(outcome.placement.estimate)
    figures = {**known, **outcome.metrics}
    missing = [one.name for one in constraints if one.name not in figures]
    why = broken(constraints, figures) or "; ".join(
        f"it reported no {name}, which a constraint names" for name in missing
    )
    named = {one.name for one in constraints} - {ESTIMATED} | set(wanted)
    own = {name: value for name, value in known.items() if name in named}
    return infeasible(replace(outcome, metrics={**own, **outcome.metrics}), why)


def infeasible(outcome: Outcome, why: str) -> Outcome:
    """The outcome of a trial that breaks the constraints of which ``why`` tells; the same if it tells of none."""
    return replace(outcome, status="infeasible", error=joined(why, outcome.error)) if why else outcome
