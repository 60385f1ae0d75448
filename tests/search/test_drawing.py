from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from tests.support.toy import Batched
from tuner.errors import InputError
from tuner.search.domains import Domain, size
from tuner.search.drawing import Draws, check_number, draws, grid
from tuner.search.spaces import parse_points, parse_space

CONDITIONAL = {
    "kind": {"choice": ["adam", "sgd", "lion"]},
    "momentum": {"uniform": [0.8, 0.9], "step": 0.05, "if": {"kind": ["sgd", "lion"]}},
    "nesterov": {"choice": [True, False], "if": {"kind": "sgd", "momentum": 0.9}},
}


def parsed(space: Any) -> dict[str, Domain]:
    return parse_space(space, Batched().schema, "f")


def opened(space: Any) -> dict[str, Domain]:
    return parse_space(space, None, "f")


def drawn(space: dict[str, Domain], number: int, seed: int = 0, points: Any = ()) -> list[dict[str, Any]]:
    return list(islice(draws(space, seed, points), number))


def test_a_grid_has_every_combination_and_no_range() -> None:
    space = {"lr": {"choice": [1, 0.5]}, "weight_decay": {"choice": [0, 0.1]}, "epochs": 2}
    assert [tuple(row.values()) for row in grid(parsed(space), "f")] == [
        (1.0, 0.0, 2),
        (1.0, 0.1, 2),
        (0.5, 0.0, 2),
        (0.5, 0.1, 2),
    ]
    with pytest.raises(
        InputError,
        match=r"f: lr: a range without a step has no grid: give {choice: \[...\]} or a step, or use search=",
    ):
        grid(parsed({"lr": {"uniform": [0, 1]}}), "f")


def test_the_same_seed_draws_the_same() -> None:
    space = parsed({"lr": {"uniform": [0, 1]}, "epochs": {"int": [1, 3]}})
    assert drawn(space, 20, 7) == drawn(space, 20, 7) != drawn(space, 20, 8)
    assert len({row["lr"] for row in drawn(space, 20, 7)}) == 20
    with pytest.raises(InputError, match="num_samples=4: f has 3: give at most 3"):
        check_number(parsed({"epochs": {"int": [1, 3]}}), 4, "f", [])


def test_under_grid_search_every_combination_takes_its_turn() -> None:
    space = opened(
        {"a": {"grid_search": [1, 2]}, "b": {"grid_search": ["x", "y"]}, "lr": {"uniform": [0, 1]}, "fixed": 3}
    )
    assert check_number(space, 2, "f", []) == 8
    rows = drawn(space, 8)
    combinations = [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert [(row["a"], row["b"]) for row in rows] == 2 * combinations
    assert len({row["lr"] for row in rows}) == 8
    with pytest.raises(InputError, match="f: points: a grid_search has all its combinations tried"):
        check_number(space, 2, "f", [{"a": 1}])
    with pytest.raises(InputError, match="num_samples=2: f has 1: give at most 1"):
        check_number(opened({"a": {"grid_search": [1, 2]}}), 2, "f", [])


def test_a_step_gives_a_range_a_grid_of_tidy_values() -> None:
    space = opened({"lr": {"uniform": [0, 0.35], "step": 0.1}, "n": {"int": [16, 64], "step": 24}})
    rows = grid(space, "f")
    assert [row["lr"] for row in rows[::3]] == [0.0, 0.1, 0.2, 0.3], "and not 0.30000000000000004"
    assert [row["n"] for row in rows[:3]] == [16, 40, 64]
    assert len(rows) == size(space) == 12
    rows = drawn(opened({"lr": {"loguniform": [0.1, 1], "step": 0.1}}), 100)
    assert {row["lr"] for row in rows} == {tenth / 10 for tenth in range(1, 11)}
    with pytest.raises(InputError, match=r"f: a grid of 1e\+09 combinations; the most is 100,000: .* use search="):
        grid(opened({"lr": {"uniform": [0, 1], "step": 1e-9}}), "f")


def test_a_key_is_absent_where_its_conditions_do_not_hold() -> None:
    space = opened(CONDITIONAL)
    rows = grid(space, "f")
    assert rows[:2] == [{"kind": "adam"}, {"kind": "sgd", "momentum": 0.8}]
    assert {"kind": "sgd", "momentum": 0.9, "nesterov": False} in rows
    assert len(rows) == size(space) == 1 + 4 + 3
    assert {*map(str, drawn(space, 200))} == {*map(str, rows)}, "random draws have the same configurations"
    with pytest.raises(InputError, match="num_samples=9: f has 8: give at most 8"):
        check_number(space, 9, "f", [])


def test_a_space_with_a_range_in_one_branch_is_infinite() -> None:
    ranged = {"kind": {"choice": ["a", "b"]}, "x": {"uniform": [0, 1], "if": {"kind": "b"}}}
    assert size(opened(ranged)) == float("inf")


def test_points_are_tried_first_and_completed_at_random() -> None:
    space = opened({"lr": {"uniform": [0, 1]}, "kind": {"choice": ["a", "b"]}})
    points = parse_points([{"lr": 0.25, "kind": "b"}, {"lr": 0.5}], space, "f")
    rows = drawn(space, 4, points=points)
    assert rows[0] == {"lr": 0.25, "kind": "b"}
    assert rows[1]["lr"] == 0.5 and rows[1]["kind"] in ("a", "b")
    with pytest.raises(InputError, match="num_samples=1: f has 2 points to try first: give at least 2"):
        check_number(space, 1, "f", points)


def test_draws_are_distinct_and_go_on_after_those_that_are_known_until_there_are_no_more() -> None:
    space = opened(CONDITIONAL)
    whole, again = Draws(space, 3), Draws(space, 3)
    asked = [whole.ask("") or {} for _ in range(8)]
    assert {*map(str, asked)} == {*map(str, grid(space, "f"))} and whole.ask("") is None
    assert asked[0] == drawn(space, 1, seed=3)[0], "they are the draws of a list of samples"
    for values in asked[:5]:
        again.recall("", {"momentum": 0.7, **values})
    assert [again.ask("") for _ in range(4)] == [*asked[5:], None]


def test_points_are_put_first_in_a_grid_once() -> None:
    space = opened(CONDITIONAL)
    points = parse_points([{"kind": "lion", "momentum": 0.85}, {"kind": "adam"}], space, "f")
    rows = grid(space, "f", points)
    assert rows[:2] == [{"kind": "lion", "momentum": 0.85}, {"kind": "adam"}]
    assert len(rows) == 8
    assert sorted(map(str, rows)) == sorted(map(str, grid(space, "f")))


def test_a_range_of_more_values_than_can_be_counted_is_drawn_from() -> None:
    space = opened({"n": {"int": [1, 10**40]}, "log": {"logint": [1, 10**40]}})
    assert size(space) > 1e59
    assert len(drawn(space, 2)) == 2
