from __future__ import annotations

from typing import Any

import pytest

from tests.search.test_optuna_trials import CONDITIONAL
from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.objective import Objective
from tuner.search.domains import Space
from tuner.search.searchers import RaySearcher, explained
from tuner.search.spaces import parse_space

SPACE = parse_space(
    {"lr": {"loguniform": [1e-4, 1]}, "epochs": {"int": [1, 9]}, "fault": {"choice": [0, 1]}}, Toy().schema, "f"
)


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
    with pytest.raises(InputError, match="search=Fixed: it already has a space, a metric or a mode"):
        told(own=True)


def test_a_searcher_of_tune_takes_steps_and_neither_conditions_nor_points() -> None:
    stepped = parse_space({"lr": {"uniform": [0, 1], "step": 0.25}}, None, "f")
    assert told(stepped, suggests={"lr": 0.6})[0].ask("a") == {"lr": 0.5}
    with pytest.raises(InputError, match=r"search=Fixed: momentum, beta: searchers of ray\.tune support no"):
        told(CONDITIONAL)
    with pytest.raises(InputError, match="search=Fixed: it takes points in its own constructor"):
        RaySearcher(told()[0]._searcher, SPACE, Objective("val_loss"), [{"lr": 0.5}])


def test_a_searchers_own_error_names_it_and_the_key() -> None:
    space = parse_space({"lr": {"uniform": [0, 1]}, "size": {"choice": [1, 2]}}, None, "space")
    said = r"search='Picky': it cannot take lr = uniform \[0, 1\]: ValueError: Domain of lr is unknown"
    with pytest.raises(InputError, match=said), explained("Picky", space):
        raise ValueError("Domain of lr is unknown")
