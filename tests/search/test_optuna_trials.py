from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from tests.support.toy import Toy
from tuner.objective import Direction
from tuner.search.domains import Space
from tuner.search.optuna_names import SAMPLERS, make_pruner, make_sampler
from tuner.search.optuna_trials import OptunaTrials, new_study
from tuner.search.searchers import State
from tuner.search.spaces import parse_space

SPACE = parse_space(
    {"lr": {"loguniform": [1e-4, 1]}, "epochs": {"int": [1, 9]}, "fault": {"choice": [0, 1]}}, Toy().schema, "f"
)
CONDITIONAL = parse_space(
    {
        "kind": {"choice": ["adam", "sgd"]},
        "momentum": {"uniform": [0.5, 0.9], "step": 0.1, "if": {"kind": "sgd"}},
        "beta": {"loguniform": [0.01, 1], "if": {"kind": "adam"}},
        "sizes": {"choice": [[64, 32], None]},
        "fixed": 3,
    },
    None,
    "f",
)


def searcher(
    name: str = "tpe", space: Space = SPACE, seed: int = 0, direction: Direction = "minimize", points: Any = ()
) -> OptunaTrials:
    return OptunaTrials(new_study(make_sampler(name, (), seed), directions=[direction]), space, points)


def suggested(trials: OptunaTrials, number: int, sign: int = 1) -> list[Mapping[str, Any]]:
    """What is suggested for a metric that is best at lr 0.01 with fault 0."""
    found: list[Mapping[str, Any]] = []
    for index in range(number):
        values: Any = trials.ask(f"t{index}")
        found.append(values)
        trials.tell(f"t{index}", "completed", sign * (abs(math.log10(values["lr"]) + 2) + values["fault"]))
    return found


