"""When a study has seen enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from rpds import HashTrieMap

from tuner.decisions.events import Concluded, Ended, Reported, Stopping
from tuner.decisions.state import Running, State
from tuner.decisions.stopping import EndLimits, StudyStopping
from tuner.errors import spelled
from tuner.objective import Objective
from tuner.trial import Device, EpochReport, MemoryEstimate, Outcome, Placement, Request, Status, Trial


def why(limits: EndLimits, ends: Iterable[tuple[Status, float | None, str]], *, hopeless: bool = False) -> str:
    """Why the study ends after these trials, the last of which decides; empty if it goes on."""
    enough = StudyStopping({"net": Objective("loss")}, limits)
    for number, (status, value, error) in enumerate(ends):
        assert enough.decide(State(), 0.0) is None, "it should have gone on before the last one"
        trial = Trial(f"t{number}", "net", "one", {}, seed=0)
        metrics = {} if value is None else {"loss": value}
        outcome = Outcome(trial, status, metrics=metrics, error=error, hopeless=hopeless)
        ended = Ended(trial, outcome.result, metrics, outcome=outcome)
        enough.hear(State(), ended)
        enough.hear(State(), Concluded(ended))
    decision = enough.decide(State(), 0.0)
    assert enough.decide(State(stopping=True), 0.0) is None
    return spelled(decision.why) if isinstance(decision, Stopping) else ""


def failures(*errors: str) -> list[tuple[Status, float | None, str]]:
    return [("failed", None, error) for error in errors]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (failures("no x1", "no x2", "no x3.5e-4"), "the first 3 trials have failed alike: no x3.5e-4"),
        (failures("no x", "no x"), ""),
        (failures("no x", "no y", "no y", "no y", "no y"), ""),
        ([("completed", 1.0, ""), *failures("no x", "no x", "no x")], ""),
        ([("out_of_memory", None, "no x"), *failures("no x", "no x", "no x")], ""),
    ],
)
def test_a_study_ends_if_its_first_trials_fail_alike(
    ends: list[tuple[Status, float | None, str]], expected: str
) -> None:
    reason = why(EndLimits(fail_fast=3), ends)
    assert reason.startswith(expected) and bool(reason) == bool(expected)
    assert why(EndLimits(fail_fast=0), ends) == ""


def test_trials_that_fail_alike_on_one_node_do_not_end_those_on_others(gpu_16gb: Device) -> None:
    bad, good = (
        Placement(
            Trial(node, "net", node, {}, 0), MemoryEstimate.given(1), replace(gpu_16gb, node_id=node), 0.1, 1, 1
        )
        for node in ("bad", "good")
    )
    running = HashTrieMap({"good": Running(Request(good.trial, good.estimate, 1), good)})
    stopping = StudyStopping({"net": Objective("loss")}, EndLimits(fail_fast=2))
    outcome = Outcome(bad.trial, "failed", bad, error="no file")
    for state, why in (
        (State(running=running), "NoneType"),
        (State(running=running), "NoneType"),
        (State(), "Stopping"),
    ):
        stopping.hear(state, Concluded(Ended(outcome.trial, outcome.result, {}, outcome=outcome)))
        assert type(stopping.decide(state, 0.0)).__name__ == why


def test_a_trial_of_an_earlier_process_that_never_ran_does_not_count() -> None:
    enough = StudyStopping({"net": Objective("loss")}, EndLimits(patience=1))
    for attempt, status in ((1, "completed"), (0, "infeasible")):
        outcome = Outcome(Trial("t1", "net", "one", {}, 0, attempt), status, metrics={"loss": 1.0})  # type: ignore[arg-type]
        enough.hear(State(), Concluded(Ended(outcome.trial, outcome.result, outcome.metrics)))
    assert enough.decide(State(), 0.0) is None


def test_a_report_without_the_metric_ends_a_study_at_once() -> None:
    assert why(EndLimits(fail_fast=3), failures("no loss"), hopeless=True) == "no trial can succeed: no loss"
    assert why(EndLimits(fail_fast=0), failures("no loss"), hopeless=True) == ""


@pytest.mark.parametrize(
    ("limits", "values", "expected"),
    [
        (EndLimits(target=0.5), [0.9, 0.6, 0.5], "loss is 0.5, and the target was 0.5"),
        (EndLimits(target=0.5), [0.9, 0.51], ""),
        (EndLimits(patience=2), [0.9, 0.8, 0.8, 0.9], "the best has not improved in 2 trials"),
        (EndLimits(patience=2), [0.9, 1.0, 0.8, 0.9], ""),
        (EndLimits(patience=2), [None, None, None], ""),
    ],
)
def test_a_study_ends_at_its_target_or_when_nothing_improves(
    limits: EndLimits, values: list[float | None], expected: str
) -> None:
    ends: list[tuple[Status, float | None, str]] = [
        ("diverged" if value is None else "completed", value, "") for value in values
    ]
    assert why(limits, ends) == expected


def test_what_an_earlier_process_saw_counts() -> None:
    enough = StudyStopping({"net": Objective("loss")}, EndLimits(fail_fast=1, patience=2))
    for number, value in enumerate([3.0, 4.0, 5.0, 1.0]):
        trial = Trial(f"t{number}", "net", "one", {}, seed=0)
        outcome = Outcome(trial, "completed", metrics={"loss": value})
        enough.hear(State(), Concluded(Ended(trial, outcome.result, outcome.metrics)))
    assert enough.decide(State(), 0.0) is None, "the last trial is the best"
    failed = Outcome(Trial("t9", "net", "one", {}, seed=0), "failed", error="no x")
    enough.hear(State(), Concluded(Ended(failed.trial, failed.result, {}, outcome=failed)))
    assert enough.decide(State(), 0.0) is None, "a trial that was completed before is no failure"


def test_a_report_without_the_metric_ends_no_study_in_which_another_has_it() -> None:
    enough = StudyStopping({"net": Objective("loss")}, EndLimits(fail_fast=3))
    enough.hear(State(), Reported(EpochReport("t1", 1, 1, {"loss": 1.0}), 0.0))
    failed = Outcome(Trial("t2", "net", "one", {}, seed=0), "failed", error="no loss", hopeless=True)
    enough.hear(State(), Ended(failed.trial, failed.result, {}, outcome=failed))
    assert enough.decide(State(), 0.0) is None
