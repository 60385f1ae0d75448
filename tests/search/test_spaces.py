from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.toy import Batched
from tuner.errors import InputError
from tuner.search.domains import Domain
from tuner.search.drawing import draw, grid
from tuner.search.plain_values import plain_space
from tuner.search.spaces import parse_space
from tuner.trial import TextHyperparameter

SCHEMA = {**Batched().schema, "kind": TextHyperparameter("a", "", choices=("a", "b"))}


def parsed(space: Any) -> dict[str, Domain]:
    return parse_space(space, SCHEMA, "f.yaml")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([], "f.yaml: 'space' must be a mapping from hyperparameter to a value or a range"),
        ({}, "f.yaml: 'space' must be a mapping"),
        ({"rate": 1}, r"unknown key 'rate' \(known are"),
        ({"lr": {"gauss": [0, 1]}}, r"lr: 'gauss' is no kind of domain: give a value or one of {choice: \[...\]}, "),
        ({"lr": [0.1, 0.2]}, r"lr: \[0.1, 0.2\] is no domain: give a value or one of"),
        ({"lr": {"choice": []}}, r"lr: choice \[\]: expected a list that is not empty"),
        ({"lr": {"choice": [0.1, 11]}}, r"lr = 11 is out of range \(allowed: a number from 0 to 10\)"),
        ({"lr": {"uniform": [0.5, 0.1]}}, r"lr: uniform \[0.5, 0.1\] must rise: its low end comes first"),
        ({"lr": {"uniform": [0.5, 0.5]}}, "must rise: .*; for one value give 0.5$"),
        ({"lr": {"uniform": [0.1]}}, "must be two numbers, its ends"),
        ({"lr": {"uniform": [0.1, "x"]}}, "must be two numbers, its ends"),
        ({"lr": {"uniform": [0.1, float("inf")]}}, "must be two numbers, its ends"),
        ({"lr": {"uniform": [0.1, 11.0]}}, "lr = 11.0 is out of range"),
        ({"lr": {"loguniform": [0, 1]}}, r"lr: loguniform \[0, 1\] must begin above 0, as it has a logarithm"),
        ({"epochs": {"int": [1, 2.5]}}, "must be two whole numbers, its ends"),
        ({"epochs": {"int": [True, 2]}}, "must be two whole numbers, its ends"),
        ({"epochs": {"uniform": [1, 5]}}, r"must be of whole numbers: give {int: \[...\]}"),
        ({"epochs": {"int": [1, 1000]}}, "epochs = 1000 is out of range"),
        ({"kind": {"uniform": [0, 1]}}, "is a range, but the hyperparameter is text"),
        ({"kind": {"choice": ["a", "c"]}}, "kind = 'c' is not allowed"),
        ({"lr": {"uniform": [1, 0]}, "rate": 1}, "must rise.*; unknown key 'rate'"),
    ],
)
def test_a_space_that_is_wrong_says_how(space: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parsed(space)


def test_values_are_drawn_from_their_domains_and_have_their_hyperparameters_type() -> None:
    space = parsed(
        {
            "lr": {"loguniform": [1e-4, 1]},
            "weight_decay": {"uniform": [0, 1]},
            "epochs": {"int": [2, 4]},
            "batch_size": {"logint": [1, 1000]},
            "kind": {"choice": ["a", "b"]},
        }
    )
    drawn = [
        {key: domain.sample(random) for key, domain in space.items()} for random in [Random(0)] for _ in range(2000)
    ]
    assert all(1e-4 <= each["lr"] <= 1 and 0 <= each["weight_decay"] <= 1 for each in drawn)
    assert {each["epochs"] for each in drawn} == {2, 3, 4}
    assert {each["kind"] for each in drawn} == {"a", "b"}
    assert sum(each["lr"] < 1e-2 for each in drawn) == pytest.approx(1000, rel=0.1), "half are below the middle"
    assert sum(each["batch_size"] < 32 for each in drawn) == pytest.approx(1000, rel=0.1)
    assert {type(value) for value in drawn[0].values()} == {int, float, str}


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


def test_a_space_of_tune_becomes_a_plain_one() -> None:
    from ray import tune

    space = {
        "lr": tune.loguniform(1e-4, 1),
        "weight_decay": tune.uniform(0, 0.5),
        "epochs": tune.randint(1, 5),
        "batch_size": tune.lograndint(1, 9),
        "kind": tune.grid_search(["a", "b"]),
        "fault": tune.choice([0, 1]),
        "accumulation": 2,
    }
    assert plain_space(space) == {
        "lr": {"loguniform": [1e-4, 1]},
        "weight_decay": {"uniform": [0, 0.5]},
        "epochs": {"int": [1, 4]},
        "batch_size": {"logint": [1, 8]},
        "kind": {"choice": ["a", "b"]},
        "fault": {"choice": [0, 1]},
        "accumulation": 2,
    }
    assert set(parsed(plain_space(space))) == set(space)
    with pytest.raises(InputError, match=r"space: model.lr: Normal Float of ray.tune: use tune.choice, uniform"):
        plain_space({"model": {"lr": tune.randn(0, 1)}})
