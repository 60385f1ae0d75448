"""How values of hyperparameters change in population-based training."""

from __future__ import annotations

from random import Random

import pytest

from tuner.search.optuna_names import PopulationBasedTraining, mutated
from tuner.search.spaces import parse_space


def values(domain: dict[str, object], value: float | str, again: float = 0.0) -> set[object]:
    space = parse_space({"key": domain}, None, "space")
    return {mutated(space["key"], value, "drawn", again, Random(seed)) for seed in range(40)}


def test_a_number_changes_by_a_fifth_within_its_range() -> None:
    assert values({"loguniform": [0.1, 1.0]}, 0.5) == {0.4, 0.6}
    assert values({"uniform": [0.45, 0.55]}, 0.5) == {0.45, 0.55}


def test_a_whole_number_changes_by_one_at_least() -> None:
    assert values({"int": [1, 9]}, 2) == {1, 3}
    assert values({"int": [1, 100]}, 50) == {40, 60}


def test_a_choice_becomes_its_neighbour() -> None:
    assert values({"choice": ["a", "b", "c"]}, "b") == {"a", "c"}
    assert values({"choice": [16, 32]}, 16) == {16, 32}


def test_lists_and_equal_values_of_other_types_are_choices() -> None:
    space = parse_space({"key": {"choice": [[8], [8, 4], True, 1]}}, None, "space")
    found = [mutated(space["key"], value, "drawn", 0.0, Random(seed)) for seed in range(9) for value in ([8], 1)]
    assert {str(one) for one in found} == {"[8]", "[8, 4]", "True", "1"}


def test_a_value_is_drawn_anew_with_a_probability() -> None:
    assert values({"uniform": [0.0, 1.0]}, 0.5, again=1.0) == {"drawn"}
    assert values({"uniform": [0.0, 1.0]}, 0.5, again=0.5) == {"drawn", 0.4, 0.6}


def test_values_on_which_others_depend_stay() -> None:
    space = parse_space(
        {"optimizer": {"choice": ["sgd", "adam"]}, "momentum": {"uniform": [0, 1], "if": {"optimizer": "sgd"}}},
        None,
        "space",
    )
    options = PopulationBasedTraining()
    assert options.keys(space, {"optimizer": "sgd", "momentum": 0.5}) == ["momentum"]
    assert options.keys(space, {"optimizer": "adam"}) == []


@pytest.mark.parametrize("given", [{"interval": -1}, {"quantile": 0.0}, {"resample": 2.0}])
def test_options_have_bounds(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        PopulationBasedTraining(**given)  # type: ignore[arg-type]
