"""What the author of a workload is told of methods that return what cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.toy import Toy
from tuner.errors import WorkloadError
from tuner.estimation.tracing.tracer import trace_workload
from tuner.search.configurations import complete
from tuner.training.endings import Diverged
from tuner.training.loop import fit
from tuner.training.rehearsal import representative_batches
from tuner.trial import Trial
from tuner.workloads.contract import summarize

CONFIG = complete({}, Toy.hyperparameters)
X = torch.ones(8, 1)
WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("build_model", lambda *_: None, "build_model returned None: expected torch's Module"),
    ("build_model", lambda *_: nn.Linear, "build_model returned a class: expected torch's Module"),
    ("build_model", lambda *_: nn.ReLU(), "build_model returned a model without parameters"),
    ("batches", lambda *_: None, "batches returned None: expected an iterable of tuples of tensors"),
    ("batches", lambda *_: [], "batches returned no batch: expected at least one in an epoch"),
    ("batches", lambda *_: "text", r"batches yielded a str: expected a tuple of tensors, such as \(x, y\)"),
    ("batches", lambda *_: [X], "batches yielded a Tensor of shape \\(8, 1\\): expected a tuple"),
    ("batches", lambda *_: [()], "batches yielded an empty tuple: expected a tuple"),
    ("batches", lambda *_: [{"x": X}], "batches yielded a dict: expected a tuple"),
    (
        "batches",
        lambda *_: [(X, np.ones(8))],
        "batches yielded a ndarray of shape \\(8,\\) at index 1: expected a tuple of tensors",
    ),
    ("loss", lambda *_: None, "loss returned None: expected a tensor with one number and a gradient"),
    ("loss", lambda *_: 0.5, r"loss returned a float: expected .* leave out .item\(\)"),
    (
        "loss",
        lambda self, model, _: model(X)[:, 0],
        r"loss returned a Tensor of shape \(8,\): expected .*: take its mean",
    ),
    ("loss", lambda self, model, _: model(X).mean().detach(), r"loss returned a Tensor without a gradient: .*detach"),
    ("evaluate", lambda *_: None, "evaluate returned None: expected numbers by name, such as {'loss': 0.5}"),
    ("evaluate", lambda *_: {}, "evaluate returned an empty dict, but not 'loss', which metric 'val_loss'"),
    ("evaluate", lambda *_: {"error": 1}, "evaluate returned error, but not 'loss', which metric"),
    ("evaluate", lambda *_: {"loss": "good"}, "evaluate returned a str as 'loss': expected numbers"),
    ("evaluate", lambda *_: {"loss": "0.5"}, "evaluate returned a str as 'loss': expected numbers"),
    ("evaluate", lambda *_: {"loss": X}, r"evaluate returned a Tensor of shape \(8, 1\) as 'loss': expected"),
]


def trained(workload: Toy) -> None:
    list(fit(workload, Trial("t001", workload.name, "default", CONFIG, seed=0), None, "cpu"))


@pytest.mark.parametrize("used", [trained, lambda workload: trace_workload(workload, CONFIG, None)])
@pytest.mark.parametrize(("method", "wrong", "message"), WRONG)
def test_what_a_method_returns_is_looked_over(
    method: str, wrong: Callable[..., Any], message: str, used: Callable[[Toy], None]
) -> None:
    workload = type("Mine", (Toy,), {method: wrong})()
    with pytest.raises(WorkloadError, match=f"^workload mine: {message}"):
        used(workload)


def test_a_largest_batch_is_looked_over_and_an_epoch_without_one_ends() -> None:
    class Varying(Toy):
        batches_vary = True
        batches = lambda *_: ()  # noqa: E731

    with pytest.raises(WorkloadError, match="workload varying: batches returned no batch"):
        next(representative_batches(Varying(), CONFIG, None))
    Varying.largest_batch = lambda *_: X  # type: ignore[assignment,method-assign]
    with pytest.raises(WorkloadError, match=r"largest_batch returned a Tensor of shape .*: expected a tuple"):
        next(representative_batches(Varying(), CONFIG, None))


def test_lists_of_tensors_and_any_iterable_are_batches() -> None:
    class Listing(Toy):
        batches = lambda *_: [[X, X]]  # type: ignore[assignment] # noqa: E731

    assert len(list(islice(representative_batches(Listing(), CONFIG, None), 3))) == 3
    trained(Listing())


@pytest.mark.parametrize(
    ("weights", "cause"),
    [(1.0, "but the training loss and the weights were: look at evaluate"), (np.nan, "lower lr")],
)
def test_a_metric_that_is_never_finite_is_evaluates_own_unless_the_weights_are_spoilt(
    weights: float, cause: str
) -> None:
    class Mine(Toy):
        def evaluate(self, model: nn.Module, data: Any, split: str) -> dict[str, float]:
            next(model.parameters()).mul_(weights)
            return {"loss": float("nan")}

    config = {**CONFIG, "epochs": 1}
    with pytest.raises(Diverged, match=f"val_loss was never a finite number.*{cause}"):
        list(fit(Mine(), Trial("t001", "mine", "default", config, seed=0), None, "cpu"))


def test_the_place_is_the_users_line_and_not_that_of_a_library_or_of_ours() -> None:
    def caught(call: Callable[[], Any]) -> BaseException:
        with pytest.raises(Exception) as found:
            call()
        return found.value

    assert "(test_contract.py, line " in summarize(caught(lambda: nn.Linear(3, 2)(X)))
    assert (
        summarize(SyntaxError("invalid syntax", ("mine.py", 3, 1, "")), summarize)
        == "SyntaxError: invalid syntax (mine.py, line 3)"
    )
    assert summarize(ValueError(" two\nlines ")) == "ValueError: two lines"
