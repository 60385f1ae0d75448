from __future__ import annotations

import inspect
from typing import Any

import optuna
import pytest

from tuner.errors import InputError
from tuner.search.optuna_names import (
    PRUNERS,
    SAMPLERS,
    SCHEDULERS,
    SEARCHES,
    canonical,
    check_choice,
    make_pruner,
    make_sampler,
)

ABSTRACT = {"BaseSampler", "BaseGASampler", "GridSampler", "PartialFixedSampler", "BasePruner", "NopPruner"}


def test_every_sampler_and_pruner_of_optuna_has_a_name() -> None:
    found = {
        name
        for module in (optuna.samplers, optuna.pruners)
        for name in module.__all__
        if inspect.isclass(getattr(module, name))
    }
    assert found - ABSTRACT == {*SAMPLERS.values(), *PRUNERS.values()}
    assert [canonical(name) for name in ("optuna", "successive-halving", "gp", None)] == ["tpe", "asha", "gp", None]


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("tpe", "n_startup_trials=20", "_n_startup_trials", 20),
        ("tpe", "multivariate=true", "_multivariate", True),
        ("cmaes", "sigma0=0.5", "_sigma0", 0.5),
        ("cmaes", "popsize=none", "_popsize", None),
        ("qmc", "qmc_type=halton", "_qmc_type", "halton"),
        ("gp", "independent_sampler=random", "_independent_sampler", optuna.samplers.RandomSampler),
        ("asha", "min_resource=3", "_min_resource", 3),
        ("asha", "min_resource=auto", "_min_resource", None),
        ("hyperband", "max_resource=27", "_max_resource", 27),
        ("threshold", "upper=1", "_upper", 1.0),
    ],
)
def test_an_option_is_an_argument_of_optunas_class(name: str, text: str, attribute: str, value: Any) -> None:
    made = make_sampler(name, [text]) if name in SAMPLERS else make_pruner(name, [text])
    found = getattr(made, attribute)
    assert isinstance(found, value) if isinstance(value, type) else found == value


@pytest.mark.parametrize(
    ("parameter", "name", "options", "message"),
    [
        ("search", "tbe", [], "search='tbe': did you mean tpe"),
        ("search", "annealing", [], f"search='annealing': choose one of {', '.join(SEARCHES)}"),
        ("scheduler", "hyperban", [], "scheduler='hyperban': did you mean hyperband"),
        ("scheduler", "bohb", [], f"scheduler='bohb': choose one of {', '.join(SCHEDULERS)}"),
        ("search", 3, [], "search=3: give one of .*, an Optuna sampler or a searcher of ray.tune"),
        ("scheduler", optuna.samplers.TPESampler(), [], "scheduler=.*: give one of .*, an Optuna pruner$"),
        ("search", optuna.samplers.TPESampler, [], r"search=TPESampler: it is a class: give .* TPESampler\(\)"),
        (
            "search",
            "tpe",
            ["n_startup=2"],
            r"TPESampler has no option 'n_startup' \(did you mean n_startup_trials\?\)",
        ),
        ("search", "random", ["x=2"], r"search_options='x=2': RandomSampler has no option 'x' \(it has seed\)"),
        ("search", "tpe", ["n_startup_trials"], "search_options='n_startup_trials': expected KEY=VALUE"),
        ("search", "tpe", ["n_startup_trials=two"], "search_options='n_startup_trials=two': must be a whole number$"),
        ("search", "tpe", ["group=1"], "search_options='group=1': must be true or false"),
        ("search", "cmaes", ["sigma0=x"], "search_options='sigma0=x': must be a number or none"),
        ("search", "cmaes", ["x0=x"], "search_options='x0=x': only Python can give it: give an object of Optuna"),
        (
            "search",
            "qmc",
            ["qmc_type=x"],
            "search_options='qmc_type=x': The `qmc_type",
        ),
        ("search", "grid", ["seed=2"], "search_options='seed=2': has no effect with search='grid': leave it out"),
        ("scheduler", "fifo", ["lower=2"], "scheduler_options='lower=2': has no effect with scheduler='fifo'"),
        ("scheduler", optuna.pruners.NopPruner(), ["a=1"], "NopPruner takes its options in its own constructor"),
        (
            "scheduler",
            "asha",
            ["min_resource=0"],
            "scheduler_options='min_resource=0': The value of `min_resource` is 0",
        ),
        (
            "scheduler",
            "percentile",
            [],
            r"scheduler='percentile': PercentilePruner needs percentile: give scheduler_",
        ),
        (
            "scheduler",
            "patient",
            [],
            "scheduler='patient': PatientPruner needs patience: give scheduler_options='pat",
        ),
        ("scheduler", "threshold", [], "scheduler='threshold': Either lower or upper must be specified"),
        ("scheduler", "patient", ["patience=1", "wrapped_pruner=x"], "must be one of asha, hyperband, .* or none"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(parameter: Any, name: object, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        check_choice(parameter, name, options)
    assert "\n" not in str(error.value)
