from __future__ import annotations

from typing import Any

import pytest

from tests.support.toy import Batched
from tuner.errors import InputError
from tuner.search.domains import Domain
from tuner.search.drawing import draw, grid, size
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


def test_a_grid_has_every_combination_and_no_range() -> None:
    space = {"lr": {"choice": [1, 0.5]}, "weight_decay": {"choice": [0, 0.1]}, "epochs": 2}
    assert [tuple(each.values()) for each in grid(parsed(space), "f")] == [
        (1.0, 0.0, 2),
        (1.0, 0.1, 2),
        (0.5, 0.0, 2),
        (0.5, 0.1, 2),
    ]
    with pytest.raises(
        InputError, match=r"f: lr: a range has no grid: give {choice: \[...\]} or a step, or use search='random'"
    ):
        grid(parsed({"lr": {"uniform": [0, 1]}}), "f")


def test_the_same_seed_draws_the_same_different_values() -> None:
    space = parsed({"lr": {"uniform": [0, 1]}, "epochs": {"int": [1, 3]}})
    drawn = draw(space, 20, 7, "f")
    assert drawn == draw(space, 20, 7, "f") != draw(space, 20, 8, "f")
    assert drawn[:5] == draw(space, 5, 7, "f"), "more samples only add some"
    few = parsed({"epochs": {"int": [1, 3]}})
    assert sorted(each["epochs"] for each in draw(few, 3, 0, "f")) == [1, 2, 3]
    with pytest.raises(InputError, match="num_samples=4: f has 3: give at most 3"):
        draw(few, 4, 0, "f")


def test_values_that_do_not_go_together_are_drawn_again() -> None:
    space = parsed({"epochs": {"int": [1, 100]}})
    drawn = draw(space, 10, 0, "f", lambda values: "odd" if values["epochs"] % 2 else "")
    assert len(drawn) == 10
    assert all(each["epochs"] % 2 == 0 for each in drawn)
    with pytest.raises(InputError, match=r"f gave 0 usable ones, and then none in 1000 draws; .*: never"):
        draw(space, 1, 0, "f", lambda _: "never")


def test_a_step_gives_a_range_a_grid_of_tidy_values() -> None:
    space = opened({"lr": {"uniform": [0, 0.35], "step": 0.1}, "n": {"int": [16, 64], "step": 24}})
    rows = grid(space, "f")
    assert [each["lr"] for each in rows[::3]] == [0.0, 0.1, 0.2, 0.3], "and not 0.30000000000000004"
    assert [each["n"] for each in rows[:3]] == [16, 40, 64]
    assert len(rows) == size(space) == 12
    drawn = draw(opened({"lr": {"loguniform": [0.1, 1], "step": 0.1}}), 10, 0, "f")
    assert sorted(each["lr"] for each in drawn) == [each / 10 for each in range(1, 11)]
    with pytest.raises(InputError, match=r"f: a grid of 1e\+09 combinations; 100,000 .* use search='random'$"):
        grid(opened({"lr": {"uniform": [0, 1], "step": 1e-9}}), "f")


def test_a_key_is_absent_where_its_conditions_do_not_hold() -> None:
    space = opened(CONDITIONAL)
    rows = grid(space, "f")
    assert rows[:2] == [{"kind": "adam"}, {"kind": "sgd", "momentum": 0.8}]
    assert {"kind": "sgd", "momentum": 0.9, "nesterov": "False"} in rows
    assert len(rows) == size(space) == 1 + 4 + 3
    drawn = draw(space, 8, 0, "f")
    assert sorted(map(str, drawn)) == sorted(map(str, rows)), "random draws have the same configurations"
    with pytest.raises(InputError, match="num_samples=9: f has 8: give at most 8"):
        draw(space, 9, 0, "f")


def test_a_space_with_a_range_in_one_branch_is_infinite() -> None:
    ranged = {"kind": {"choice": ["a", "b"]}, "x": {"uniform": [0, 1], "if": {"kind": "b"}}}
    assert size(opened(ranged)) == float("inf")
    assert len(draw(opened(ranged), 5, 0, "f")) == 5


def test_points_are_tried_first_and_completed_at_random() -> None:
    space = opened({"lr": {"uniform": [0, 1]}, "kind": {"choice": ["a", "b"]}})
    points = parse_points([{"lr": 0.25, "kind": "b"}, {"lr": 0.5}], space, "f")
    drawn = draw(space, 4, 0, "f", points=points)
    assert drawn[0] == {"lr": 0.25, "kind": "b"}
    assert drawn[1]["lr"] == 0.5 and drawn[1]["kind"] in ("a", "b")
    assert drawn[:3] == draw(space, 3, 0, "f", points=points)
    with pytest.raises(InputError, match="num_samples=1: f has 2 points to try first: give at least 2"):
        draw(space, 1, 0, "f", points=points)


def test_points_are_put_first_in_a_grid_once() -> None:
    space = opened(CONDITIONAL)
    points = parse_points([{"kind": "lion", "momentum": 0.85}, {"kind": "adam"}], space, "f")
    rows = grid(space, "f", points)
    assert rows[:2] == [{"kind": "lion", "momentum": 0.85}, {"kind": "adam"}]
    assert len(rows) == 8
    assert sorted(map(str, rows)) == sorted(map(str, grid(space, "f")))


def test_a_range_of_more_values_than_can_be_counted_is_drawn_from() -> None:
    space = opened({"n": {"int": [1, 10**40]}, "lr": {"uniform": [0, 1], "step": 1e-300}})
    assert size(space) > 1e59
    assert len(draw(space, 2, 0, "f")) == 2
