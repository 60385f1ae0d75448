from __future__ import annotations

import re
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.toy import Batched
from tuner.errors import InputError
from tuner.hyperparameters import TextHyperparameter
from tuner.search.configurations import configurations
from tuner.search.domains import Domain, objects_of
from tuner.search.drawing import draws
from tuner.search.spaces import listed_objects, parse_points, parse_space
from tuner.workloads.program import arguments

SCHEMA = {**Batched().schema, "kind": TextHyperparameter("a", "", choices=("a", "b"))}


def parsed(space: Any) -> dict[str, Domain]:
    return parse_space(space, SCHEMA, "f.yaml")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([], "f.yaml: 'space' must be a mapping from hyperparameter to a value or a range"),
        ({}, "f.yaml: 'space' must be a mapping"),
        ({"rate": 1}, r"unknown key 'rate' \(known are"),
        (
            {"lr": {"gauss": [0, 1]}},
            r"lr: 'gauss' is not a kind of domain: give a value or one of {choice: \[...\]}, ",
        ),
        ({"lr": [0.1, 0.2]}, r"lr = \[0.1, 0.2\] is not a number .*: for each of them give {choice: \[0.1, 0.2\]}"),
        (
            {"lr": {"min": 0.1, "max": 0.2}},
            r"syntax of another tool: give {uniform: \[0.1, 0.2\]} or {logu",
        ),
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
    drawn: list[Any] = list(islice(draws(space, 0), 500))
    assert all(1e-4 <= row["lr"] <= 1 and 0 <= row["weight_decay"] <= 1 for row in drawn)
    assert {row["epochs"] for row in drawn} == {2, 3, 4}
    assert {row["kind"] for row in drawn} == {"a", "b"}
    assert sum(row["lr"] < 1e-2 for row in drawn) == pytest.approx(250, rel=0.2), "half are below the middle"
    assert sum(row["batch_size"] < 32 for row in drawn) == pytest.approx(250, rel=0.2)
    assert {type(value) for value in drawn[0].values()} == {int, float, str}


def opened(space: Any) -> dict[str, Domain]:
    return parse_space(space, None, "f.yaml")


