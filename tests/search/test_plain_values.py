from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import InputError
from tuner.search.plain_values import plain_configs, plain_space


class Choice:
    """What a function may be given as it is."""


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
        "kind": {"grid_search": ["a", "b"]},
        "fault": {"choice": [0, 1]},
        "accumulation": 2,
    }
    with pytest.raises(InputError, match=r"space: model.lr: Normal Float of ray.tune: use tune.choice, uniform"):
        plain_space({"model": {"lr": tune.randn(0, 1)}})


def test_quantized_domains_of_tune_have_a_step() -> None:
    from ray import tune

    space = {
        "lr": tune.quniform(0.1, 1, 0.1),
        "sizes": {"n": tune.qrandint(8, 64, 8), "log": tune.qlograndint(8, 64, 8)},
        "c": tune.qloguniform(0.01, 1, 0.01),
        "d": tune.qrandint(1, 5),
    }
    assert plain_space(space) == {
        "lr": {"uniform": [0.1, 1], "step": 0.1},
        "sizes": {"n": {"int": [8, 64], "step": 8}, "log": {"logint": [8, 64], "step": 8}},
        "c": {"loguniform": [0.01, 1], "step": 0.01},
        "d": {"int": [1, 4]},
    }


def test_distributions_of_optuna_become_domains() -> None:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    space = {
        "lr": FloatDistribution(1e-4, 1, log=True),
        "model": {"n": IntDistribution(1, 64, log=True), "act": CategoricalDistribution(["x", None])},
        "width": IntDistribution(16, 64, step=16),
        "p": FloatDistribution(0, 0.5, step=0.25),
        "one": IntDistribution(3, 3),
    }
    assert plain_space(space) == {
        "lr": {"loguniform": [1e-4, 1]},
        "model": {"n": {"logint": [1, 64]}, "act": {"choice": ["x", None]}},
        "width": {"int": [16, 64], "step": 16},
        "p": {"uniform": [0, 0.5], "step": 0.25},
        "one": {"choice": [3]},
    }


def test_what_only_a_function_could_draw_is_refused() -> None:
    from optuna.distributions import IntDistribution
    from ray import tune

    for value, message in {
        tune.sample_from(lambda: 1): "space: a.b: sample_from of ray.tune: use tune.choice",
        (lambda: 1): "space: a.b: <lambda> is not a domain: use choice",
        tune.choice([tune.uniform(0, 1)]): "space: a.b: a domain cannot be a choice: give it a key of its own",
        tune.choice([IntDistribution(0, 1)]): "a domain cannot be a choice",
    }.items():
        with pytest.raises(InputError, match=message):
            plain_space({"a": {"b": value}})


def test_numbers_of_numpy_are_pythons_and_other_choices_stay() -> None:
    import numpy as np

    shape = (3, 3)
    space: Any = {"n": {"choice": np.array([1, 2])}, "s": {"choice": [shape, Choice]}, "x": 0.5}
    plain: Any = plain_space(space)
    assert plain == {"n": {"choice": [1, 2]}, "s": {"choice": [shape, Choice]}, "x": 0.5}
    assert type(plain["n"]["choice"][0]) is int


def test_alternatives_of_a_grid_may_be_an_array_and_others_are_values() -> None:
    import numpy as np

    assert plain_configs({"grid": {"a": np.array([1, 2]), "b": (1, 2)}}) == {"grid": {"a": [1, 2], "b": [1, 2]}}
    assert plain_configs([{"a": (1, 2)}, {"a": Choice}]) == [{"a": (1, 2)}, {"a": Choice}]


@pytest.mark.parametrize(
    ("domain", "low", "high"),
    [("randint", 0, 1), ("uniform", 0, 0), ("lograndint", 3, 4), ("loguniform", 1, 1)],
)
def test_a_domain_of_tune_with_a_single_value_is_that_value(domain: str, low: float, high: float) -> None:
    from ray import tune

    assert plain_space({"x": getattr(tune, domain)(low, high)}) == {"x": {"choice": [low]}}
