from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.search.domains import Space
from tuner.search.searchers import OptunaSearcher, RaySearcher, Searcher, to_searcher
from tuner.search.spaces import parse_space
from tuner.trial import Objective

SPACE = parse_space(
    {"lr": {"loguniform": [1e-4, 1]}, "epochs": {"int": [1, 9]}, "fault": {"choice": [0, 1]}}, Toy().schema, "f"
)


def minimised(searcher: Searcher, number: int) -> list[Mapping[str, Any]]:
    """What it suggests for a metric that is smallest at lr 0.01 with fault 0."""
    from math import log10

    suggested = []
    for index in range(number):
        values = searcher.ask(f"t{index}")
        assert values is not None
        suggested.append(values)
        searcher.tell(f"t{index}", "completed", abs(log10(values["lr"]) + 2) + values["fault"])
    return suggested


def test_optuna_learns_what_is_better() -> None:
    suggested = minimised(OptunaSearcher(SPACE, seed=1), 40)
    assert all(SPACE["lr"].values[0] <= each["lr"] <= 1 and 1 <= each["epochs"] <= 9 for each in suggested)
    late = suggested[20:]
    assert sum(each["fault"] == 0 and 1e-3 < each["lr"] < 1e-1 for each in late) >= 12, "at random it would be 5"
    assert suggested[:5] == minimised(OptunaSearcher(SPACE, seed=1), 5) != minimised(OptunaSearcher(SPACE, seed=2), 5)


def test_optuna_is_told_of_earlier_trials_again() -> None:
    searcher = OptunaSearcher(SPACE, seed=1)
    for index in range(30):
        good = index % 2 == 0
        searcher.recall(f"t{index}", {"lr": 0.01 if good else 0.5, "epochs": 3, "fault": 0 if good else 1})
        searcher.report(f"t{index}", 1, 9.0)
        searcher.tell(f"t{index}", "completed" if good else "pruned", 0.1 if good else None)
    suggested = [searcher.ask(f"u{index}") for index in range(10)]
    assert sum(each["fault"] == 0 for each in suggested if each) >= 8


def test_optuna_is_told_each_end_and_reports_once() -> None:
    searcher = OptunaSearcher(SPACE)
    ends: list[tuple[Any, float | None]] = [
        ("completed", 1.0),
        ("completed", float("nan")),
        ("pruned", 2.0),
        ("failed", None),
    ]
    for index, (state, value) in enumerate(ends):
        searcher.ask(f"t{index}")
        for epoch in (1, 2, 1):
            searcher.report(f"t{index}", epoch, epoch / 2)
        searcher.tell(f"t{index}", state, value)
    trials = searcher._study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "PRUNED", "FAIL"]
    assert trials[0].intermediate_values == {1: 0.5, 2: 1.0}


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"search='optuna': Optuna is not installed: .*\[optuna\]'$"):
        to_searcher("optuna", SPACE, Objective("val_loss"), 0)


@pytest.mark.parametrize("of_tune", [False, True])
def test_a_searcher_that_maximises_suggests_what_one_that_minimises_the_negative_does(of_tune: bool) -> None:
    from ray.tune.search.optuna import OptunaSearch

    asked = []
    for direction in ("minimize", "maximize"):
        objective = Objective("val_loss", direction)  # type: ignore[arg-type]
        searcher = to_searcher(OptunaSearch(seed=0) if of_tune else "optuna", SPACE, objective, seed=0)
        for number in range(24):
            values = searcher.ask(f"t{number}") or {}
            asked.append(dict(values))
            loss = abs(float(values["lr"]) - 0.3)
            searcher.report(f"t{number}", 1, objective.loss(loss + 0.1))
            searcher.report(f"t{number}", 2, objective.loss(loss))
            searcher.tell(f"t{number}", "completed" if number % 3 else "pruned", objective.loss(loss))
    assert asked[:24] == asked[24:]