def square(x: float) -> float:
    return x * x


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {"lr": {"loguniforn": [1e-4, 1]}},
            r"^f.yaml: lr: 'loguniforn' is not a kind of domain: did you mean loguniform\?",
        ),
        ({"m": {"lr": {"gauss": [0, 1]}}}, r"m.lr: 'gauss' is not a kind of domain: give a value or one of {choice"),
        (
            {"lr": {"uniform": [0, 1], "stepp": 1}},
            r"lr: 'stepp' cannot stand beside 'uniform' \(did you mean step\?",
        ),
        (
            {"lr": {"uniform": [0, 1], "step": 0}},
            r"lr: uniform \[0, 1\] has step 0: give a number above 0, within its range",
        ),
        ({"lr": {"uniform": [0, 1], "step": 2}}, "has step 2: give a number above 0, within"),
        ({"lr": {"uniform": [0, 1], "step": 1e-300}}, "has step 1e-300: give a number above 0, within"),
        (
            {"n": {"grid_search": [1], "if": {"lr": 1}}, "lr": 1},
            "n: grid_search has no condition, as all combinations",
        ),
        ({"n": {"int": [0, 9], "step": 2.5}}, "has step 2.5: give a whole number above 0"),
        ({"n": {"choice": [1, 2], "step": 1}}, "n: a step belongs to a range"),
        ({"m": {"n": {"values": [1, 2], "distribution": "categorical"}}}, r"give {choice: \[1, 2\]}"),
        (
            {"n": "interval(1, 8)"},
            r"n: 'interval\(1, 8\)' is the syntax of another tool: give {int: \[1, 8\]} or {logint",
        ),
        ({"n": {"type": "float", "low": 0.1, "high": 1}}, r"give {uniform: \[0.1, 1\]}"),
        ({3: {"int": [1, 2]}}, "3: a hyperparameter's name is a text"),
        ({"a.b": 1, "a": {"b": 2}}, "a.b: it occurs twice, as a dot names a group"),
        ({"n": {"choice": [lambda: 1, lambda: 2]}}, "two different choices are called '<lambda>'"),
        ({"n": 1, "n.m": 2}, "n: it is a value and, with n.m, a group: rename one of them"),
    ],
)
def test_a_space_without_a_schema_that_is_wrong_says_how(space: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        opened(space)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"_type": "uniform", "_value": [0, 1]}, "{uniform: [0, 1]}"),
        ({"_type": "loguniform", "_value": [1e-4, 0.1]}, "{loguniform: [0.0001, 0.1]}"),
        ({"_type": "quniform", "_value": [0, 10, 1]}, "{uniform: [0, 10], step: 1}"),
        ({"_type": "randint", "_value": [0, 10]}, "{int: [0, 9]}"),
        ({"_type": "normal", "_value": [0, 1]}, "{choice: [...]}"),
        ({"_type": "choice", "_value": [0, 1]}, "{choice: [0, 1]}"),
        ({"type": "range", "bounds": [1, 8], "log_scale": True}, "{logint: [1, 8]}"),
        ({"type": "float", "low": 0.1, "high": 1, "step": 0.1}, "{uniform: [0.1, 1], step: 0.1}"),
        ({"min": "0.01", "max": "0.03"}, "{uniform: [0.01, 0.03]} or {loguniform: [0.01, 0.03]}"),
        ({"min": 0, "max": 0.5}, "{uniform: [0, 0.5]}"),
        ({"distribution": "log_uniform", "min": -9, "max": 0}, "{choice: [...]}"),
        ({"distribution": "q_uniform", "min": 0, "max": 8, "q": 2}, "{uniform: [0, 8], step: 2}"),
        ({"MinValue": "1", "MaxValue": "8"}, "{int: [1, 8]} or {logint: [1, 8]}"),
        ({"lb": 0.0, "ub": 1.0}, "{uniform: [0.0, 1.0]}"),
        ({"double_value_spec": {"min_value": 0.0, "max_value": 1.0}}, "{uniform: [0.0, 1.0]}"),
        ({"parameterType": "int", "feasibleSpace": {"min": "0", "max": "9"}}, "{int: [0, 9]}"),
        ({"value": 0.1}, "0.1"),
        ({"range": [16, 32, 64]}, "{choice: [...]}"),
        ({"bounds": [[0, 1], [0, 1]]}, "{choice: [...]}"),
        (range(3), "{choice: [0, 1, 2]}"),
        ("range(1,5)", "{int: [1, 4]}"),
        ("uniform(0,1)", "{uniform: [0, 1]}"),
        ("interval(0, 1)", "{int: [0, 1]}"),
        ("tag(log, interval(0.001, 0.1))", "{loguniform: [0.001, 0.1]}"),
        ("FloatDistribution(low=1e-4, high=1.0, log=True)", "{loguniform: [0.0001, 1.0]}"),
        ("IntDistribution(1, 9, True)", "{logint: [1, 9]}"),
        ("trial.suggest_float('lr', 0, 1)", "{uniform: [0, 1]}"),
        ("trial.suggest_float('lr', 0, 1, step=0.5)", "{uniform: [0, 1], step: 0.5}"),
        ("tune.loguniform(1e-4, 1e-1)", "{loguniform: [0.0001, 0.1]}"),
        ("hp.loguniform('lr', -5, 0)", "{choice: [...]}"),
        ("Real(1e-4, 1, 'log-uniform')", "{loguniform: [0.0001, 1]}"),
        ("Integer(1, 8)", "{int: [1, 8]}"),
        ("Categorical(['a', 'b'])", "{choice: [...]}"),
        ("glob(*)", "{choice: [...]}"),
        ("uniform[0:1]", "{uniform: [0, 1]}"),
        ("[0.1:0.2]", "{uniform: [0.1, 0.2]} or {loguniform: [0.1, 0.2]}"),
        ("sort(a)", "{choice: [...]}, or as a value {choice: ['sort(a)']}"),
    ],
)
def test_a_domain_of_another_tool_is_refused_with_ours(given: Any, ours: str) -> None:
    with pytest.raises(InputError, match=re.escape(f" is the syntax of another tool: give {ours}")):
        opened({"n": given})


