"""Constraints on what a trial takes or reports."""

from __future__ import annotations

import math

import pytest

from tuner.decisions.constraints import broken, constrained, excesses, known_figures, parse_constraint
from tuner.errors import InputError
from tuner.machine.devices import ram_device
from tuner.trial import GB, LEARNED, MemoryEstimate, Outcome, Placement, Trial


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("estimated_gb <= 2", 2.0),
        ("estimated_gb<=512MB", 0.5),
        ("parameters < 1.5M", 1.5e6),
        ("latency_ms > -1e-3 s", -1.0),
        ("epoch_seconds >= 2 m", 120.0),
        ("val/acc@10 >= .5", 0.5),
        ("folds == 2", 2.0),
        ("val_loss < inf", math.inf),
        ("__import__('os').getcwd() < 2", 2.0),
    ],
)
def test_a_constraint_is_a_name_a_comparison_and_a_number_with_a_unit(text: str, bound: float) -> None:
    assert parse_constraint(text).number == pytest.approx(bound)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("estimated_gb", r"constraints='estimated_gb': expected a name, one of = != < <= > >= ~ and a value"),
        ("2 < estimated_gb", "expected a name, one of"),
        ("estimated_gb <= two", "estimated_gb holds numbers, and 'two' is not a number"),
        ("a ~ 2", "a ~ 2': ~ compares texts: give one of = != < <= > >="),
        ("estimated_gb <= 2 ms", "estimated_gb has the units GB, MB, not ms"),
    ],
)
def test_what_is_no_constraint_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_constraint(text)


def test_it_is_told_which_constraints_are_broken_and_by_how_much() -> None:
    constraints = [parse_constraint(text) for text in ("a <= 2", "b < 1", "c > 0")]
    assert broken(constraints, {"a": 2.5, "b": 1.0}) == "a is 2.5, not <= 2; b is 1, not < 1"
    assert excesses(constraints, {"a": 2.5, "b": 1.0}) == [0.5, 1e-12, 0.0]
    assert excesses(constraints, {"a": 2.0, "b": 0.5, "c": 1.0}) == [0.0, 0.0, 0.0]
    assert excesses(constraints[:1], {"a": math.nan}) == [math.inf]
    assert excesses([parse_constraint("a = 2"), parse_constraint("a != 2")], {"a": 2.0}) == [0.0, 1e-12]


def ended(estimate: MemoryEstimate, **metrics: float) -> Outcome:
    trial = Trial("t1", "net", "one", {}, seed=0)
    place = Placement(trial, estimate, ram_device(), 1.0, GB, 1)
    return Outcome(trial, "completed", place, metrics)


def test_a_trial_that_breaks_a_constraint_or_does_not_report_it_is_infeasible() -> None:
    constraints = [parse_constraint("ms <= 5"), parse_constraint("parameters < 1K")]
    estimate = MemoryEstimate("traced", parameter_bytes=GB, parameters=900)
    assert known_figures(estimate) == {"estimated_gb": 1.0, "parameters": 900}
    kept = constrained(ended(estimate, ms=5.0), constraints)
    assert (kept.status, kept.metrics) == ("completed", {"parameters": 900, "ms": 5.0})
    over, silent = constrained(ended(estimate, ms=6.0), constraints), constrained(ended(estimate), constraints)
    assert (over.status, over.error) == ("infeasible", "ms is 6, not <= 5")
    assert (silent.status, silent.error) == ("infeasible", "it reported no ms, which a constraint names")


def test_nothing_is_known_of_a_learned_footprint() -> None:
    assert known_figures(MemoryEstimate(LEARNED, activation_bytes=GB)) == {}
