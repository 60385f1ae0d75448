"""What Python may give for an option."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tuner
from tuner.errors import InputError
from tuner.spec.settings import Settings
from tuner.trial import MOST_SEED


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("seed", np.int64(3), 3),
        ("epochs", 2.0, 2),
        ("limit", np.float64(2), 2),
        ("model_memory_gb", np.float32(0.5), 0.5),
        ("model_memory_gb", 2, 2.0),
        ("caps", 0, False),
        ("auto_memory", np.bool_(True), True),
        ("mode", Path("quick"), "quick"),
        ("output", Path("out"), "out"),
        ("data", None, ""),
        ("data", {"graphsage": Path("here")}, {"graphsage": "here"}),
    ],
)
def test_what_stands_for_a_plain_value_is_taken_as_that(name: str, given: object, taken: object) -> None:
    found = getattr(Settings(**{name: given}), name)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("name", "given", "rule"),
    [
        ("epochs", 2.5, "must be a whole number"),
        ("seed", True, "must be a whole number"),
        ("caps", 2, "must be True or False"),
        ("caps", "no", "must be True or False"),
        ("seed", MOST_SEED + 1, "must be at most 9223372036854775807"),
    ],
)
def test_other_values_are_refused(name: str, given: object, rule: str) -> None:
    with pytest.raises(InputError, match=f"^{name}=.*: {re.escape(rule)}$"):
        Settings(**{name: given})


def test_an_argument_that_there_is_not_is_an_error_that_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'nosuch'$"):
        tuner.run(nosuch=1)  # type: ignore[call-arg]


def test_arguments_by_optunas_names_are_all_named_with_what_they_are_called_here() -> None:
    meant = {"n_trials": "num_samples", "sampler": "search", "pruner": "scheduler", "max_worker": "max_workers"}
    with pytest.raises(TypeError) as raised:
        tuner.run(catch=(), **dict.fromkeys(meant, 5))  # type: ignore[arg-type]
    hints = [f"'{name}': did you mean {right}?" for name, right in meant.items()]
    assert str(raised.value) == "; ".join(["run() got unexpected keyword arguments 'catch'", *hints])