@pytest.mark.parametrize(
    "group",
    [
        {"distribution": "normal", "scale": {"choice": [1, 2]}},
        {"bounds": [0, 1], "lr": {"choice": [1]}},
        {"value": 3, "lr": {"choice": [1]}},
        {"min": 0.1, "max": 0.5, "on": {"choice": [True]}},
        {"min": 0.1, "max": 0.5, "inner": {"depth": 3}},
        {"betas": [0.9, 0.999]},
        {"low": "small", "high": "large", "fanouts": "10,5"},
    ],
)
def test_a_group_may_have_words_of_other_tools(group: dict[str, object]) -> None:
    assert len(opened({"g": group})) == len(group)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (3, "b: if: 3: expected a mapping from another key to a value or a list of them"),
        ({"kin": "x"}, r"b: if: unknown key 'kin' \(did you mean kind\?\)"),
        ({"b": 1}, "b: if: it is the key itself"),
        ({"kind": "z"}, r"b: if: kind = 'z' is outside the space \(choice \[x, y\]\)"),
        ({"kind": []}, "b: if: kind: the list is empty"),
        ({"lr": 0.5}, r"b: if: lr is a range of numbers: give it a step or {choice: \[...\]}"),
        ({"c": 1}, "if: c and b depend on each other"),
    ],
)
def test_a_condition_that_is_wrong_says_how(condition: Any, message: str) -> None:
    space = {"kind": {"choice": ["x", "y"]}, "lr": {"uniform": [0, 1]}, "c": {"int": [1, 2], "if": {"b": 1}}}
    with pytest.raises(InputError, match=message):
        opened({**space, "b": {"int": [1, 2], "if": condition}})


def test_choices_are_values_and_objects_are_labels_but_in_the_function() -> None:
    choices = [[64, 32], (3, 3), None, True, 1, {"a": 1}, Random, square, ["x", square], "text", 0.5]
    domain = opened({"x": {"choice": choices}})["x"]
    assert [repr(value) for value in domain.values[6:9]] == ["Random", "square", "['x', square]"]
    assert list(map(repr, domain.values[:6])) == list(map(repr, choices[:6]))
    objects = objects_of({"x": domain})
    received: list[Any] = [arguments({"x": value}, objects)["x"] for value in domain.values]
    assert received == choices and list(map(type, received)) == list(map(type, choices))
    assert received[0] is not choices[0], "one trial must not change the list of another"


def test_a_sampler_gets_choices_that_optuna_takes_and_gives_the_values() -> None:
    domain = opened({"x": {"choice": [[64], None, 0.1, Random]}})["x"]
    assert domain.categories == ("[64]", None, 0.1, "Random")
    assert [domain.of_category(domain.category(value)) for value in domain.values] == list(domain.values)
    assert opened({"x": {"choice": [True, 1, "1"]}})["x"].categories == ("true", "1", '"1"')


def test_groups_are_flat_in_records_and_nested_in_the_function() -> None:
    space = opened({"model": {"hidden": {"int": [1, 9]}, "head": {"bias": True}}, "betas": [0.9, 0.999]})
    assert list(space) == ["model.hidden", "model.head.bias", "betas"]
    config = {"model.hidden": 4, "model.head.bias": True, "betas": [0.9, 0.999], "data.fixed": "a"}
    assert arguments(config, objects_of(space)) == {
        "model": {"hidden": 4, "head": {"bias": True}},
        "betas": [0.9, 0.999],
        "data": {"fixed": "a"},
    }


