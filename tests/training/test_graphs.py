"""CUDA graphs in the training loop: when a step is recorded, what is launched, and why not.

On the CPU a stand-in for CUDA runs the recorded step again at each launch, on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.toy import Batched, Toy
from tuner.datasets.ratings import RatingData
from tuner.search.configurations import complete
from tuner.training.checkpoints import Checkpoint
from tuner.training.endings import Fit
from tuner.training.graphs import CudaRecorder, GraphedSteps, obstacle, steps_of
from tuner.training.loop import fit
from tuner.training.optimizers import build_optimizer
from tuner.training.step import Steps
from tuner.trial import Config, Trial
from tuner.workloads.base import Batch, Workload
from tuner.workloads.batches import changed
from tuner.workloads.graphsage.workload import GraphSAGE


class Again(CudaRecorder):
    """Runs a recorded step again instead of launching it; ``error`` is raised instead of recording."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.launched = 0

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def to_device(self, batch: Batch) -> Batch:
        return changed(batch, torch.clone)

    def record(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        if self.error:
            raise self.error
        loss = torch.zeros(())

        def launch() -> None:
            self.launched += 1
            loss.copy_(step())

        return loss, launch


class SageAgain(Again):
    """Lets the loss draw from the CPU's generator, which stands for the GPU's."""

    def hidden(self, workload: Workload, model: nn.Module) -> object:
        return None


def recording(monkeypatch: pytest.MonkeyPatch, recorder: CudaRecorder) -> None:
    """Lets the loop use CUDA graphs without CUDA."""
    monkeypatch.setattr("tuner.training.loop.steps_of", partial(GraphedSteps, recorder=recorder))


def train(workload: Workload, data: object = None, **values: Any) -> tuple[Fit, list[str]]:
    notes: list[str] = []
    trial = Trial("t001", workload.name, "t", complete({"epochs": 4, **values}, workload.schema), seed=0)
    *_, result = fit(workload, trial, data, "cpu", notes=notes)
    assert isinstance(result, Fit)
    return result, notes


def assert_same(one: Fit, other: Fit) -> None:
    """Equal but for the rates' rounding to float32 in the graph's tensors."""
    assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
    for name, value in one.weights.items():
        torch.testing.assert_close(other.weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [{}, {"fanout": "3,3", "lr_schedule": "cosine"}, {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05}],
)
def test_the_same_is_learned_with_a_rate_that_falls_and_a_smaller_last_batch(
    ratings: RatingData, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    eager, _ = train(GraphSAGE(), ratings, batch_size=96, **values)
    recorder = SageAgain()
    recording(monkeypatch, recorder)
    again, notes = train(GraphSAGE(), ratings, batch_size=96, **values)
    whole, rest = divmod(len(ratings.train), 96)
    assert rest
    assert (recorder.launched, notes) == (4 * whole - 3, [])
    assert_same(eager, again)


def test_a_trial_goes_on_with_a_graph_from_a_checkpoint_without_and_the_other_way_round(
    ratings: RatingData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected, _ = train(GraphSAGE(), ratings, batch_size=96)
    for first in (0, 1):
        folder = tmp_path / str(first)
        folder.mkdir()
        for graphs, last in ((first, 3), (1 - first, None)):  # the start and two epochs
            with monkeypatch.context() as patch:
                if graphs:
                    recording(patch, SageAgain())
                config = complete({"epochs": 4, "batch_size": 96, "cuda_graphs": graphs}, GraphSAGE().schema)
                trial = Trial("t001", "graphsage", "t", config, seed=0)
                checkpoint = Checkpoint(folder, trial, every_seconds=0)
                *_, result = islice(fit(GraphSAGE(), trial, ratings, "cpu", checkpoint), last)
        assert isinstance(result, Fit)
        assert checkpoint.faults == ()
        assert_same(expected, result)


class Varying(Toy):
    batches_vary = True


class Staged(Toy):
    def epoch_data(self, model: nn.Module, config: Config, data: object, epoch: int) -> object:
        return data


class Slow(Toy):
    def optimizer(self, model: nn.Module, config: Config) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters())


@pytest.mark.parametrize(
    ("workload", "values", "reason"),
    [
        (Toy(), {}, ""),
        (Varying(), {}, "batches vary in size"),
        (Staged(), {}, "epoch_data may change the model"),
        (Slow(), {}, "Adam is neither fused nor capturable"),
        (Batched(), {"accumulation": 2}, "not with accumulation"),
        (Toy(), {"gradient_checkpointing": 1}, "not with gradient_checkpointing"),
    ],
)
def test_what_cannot_be_recorded_is_known_before(workload: Workload, values: dict[str, Any], reason: str) -> None:
    config = complete(values, workload.schema)
    assert obstacle(workload, config, build_optimizer(workload, nn.Linear(1, 1), config)) == reason


CHANGING = "loss changes attributes of the model or the workload, or draws random numbers on the CPU"


class Counting(Toy):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        model.calls = int(getattr(model, "calls", 0)) + 1
        return super().loss(model, batch)


class Drawing(Toy):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * (1 + torch.rand(()))


class DrawingWithNumpy(Toy):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * (1 + 0 * float(np.random.rand()))


class Annealing(Toy):
    beta = 1.0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.beta *= 0.9
        return super().loss(model, batch) * self.beta


class AnnealingByEpoch(Toy):
    beta = 1.0

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        self.beta *= 0.5
        yield from super().batches(config, data)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * self.beta


class Replacing(Toy):
    """Its model has the last loss as an attribute, in a new tensor each time."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        model.__dict__["last"] = loss.detach().clone()
        return loss


class Sparse(Toy):
    """The values of its batches have other places each time, and so other memory."""

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        for x, y in super().batches(config, data):
            yield x.to_sparse(), y

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, (batch[0].to_dense(), batch[1]))


class Warming(Toy):
    """Its schedule changes Adam's betas, too."""

    def lr_schedule(self, optimizer: torch.optim.Optimizer, config: Config) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)


@pytest.mark.parametrize(
    ("workload", "error", "reason"),
    [
        (
            Toy(),
            RuntimeError("CUDA error: not permitted\nmore"),
            "a step cannot be recorded (CUDA error: not permitted)",
        ),
        (Counting(), None, CHANGING),
        (Drawing(), None, CHANGING),
        (DrawingWithNumpy(), None, CHANGING),
        (Annealing(), None, CHANGING),
        (Replacing(), None, CHANGING),
        (AnnealingByEpoch(), None, "attributes of the model or the workload change between epochs"),
        (Sparse(), None, "a batch has more than dense tensors"),
        (Warming(), None, "lr_schedule changes more than learning rates"),
    ],
)
def test_a_step_that_a_graph_would_not_repeat_is_trained_without_and_the_row_says_why(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, error: Exception | None, reason: str
) -> None:
    eager, _ = train(copy(workload))
    recording(monkeypatch, Again(error))
    result, notes = train(copy(workload))
    assert notes == [f"CUDA graphs: {reason}; trained eagerly"]
    assert_same(eager, result)


def test_too_few_steps_are_trained_without(monkeypatch: pytest.MonkeyPatch, ratings: RatingData) -> None:
    recording(monkeypatch, SageAgain())
    _, notes = train(GraphSAGE(), ratings, epochs=3, batch_size=10**6)
    assert notes == ["CUDA graphs: only 3 steps had the first batch's shape; trained eagerly"]


def test_running_out_of_memory_is_no_reason_to_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    recording(monkeypatch, Again(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        train(Toy())


def test_a_smaller_batch_leaves_the_graph_its_gradients() -> None:
    config = complete({}, Toy().schema)
    model = Toy().build_model(config, None)
    kept = [torch.zeros_like(value) for value in model.parameters()]

    class Keeping(Again):
        def record(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
            for value, gradient in zip(model.parameters(), kept, strict=True):
                value.grad = gradient
            return super().record(step)

    steps = GraphedSteps(Toy(), model, build_optimizer(Toy(), model, config), config, recorder=Keeping())
    x = torch.ones(8, 1)
    for samples in (8, 8, 8, 8, 3):
        steps((x[:samples], 2 * x[:samples]))
    assert all(value.grad is gradient for value, gradient in zip(model.parameters(), kept, strict=True))


def test_on_the_cpu_the_option_has_no_effect() -> None:
    config = complete({"cuda_graphs": 1}, Toy().schema)
    model = Toy().build_model(config, None)
    assert type(steps_of(Toy(), model, build_optimizer(Toy(), model, config), config, "cpu")) is Steps


@pytest.mark.gpu
def test_losses_on_a_gpu_are_those_without_a_graph(ratings: RatingData) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")

    def trained(graphs: int) -> Iterator[Any]:
        values = {"epochs": 4, "batch_size": 96, "fanout": "3,3", "cuda_graphs": graphs}
        trial = Trial("t001", "graphsage", "t", complete(values, GraphSAGE().schema), seed=0)
        return fit(GraphSAGE(), trial, ratings, "cuda:0", notes=notes)

    notes: list[str] = []
    (*eager, _), (*recorded, _) = map(trained, (0, 1))
    assert notes == []
    for one, other in zip(eager[1:], recorded[1:], strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-3)
