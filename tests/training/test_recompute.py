"""Gradient checkpointing: the same results to the last digit, with less memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.toy import Toy
from tuner.datasets.ratings import RatingData
from tuner.datasets.trees import TreeData
from tuner.errors import InputError
from tuner.estimation.tracing.tracer import Parts, trace_step, trace_workload
from tuner.search.configurations import complete
from tuner.training.endings import Fit
from tuner.training.loop import fit
from tuner.training.step import evaluate, recomputing
from tuner.trial import CHECKPOINTING, Configuration, Trial
from tuner.workloads.lookup import find_workload
from tuner.workloads.task import Selection

SIZES = {"graphsage": {"hidden_dim": 8, "num_layers": 3}, "gt-ssl": {"hidden_channels": 8, "num_interactions": 2}}


def fitted(name: str, data: Any, **values: Any) -> Fit:
    workload = find_workload(name)
    config = complete({**SIZES[name], "epochs": 2, **values}, workload.schema)
    *_, result = fit(workload, Trial("t", name, "t", config, seed=3), data, "cpu")
    assert isinstance(result, Fit)
    return result


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("option", [{}, {"accumulation": 2}, {"amp": 1}])
def test_results_are_the_same_to_the_last_digit(
    name: str, option: dict[str, int], ratings: RatingData, trees: TreeData
) -> None:
    data = {"graphsage": ratings, "gt-ssl": trees}[name]
    kept, again = fitted(name, data, **option), fitted(name, data, **option, gradient_checkpointing=1)
    assert again.metrics == kept.metrics
    assert again.weights.keys() == kept.weights.keys()
    assert all(torch.equal(value, kept.weights[key]) for key, value in again.weights.items())


class Block(nn.Module):
    """Dropout, and a tensor made on its input's device."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 256), nn.Linear(256, 32)

    def forward(self, x: Tensor) -> Tensor:
        Block.calls += 1
        hidden = nn.functional.dropout(self.wide(x * torch.ones(32, device=x.device)).relu(), 0.2)
        total = torch.zeros_like(x).index_add(0, torch.arange(len(x), device=x.device), x)
        return total + self.narrow(hidden)


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    with recomputing([block]):
        out: Tensor = block(x)
    return out


def gradients(wrap: Callable[..., Tensor]) -> list[Tensor | None]:
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(3))
    x = torch.randn(50, 32)
    for block in blocks:
        x = wrap(block, x)
    x.square().mean().backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in blocks.parameters()] + [torch.rand(1)]


def test_gradients_and_random_numbers_are_those_without_it() -> None:
    plain = gradients(lambda block, x: block(x))
    assert all(map(torch.equal, gradients(recomputed), plain))


def test_a_module_is_as_before_after_the_block_and_runs_twice_in_training_only() -> None:
    block, x = Block(), torch.randn(4, 32)
    names = list(block.state_dict())
    Block.calls = 0
    with recomputing([block, block]):
        assert list(block.state_dict()) == names
        loss = block(x).sum()
        with torch.no_grad():
            block(x)
    assert "forward" not in vars(block)
    loss.backward()
    assert Block.calls == 3


def test_evaluation_and_training_without_the_option_do_not_recompute(
    ratings: RatingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("recomputed")

    monkeypatch.setattr("tuner.training.step.checkpoint", refuse)
    fitted("graphsage", ratings, gradient_checkpointing=0)
    workload = find_workload("graphsage")
    model = workload.build_model(complete(SIZES["graphsage"], workload.schema), ratings)
    assert evaluate(workload, model, ratings, "validation")["val_rmse"] > 0
    with pytest.raises(AssertionError, match="recomputed"):
        fitted("graphsage", ratings, gradient_checkpointing=1)


def blocks_step(wrap: Callable[..., Tensor]) -> Parts:
    model = nn.ModuleList(Block() for _ in range(4))
    x = torch.randn(512, 32)

    def loss() -> Tensor:
        h = x
        for block in model:
            h = wrap(block, h)
        return h.square().mean()

    return model, torch.optim.Adam(model.parameters()), loss


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_traced_blocks_take_less_than_plain_ones(kind: Any) -> None:
    steps = [partial(blocks_step, wrap) for wrap in (lambda block, x: block(x), recomputed)]
    plain, ours = (trace_step(step, device_kind=kind).peak_bytes() for step in steps)
    assert ours < 0.6 * plain


def test_the_estimate_follows_the_option_and_is_the_profilers(trees: TreeData) -> None:
    from tuner.training.optimizers import build_optimizer
    from tuner.training.rehearsal import rehearse, representative_batches

    workload = find_workload("gt-ssl")
    values = {"hidden_channels": 16, "num_interactions": 4, "batch_size": 4}
    config = complete({**values, CHECKPOINTING: 1}, workload.schema)

    def run() -> None:
        model = workload.build_model(config, trees)
        batches = representative_batches(workload, config, trees)
        rehearse(workload, model, build_optimizer(workload, model, config), batches, trees, config=config)

    from tests.estimation.tracing.test_tracer import profiled_peak

    run()
    traced = trace_workload(workload, config, trees).peak_bytes()
    assert traced == pytest.approx(profiled_peak(run), rel=0.01)
    assert traced < 0.6 * trace_workload(workload, complete(values, workload.schema), trees).peak_bytes()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_traced_autocast_halves_activations_on_a_gpu_that_is_not_there_too(kind: Any) -> None:
    def make(amp: bool) -> Parts:
        model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(24))), torch.randn(4096, 64)

        def loss() -> Tensor:
            with torch.autocast(kind, torch.bfloat16, enabled=amp):
                return model(x).float().square().mean()

        return model, None, loss

    full, half = (trace_step(partial(make, amp), device_kind=kind).peak_bytes() for amp in (False, True))
    assert half < 0.7 * full


def test_it_is_refused_where_a_workload_names_no_modules() -> None:
    config = complete({CHECKPOINTING: 1}, Toy().schema)
    with pytest.raises(InputError, match="x: gradient_checkpointing 1: workload toy has no method checkpointed"):
        Selection(Toy(), lambda: None, [Configuration("x", config)])


def test_a_worker_loads_torchs_compiler_before_its_trials_and_only_if_one_needs_it() -> None:
    code = (
        "import sys; from tests.support.toy import Toy\n"
        "from tuner.training.rehearsal import warm_up; from tuner.workloads.task import TrainingTask\n"
        "class Recomputed(Toy):\n"  # PyTorch Geometric would load it in any case
        "    def checkpointed(self, model): return [model]\n"
        "for checkpointing in (False, True):\n"
        "    task = TrainingTask(Recomputed(), None, checkpointing)\n"
        "    warm_up('cpu', 1, [task]); print('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "False\nTrue\n", run.stderr
