"""What a workload may declare of its hyperparameters, and what is known of them without that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.toy import Batched, Toy
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.hyperparameters import Declared, Hyperparameter, TextHyperparameter
from tuner.search.configurations import complete, configurations
from tuner.search.spaces import parse_space
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.study import run_study
from tuner.training.rehearsal import _rehearse_smallest
from tuner.workloads.lookup import check
from tuner.workloads.task import Selection, TrainingTask


class Bare(Batched):
    """Declares defaults alone, and little of what the training loop reads."""

    name: ClassVar[str] = "bare"
    hyperparameters: ClassVar[Mapping[str, Declared]] = {
        "batch_size": 8,
        "lr": 1,
        "width": Hyperparameter(4),
        "share": 0.5,
        "kind": "a",
        "fast": True,
    }


def test_a_default_alone_is_a_hyperparameter_without_bounds() -> None:
    check(Bare())
    schema = Bare().schema
    assert schema["width"] == Hyperparameter(4) and schema["share"] == Hyperparameter(0.5)
    assert schema["kind"] == TextHyperparameter("a")
    assert schema["fast"] == Hyperparameter(1, 0, 1)
    assert complete({"share": -3, "width": 10**9}, schema)["share"] == -3.0
    with pytest.raises(InputError, match=r"width = 1.5 is not allowed \(allowed: a whole number\)"):
        configurations([{"width": 1.5}], schema)


def test_what_the_training_loop_reads_has_its_defaults_and_bounds() -> None:
    schema = Bare().schema
    assert complete({}, schema) == {
        **{"batch_size": 8, "lr": 1.0, "width": 4, "share": 0.5, "kind": "a", "fast": 1},
        **{"epochs": 10, "weight_decay": 0.0},
    }
    for values, message in (
        ({"epochs": 0}, r"epochs = 0 is out of range \(allowed: a whole number from 1 to 100000\)"),
        ({"lr": -1}, r"lr = -1 is out of range \(allowed: a number of at least 0\)"),
        ({"batch_size": 0}, r"batch_size = 0 is out of range \(allowed: a whole number from 1 to 1e\+09, or auto\)"),
    ):
        with pytest.raises(InputError, match=message):
            configurations([values], schema)


def test_one_declaration_is_enough() -> None:
    space = parse_space({"share": {"uniform": [-5, 5]}, "width": {"int": [1, 9]}}, Bare().schema, "f")
    assert space["share"].values == (-5.0, 5.0)
    with pytest.raises(InputError, match=r"width: uniform \[1, 9\] must be of whole numbers"):
        parse_space({"width": {"uniform": [1, 9]}}, Bare().schema, "f")


def test_a_workload_without_bounds_is_rehearsed_and_trained(tmp_path: Path) -> None:
    _rehearse_smallest(TrainingTask(Bare(), None), "cpu")
    listed = configurations([{"epochs": 2, "lr": 0.1}], Bare().schema)
    options = {"output": str(tmp_path / "out"), "device": "cpu", "gpu_memory_buffer_gb": 0, "model_memory_gb": 0.5}
    own = Settings(**options, report=False)
    selected = StudySpec([Selection(Bare(), lambda: None, listed)], own, label="", command="")
    (row,) = run_study(selected, InProcessExecutor()).rows
    assert (row["status"], row["epochs"], row["config/weight_decay"]) == ("completed", 2, 0.0)


def test_an_option_of_the_loop_that_a_workload_sets_is_always_told() -> None:
    class Mixed(Toy):
        hyperparameters: ClassVar[Mapping[str, Declared]] = {"amp": 1}

    assert complete({}, Mixed().schema)["amp"] == 1
    with pytest.raises(InputError, match=r"amp = 2 is out of range \(allowed: a whole number from 0 to 1\)"):
        configurations([{"amp": 2}], Mixed().schema)