def test_to_a_searcher_of_tune_the_best_of_a_pruned_trial_that_is_maximised_is_its_highest() -> None:
    searcher, calls = told(direction="maximize", adds=True)
    searcher.ask("a")
    for epoch, value in enumerate((3.0, 4.0, 2.0), 1):
        searcher.report("a", epoch, value)
    searcher.tell("a", "pruned", None)
    searcher.recall("b", {"lr": 0.5, "epochs": 3, "fault": 0})
    searcher.tell("b", "failed", None)
    assert calls[0] == ("val_loss", "max", ["epochs", "fault", "lr"])
    assert calls[4] == ("a-1", 4.0, False)
    assert calls[5][1] == float("-inf"), "which is worse than any other"


def told(space: Space | None = None, **hooks: Any) -> tuple[RaySearcher, list[Any]]:
    """A searcher of Tune's that suggests what it is given, and what it was told."""
    from ray.tune.search import Searcher as TuneSearcher

    calls: list[Any] = []

    class Fixed(TuneSearcher):
        def set_search_properties(self, metric: str, mode: str, config: Any, **spec: Any) -> bool:
            calls.append((metric, mode, sorted(config)))
            return "own" not in hooks

        def suggest(self, trial_id: str) -> Any:
            return hooks.get("suggests", {"lr": 0.1})

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            calls.append((trial_id, result["training_iteration"], result["val_loss"]))

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            calls.append((trial_id, result and result["val_loss"], error))

    if "adds" in hooks:
        Fixed.add_evaluated_point = lambda self, *values, **more: calls.append((*values, more))  # type: ignore[method-assign]
    objective = Objective("val_loss", hooks.get("direction", "minimize"))
    return RaySearcher(Fixed(), SPACE if space is None else space, objective), calls


def test_a_searcher_of_tune_is_asked_and_told() -> None:
    searcher, calls = told()
    assert searcher.ask("a") == {"lr": 0.1}
    for epoch, value in ((1, 3.0), (2, 4.0), (1, 2.0), (3, float("nan"))):  # an attempt repeats the first
        searcher.report("a", epoch, value)
    searcher.tell("a", "pruned", None)
    searcher.ask("b")
    searcher.tell("b", "failed", None)
    assert calls == [
        ("val_loss", "min", ["epochs", "fault", "lr"]),
        ("a-1", 1, 3.0),
        ("a-1", 2, 4.0),
        ("a-1", 3.0, False),
        ("b-2", None, True),
    ]
    assert told(suggests="FINISHED")[0].ask("a") is None


def test_a_suggestion_of_a_searcher_of_tune_that_is_refused_is_followed_by_another() -> None:
    from ray.tune.search.optuna import OptunaSearch

    searcher = RaySearcher(OptunaSearch(seed=0), SPACE, Objective("val_loss"))
    asked = []
    for _ in range(4):
        asked.append(searcher.ask("t001"))
        searcher.tell("t001", "pruned", None)
    assert len({values["lr"] for values in asked if values}) == 4


def test_what_is_unfit_is_worse_than_all_others_to_a_searcher_of_tune() -> None:
    from ray.tune.search.optuna import OptunaSearch

    tunes = OptunaSearch(seed=0)
    searcher = RaySearcher(tunes, SPACE, Objective("val_loss"))
    for trial_id in ("never ran", "diverged"):
        searcher.ask(trial_id)
    searcher.report("diverged", 1, 0.001)
    for trial_id in ("never ran", "diverged"):
        searcher.tell(trial_id, "unfit", None)
    searcher.recall("earlier", {"lr": 0.5, "epochs": 3, "fault": 0})
    searcher.tell("earlier", "unfit", None)
    assert [trial.state.name for trial in tunes._ot_study.trials] == ["PRUNED"] * 3


def test_a_searcher_of_tune_is_told_of_earlier_trials_if_it_can_be() -> None:
    searcher, calls = told(adds=True)
    searcher.recall("a", {"lr": 0.5, "epochs": 3, "fault": 0, "weight_decay": 0.0})
    searcher.report("a", 1, 3.0)
    searcher.tell("a", "completed", 2.0)
    assert calls[1:] == [
        ({"lr": 0.5, "epochs": 3, "fault": 0}, 2.0, {"error": False, "pruned": False, "intermediate_values": [3.0]})
    ]
    with pytest.raises(InputError, match=r"a searcher needs the keys of space=.* for earlier trials"):
        told({}, adds=True)[0].recall("a", {"lr": 0.5})
    with pytest.raises(InputError, match="resume: Fixed cannot take earlier trials: start a new study"):
        told()[0].recall("a", {"lr": 0.5})
    from ray.tune.search import ConcurrencyLimiter

    limited = RaySearcher(ConcurrencyLimiter(told()[0]._searcher, max_concurrent=2), SPACE, Objective("val_loss"))
    with pytest.raises(InputError, match="resume: Fixed cannot take earlier trials: start a new study"):
        limited.recall("a", {"lr": 0.5})


