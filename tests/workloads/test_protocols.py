"""What a workload must have, what it may have, and what happens without that."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.support.toy import Batched, Toy
from tuner.errors import InputError
from tuner.trial import ACCUMULATION, EVALUATION_PARTS, Configuration
from tuner.workloads import protocols
from tuner.workloads.base import Workload
from tuner.workloads.micro_batches import chunk_size, halved, micro_batch, sample_count, smaller, training_steps
from tuner.workloads.task import Selection, TrainingTask, describe

FIVE = {"load_data", "build_model", "batches", "loss", "evaluate"}
OWN = [
    protocol
    for protocol in vars(protocols).values()
    if inspect.isclass(protocol) and protocol.__module__ == protocols.__name__
]
OPTIONAL = {name: method for protocol in OWN for name, method in vars(protocol).items() if not name.startswith("_")}


def test_five_methods_must_be_there_and_the_base_has_no_others() -> None:
    assert Workload.__abstractmethods__ == FIVE
    assert {name for name, value in vars(Workload).items() if inspect.isfunction(value) and name[0] != "_"} == FIVE


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_method_is_found_by_its_name(name: str) -> None:
    assert protocols.optional(Toy(), OPTIONAL[name]) is None
    mine = type("Mine", (Toy,), {name: lambda *_: "mine"})()
    assert protocols.optional(mine, OPTIONAL[name])() == "mine"


def test_without_optional_methods_there_is_nothing_to_check_to_prepare_or_to_describe() -> None:
    toy, values = Toy(), {"lr": 0.1}
    assert protocols.finish_of(toy)(values) == values
    assert protocols.prerequisites(toy, values) == {}
    assert protocols.call(toy, protocols.OptionalMethods.frozen, (), toy.build_model({"fault": 0}, None)) == ()
    assert describe({"toy": TrainingTask(toy, None)}) == ""
    with pytest.raises(InputError, match=r"^all_data=True: workload 'toy' has no method all_data"):
        protocols.joined_splits(toy, None)


def test_micro_batches_are_smaller_batches_unless_a_workload_splits_them_itself() -> None:
    config = {"batch_size": 12, ACCUMULATION: 2}
    assert micro_batch(Batched(), config)["batch_size"] == 6
    assert [len(group) for group in training_steps(Batched(), config, None)] == [2, 2]
    assert halved(Batched(), config) == {"batch_size": 12, ACCUMULATION: 4}
    assert halved(Batched(), {**config, "batch_size": 6}) is None

    class Own(Batched):
        def training_steps(self, config: Any, data: Any) -> list[list[tuple[str]]]:
            return [[("abc",), ("de",)]]

    (step,) = training_steps(Own(), config, None)
    assert [sample_count(Own(), batch[0]) for batch in step] == [1, 1]


def test_only_a_workload_that_can_evaluate_in_parts_is_asked_to() -> None:
    class Chunked(Batched):
        name = "chunked"
        evaluate_in_parts = Batched.evaluate

    config = {"batch_size": 12}
    assert smaller(Chunked(), config, "training") == {**config, ACCUMULATION: 2}
    assert smaller(Chunked(), config, "evaluation") == {**config, EVALUATION_PARTS: 2}
    assert smaller(Chunked(), {**config, EVALUATION_PARTS: 2}, "evaluation") == {**config, EVALUATION_PARTS: 4}
    assert smaller(Batched(), config, "evaluation") is None
    wanted = Configuration("a", {**config, EVALUATION_PARTS: 2})
    with pytest.raises(InputError, match="a: evaluation_parts 2: workload batched has no method evaluate_in_parts"):
        Selection(Batched(), lambda: None, [wanted])
    Selection(Chunked(), lambda: None, [wanted])


def test_the_parts_of_a_chunk_are_of_the_samples_that_there_are() -> None:
    assert [chunk_size(500, samples, 4) for samples in (2000, 500, 12, 3)] == [125, 125, 3, 1]
