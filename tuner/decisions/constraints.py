"""Constraints on what a trial takes or reports, such as ``estimated_gb <= 2``: parsed, never evaluated as code."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tuner.errors import ParameterError, joined
from tuner.trial import GB, KNOWN, MemoryEstimate, Outcome
from tuner.values import Condition, parse_condition

ESTIMATED, INFERENCE, PARAMETERS, STEP = KNOWN
INFEASIBLE = 10  # how many infeasible suggestions a search may make for each trial that it may run
LEAST = 1e-12  # the excess of a value that is equal to the bound, where that is not enough


def parse_constraint(text: str) -> Condition:
    """A constraint from its text; raises ``InputError`` if it compares nothing with a number."""
    constraint = parse_condition("constraints", text)
    if constraint.fault:
        raise ParameterError("constraints", text, constraint.fault)
    if constraint.operator == "~":
        raise ParameterError("constraints", text, "~ compares texts", "give one of = != < <= > >=")
    return constraint


def excess(constraint: Condition, value: float) -> float:
    """By how much a value breaks a constraint; 0 if it is kept. NaN is infinitely far."""
    if constraint.holds(value):
        return 0.0
    distance = abs(value - (constraint.number or 0.0))
    return math.inf if math.isnan(distance) else distance or LEAST


def known_figures(estimate: MemoryEstimate) -> dict[str, float]:
    """The figures that an estimate gives of a trial before it runs; a learned footprint gives none."""
    if estimate.is_learned:
        return {}
    figures = {PARAMETERS: float(estimate.parameters), INFERENCE: estimate.inference_bytes / GB}
    figures[STEP] = estimate.step_seconds or 0.0
    return {ESTIMATED: estimate.total_bytes / GB} | {name: value for name, value in figures.items() if value}


def broken(constraints: Sequence[Condition], figures: Mapping[str, float | None]) -> str:
    """Which constraints these figures break; empty for none. Constraints without a figure are skipped."""
    values = [(one, value) for one in constraints if (value := figures.get(one.name)) is not None]
    wrong = [(one, value) for one, value in values if excess(one, value)]
    return "; ".join(f"{one.name} is {value:.6g}, not {one.operator} {one.number:g}" for one, value in wrong)


def excesses(constraints: Sequence[Condition], figures: Mapping[str, float | None]) -> list[float]:
    """By how much each constraint is broken, as samplers of Optuna take it; 0 where there is no figure."""
    return [excess(one, value) if (value := figures.get(one.name)) is not None else 0.0 for one in constraints]


def constrained(outcome: Outcome, constraints: Sequence[Condition], wanted: Collection[str] = ()) -> Outcome:
    """How a trial ended: as ``infeasible`` if it is completed and breaks a constraint.

    Figures that constraints name, or that are ``wanted``, are added to its metrics.
    """
    if outcome.status != "completed" or not (constraints or wanted) or outcome.placement is None:
        return outcome
    estimated = known_figures(outcome.placement.estimate)
    figures = {**estimated, **outcome.metrics}
    missing = [one.name for one in constraints if one.name not in figures]
    why = broken(constraints, figures) or "; ".join(
        f"it reported no {name}, which a constraint names" for name in missing
    )
    named = {one.name for one in constraints} - {ESTIMATED} | set(wanted)
    added = {name: value for name, value in estimated.items() if name in named}
    return infeasible(replace(outcome, metrics={**added, **outcome.metrics}), why)


def infeasible(outcome: Outcome, why: str) -> Outcome:
    """The outcome as ``infeasible`` for the reason ``why``; unchanged if that is empty."""
    return replace(outcome, status="infeasible", error=joined(why, outcome.error)) if why else outcome