def test_a_searcher_that_cannot_be_used_says_why() -> None:
    with pytest.raises(InputError, match="search=Fixed: it has a space, a metric or a mode of its own"):
        told(own=True)
    with pytest.raises(
        InputError, match="search=3: give 'grid', 'random', 'optuna', an Optuna sampler or a searcher"
    ):
        to_searcher(3, SPACE, Objective("val_loss"), 0)


def test_a_sampler_of_optuna_is_used_as_it_is() -> None:
    import optuna

    searcher = to_searcher(optuna.samplers.RandomSampler(seed=3), SPACE, Objective("val_loss"), 0)
    assert isinstance(searcher, OptunaSearcher)
    with pytest.raises(InputError, match="an Optuna sampler needs a space"):
        to_searcher(optuna.samplers.RandomSampler(seed=3), {}, Objective("val_loss"), 0)


def test_a_sampler_with_a_seed_does_not_repeat_what_a_resumed_study_has() -> None:
    import optuna

    def sampled(earlier: int) -> Any:
        searcher = OptunaSearcher(SPACE, optuna.samplers.TPESampler(seed=0))
        for index in range(earlier):
            searcher.recall(f"t{index}", first)
        return searcher.ask("new")

    first = sampled(0)
    assert sampled(0) == first
    assert sampled(1) != first != sampled(2)


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


def test_optuna_is_asked_for_the_keys_of_its_branch_alone() -> None:
    searcher = OptunaSearcher(CONDITIONAL, seed=0)
    asked = [searcher.ask(f"t{index}") or {} for index in range(20)]
    assert {tuple(each) for each in asked} == {
        ("kind", "momentum", "sizes", "fixed"),
        ("kind", "beta", "sizes", "fixed"),
    }
    assert {each["momentum"] for each in asked if "momentum" in each} <= {0.5, 0.6, 0.7, 0.8, 0.9}
    assert {each["sizes"] for each in asked} == {"[64, 32]", "None"}
    assert all(("momentum" in trial.params) == (trial.params["kind"] == "sgd") for trial in searcher._study.trials)


def test_optuna_is_told_of_an_earlier_trial_with_the_values_of_its_branch() -> None:
    searcher = OptunaSearcher(CONDITIONAL, seed=0, points=[{"kind": "adam", "beta": 0.5}])
    searcher.recall("a", {"kind": "sgd", "momentum": 0.7, "beta": 0.1, "sizes": "None", "fixed": 3})
    assert searcher._study.trials[0].params == {"kind": "sgd", "momentum": 0.7, "sizes": "None"}
    suggested = searcher.ask("b")
    assert suggested and (suggested["kind"], suggested["beta"]) == ("adam", 0.5), "points follow what was tried"


def test_optuna_suggests_points_first() -> None:
    searcher = OptunaSearcher(SPACE, seed=0, points=[{"lr": 0.5}, {"lr": 0.25, "epochs": 2, "fault": 1}])
    first, second, third = (searcher.ask(each) or {} for each in "abc")
    assert (first["lr"], second) == (0.5, {"lr": 0.25, "epochs": 2, "fault": 1})
    assert third["lr"] not in (0.5, 0.25)


def test_a_searcher_of_tune_takes_steps_and_neither_conditions_nor_points() -> None:
    stepped = parse_space({"lr": {"uniform": [0, 1], "step": 0.25}}, None, "f")
    assert told(stepped, suggests={"lr": 0.6})[0].ask("a") == {"lr": 0.5}
    with pytest.raises(InputError, match=r"search=Fixed: momentum, beta: searchers of ray\.tune know no conditions"):
        told(CONDITIONAL)
    with pytest.raises(InputError, match="search=Fixed: it takes points in its own constructor"):
        to_searcher(told()[0]._searcher, SPACE, Objective("val_loss"), 0, [{"lr": 0.5}])