def test_a_sampler_learns_what_is_better() -> None:
    found = suggested(searcher(seed=1), 40)
    assert all(1e-4 <= values["lr"] <= 1 and 1 <= values["epochs"] <= 9 for values in found)
    late = found[20:]
    assert sum(values["fault"] == 0 and 1e-3 < values["lr"] < 1e-1 for values in late) >= 12, (
        "at random it would be 5"
    )
    assert found[:5] == suggested(searcher(seed=1), 5) != suggested(searcher(seed=2), 5)
    assert found == suggested(searcher(seed=1, direction="maximize"), 40, sign=-1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_suggests_and_goes_on_with_earlier_trials(name: str) -> None:
    space = parse_space({"x": {"uniform": [0, 1], "step": 0.05}, "n": {"int": [1, 9]}}, None, "f")
    trials = searcher(name, space)
    for index, values in enumerate([{"x": 0.25, "n": 3}, {"x": 0.5, "n": 4}]):
        trials.recall(f"t{index}", values)
        trials.tell(f"t{index}", "completed", values["x"])
    for index in range(2, 14):
        asked: Any = trials.ask(f"t{index}")
        assert asked.keys() == {"x", "n"} and 0 <= asked["x"] <= 1
        trials.tell(f"t{index}", "completed", asked["x"])


def test_bruteforce_ends_when_everything_was_tried_also_side_by_side() -> None:
    space = parse_space({"n": {"int": [1, 4]}, "b": {"choice": ["x", "y"], "if": {"n": 1}}}, None, "f")
    trials = searcher("bruteforce", space)
    asked = [trials.ask(f"t{index}") for index in range(3)]
    for index in range(3):
        trials.tell(f"t{index}", "completed", 1.0)
    asked += [trials.ask("t3"), trials.ask("t4")]
    assert len({str(values) for values in asked}) == 5
    assert trials.ask("t5") is None
    trials.tell("t3", "completed", 1.0)
    trials.tell("t4", "unfit")
    assert trials.ask("t5") is None


def test_bruteforce_tries_each_value_of_a_stepped_range_of_any_digits() -> None:
    draw = Random(0)
    for _ in range(200):
        low, step = draw.choice([0.0, 0.1, draw.uniform(-5, 5)]), draw.choice([0.1, 0.311, draw.uniform(0.01, 1)])
        high = low + draw.choice([2, 4, draw.uniform(2, 4)]) * step
        space = parse_space({"x": {"uniform": [low, high], "step": step}}, None, "f")
        trials, found = searcher("bruteforce", space), list[Any]()
        while values := trials.ask("t"):
            found.append(values["x"])
            trials.tell("t", "completed", 1.0)
        assert sorted(found) == list(space["x"].listed) and len(found) == space["x"].count
        assert all(space["x"].taken(value) == (value,) and low <= value <= high for value in found)


@pytest.mark.parametrize("kind", ["int", "logint"])
def test_a_gaussian_process_searches_more_integers_than_memory_holds(kind: str) -> None:
    space = parse_space({"n": {kind: [1, 10**12]}, "x": {"uniform": [0, 1], "step": 1e-12}}, None, "f")
    trials = searcher("gp", space)
    for number in range(12):
        values: Any = trials.ask(f"t{number}")
        assert type(values["n"]) is int and 1 <= values["n"] <= 10**12 and values["x"] == round(values["x"], 12)
        trials.tell(f"t{number}", "completed", values["x"])


def test_earlier_trials_are_learned_from() -> None:
    trials = searcher(seed=1)
    for index in range(30):
        good = index % 2 == 0
        trials.recall(f"t{index}", {"lr": 0.01 if good else 0.5, "epochs": 3, "fault": 0 if good else 1})
        trials.report(f"t{index}", 1, 9.0)
        trials.tell(f"t{index}", "completed" if good else "pruned", 0.1 if good else None)
    asked: list[Any] = [trials.ask(f"u{index}") for index in range(10)]
    assert sum(values["fault"] == 0 for values in asked) >= 8


def test_every_end_is_told_and_reports_count_once() -> None:
    trials = searcher()
    ends: list[tuple[State, float | None]] = [
        ("completed", 1.0),
        ("completed", float("nan")),
        ("pruned", 2.0),
        ("unfit", None),
        ("failed", None),
    ]
    for index, (state, value) in enumerate(ends):
        trials.ask(f"t{index}")
        for epoch in (1, 2, 1):
            trials.report(f"t{index}", epoch, epoch / 2)
        trials.tell(f"t{index}", state, value)
    told = trials.study.trials
    assert [trial.state.name for trial in told] == ["COMPLETE", "FAIL", "PRUNED", "PRUNED", "FAIL"]
    assert told[0].intermediate_values == {1: 0.5, 2: 1.0}


def test_only_the_keys_of_a_branch_are_suggested() -> None:
    trials = searcher(space=CONDITIONAL)
    asked = [trials.ask(f"t{index}") or {} for index in range(20)]
    assert {tuple(values) for values in asked} == {
        ("kind", "momentum", "sizes", "fixed"),
        ("kind", "beta", "sizes", "fixed"),
    }
    assert {values["momentum"] for values in asked if "momentum" in values} <= {0.5, 0.6, 0.7, 0.8, 0.9}
    assert {repr(values["sizes"]) for values in asked} == {"[64, 32]", "None"}
    assert all(("momentum" in trial.params) == (trial.params["kind"] == "sgd") for trial in trials.study.trials)


def test_points_follow_what_was_tried_and_precede_suggestions() -> None:
    trials = searcher(space=CONDITIONAL, points=[{"kind": "adam", "beta": 0.5}])
    trials.recall("a", {"kind": "sgd", "momentum": 0.7, "beta": 0.1, "sizes": None, "fixed": 3})
    assert trials.study.trials[0].params == {"kind": "sgd", "momentum": 2, "sizes": None}, (
        "0.7 is two steps above 0.5"
    )
    values = trials.ask("b")
    assert values and (values["kind"], values["beta"]) == ("adam", 0.5)


def test_what_a_pruner_stops_stays_stopped_in_a_retry() -> None:
    trials = OptunaTrials(new_study(pruner=make_pruner("asha")))
    for trial_id in "abc":
        trials.recall(trial_id, {})
    assert [trials.report("a", epoch, 1.0) for epoch in (1, 2)] == [False, False]
    assert trials.report("b", 1, 2.0)
    assert trials.report("b", 1, 0.0) and trials.report("b", 2, 0.0), "it had been stopped before its attempt ended"
    assert trials.report("c", 1, float("nan"))


def test_a_sampler_is_told_what_broke_a_constraint_and_of_unrun_trials_not_too_often() -> None:
    study = new_study(make_sampler("tpe", constrained=True))
    trials = OptunaTrials(study, parse_space({"lr": {"uniform": [0.0, 1.0]}}, None, "space"))
    for number in range(14):
        trials.ask(f"t{number}")
        trials.tell(f"t{number}", "unfit", None, excess=[1.0])
    trials.ask("kept")
    trials.tell("kept", "completed", 0.5, excess=[0.0])
    trials.ask("over")
    trials.tell("over", "unfit", 0.1, excess=[2.0])
    states = [trial.state.name for trial in study.trials]
    assert states == ["PRUNED"] * 11 + ["FAIL"] * 3 + ["COMPLETE"] * 2
    assert study.best_trial.user_attrs["constraints"] == [0.0]