def test_a_key_stands_behind_those_of_its_conditions_and_takes_its_groups_too() -> None:
    space = opened(
        {
            "nesterov": {"choice": [True, False], "if": {"sgd": {"momentum": [0.8, 0.9]}}},
            "sgd": {"if": {"kind": "sgd"}, "momentum": {"uniform": [0.8, 1], "step": 0.1}, "decay": 0.1},
            "kind": {"choice": ["adam", "sgd"]},
        }
    )
    assert list(space) == ["kind", "sgd.momentum", "nesterov", "sgd.decay"]
    assert space["nesterov"].conditions == {"sgd.momentum": (0.8, 0.9)}
    assert space["sgd.decay"].conditions == space["sgd.momentum"].conditions == {"kind": ("sgd",)}


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"lr": 0.1}, "f: 'points' must be a list of mappings"),
        ([3], "f: point 1: expected a mapping from hyperparameter to a value, not 3"),
        ([{"lr": 0.1}, {"kin": 1}], r"f: point 2: unknown key 'kin' \(did you mean kind\?\)"),
        ([{"lr": 2}], r"f: point 1: lr = 2 is outside the space \(uniform \[0, 1\]\)"),
        ([{"lr": "x"}], "lr = 'x' is outside the space"),
        ([{"m": {"n": 24}}], r"m.n = 24 is outside the space \(int \[16, 64\] with step 16\)"),
        ([{"kind": "c"}], r"kind = 'c' is outside the space \(choice \[a, b\]\)"),
        ([{"beta": 0.5}], "f: point 1: beta needs kind = b: give that as well, or leave beta out"),
        ([{"kind": "a", "beta": 0.5}], "beta needs kind = b"),
        ([{"lr": 0.1}, {"lr": 0.1}], "f: point 2: it is the same as point 1"),
    ],
)
def test_a_point_outside_the_space_says_why(points: Any, message: str) -> None:
    space = {
        "lr": {"uniform": [0, 1]},
        "m": {"n": {"int": [16, 64], "step": 16}},
        "kind": {"choice": ["a", "b"]},
        "beta": {"uniform": [0, 1], "if": {"kind": "b"}},
    }
    with pytest.raises(InputError, match=message):
        parse_points(points, opened(space), "f")


def test_a_point_may_have_numbers_of_numpy() -> None:
    space = opened({"l": {"uniform": [0, 1]}, "n": {"int": [1, 4]}})
    (point,) = parse_points([{"l": np.float32(0.5), "n": np.int64(2)}], space, "f")
    assert point == {"l": 0.5, "n": 2} and [*map(type, point.values())] == [float, int]


def test_what_labels_stand_for_in_a_list_of_configurations() -> None:
    listed = [{"m": {"sizes": [1, 2]}, "act": square}, {"m": {"sizes": [3]}, "act": None, "n": 1}]
    objects = listed_objects(listed, "config")
    plain = [one.values for one in configurations(listed, None)]
    assert plain == [{"m.sizes": [1, 2], "act": "square"}, {"m.sizes": [3], "act": None, "n": 1}]
    assert [arguments(config, objects) for config in plain] == listed
    with pytest.raises(InputError, match="config: a: two different choices are called '<lambda>'"):
        listed_objects([{"a": lambda: 1}, {"a": lambda: 2}], "config")


def test_a_hyperparameter_may_be_called_as_a_column_of_a_list() -> None:
    (one,) = configurations([{"name": "a", "config/name": "vgg", "config/workload": 3, "lr": 1}], None)
    assert (one.name, one.values) == ("a", {"name": "vgg", "workload": 3, "lr": 1})
    assert list(opened({"name": {"choice": ["vgg", "resnet"]}, "workload": 1})) == ["name", "workload"]
    with pytest.raises(InputError, match="it occurs twice, as a dot names a group"):
        configurations([{"a.b": 1, "a": {"b": 2}}], None)


def test_a_step_may_be_the_whole_range_also_where_decimals_are_rounded() -> None:
    assert 0.3 - 0.1 < 0.2
    assert parse_space({"x": {"uniform": [0.1, 0.3], "step": 0.2}}, None, "f")["x"].listed == (0.1, 0.3)
