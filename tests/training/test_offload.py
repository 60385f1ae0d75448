from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.estimation.tracing.tracer import trace_workload
from tuner.hyperparameters import AnyHyperparameter, Hyperparameter
from tuner.training.step import offload
from tuner.trial import MB, OFFLOADING, Config, Configuration
from tuner.workloads.base import Batch
from tuner.workloads.task import Selection

WIDTH = 512  # a teacher of two such layers takes 2 MiB
TEACHER_BYTES = 2 * 4 * (WIDTH * WIDTH + WIDTH)


class Taught(nn.Module):
    """A student of one weight, and a teacher that is a part of it and never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(1, 1)
        self.teacher = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            said = self.teacher(x.expand(-1, WIDTH)).mean(1, keepdim=True)
        return self.student(x + 0 * said)


class WithTeacher(Toy):
    name: ClassVar[str] = "with-teacher"
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]] = {
        **Toy.hyperparameters,
        "wide": Hyperparameter(0, 0, 1, ""),
    }

    def build_model(self, config: Config, data: Any) -> nn.Module:
        return Taught()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        # After the teacher is done, the student's peak: larger than what the teacher computes with.
        return (model(x) - y).square().mean() + (model.student.weight * torch.ones(4 * MB)).mean()

    def frozen(self, model: nn.Module) -> Iterable[nn.Module]:
        return [model.teacher]


def test_an_offloaded_module_has_its_values_elsewhere_only_while_it_computes() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    weight, x = module[0].weight, torch.randn(2, 3)
    expected, seen = module(x), []
    offload(module, "cpu")
    module[0].register_forward_pre_hook(lambda own, _: seen.append(own.weight))
    assert torch.equal(module(x), expected)
    assert seen[0] is not weight
    assert module[0].weight is weight


def test_an_offloaded_module_that_fails_is_put_back_too() -> None:
    module = nn.Linear(3, 3)
    weight = module.weight
    offload(module, "cpu")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.randn(2, 4))
    assert module.weight is weight


def test_a_gpus_traced_peak_falls_by_the_teachers_size() -> None:
    config = {"lr": 0.1, "weight_decay": 0.0, "epochs": 1, "fault": 0}
    beside, without = (
        trace_workload(WithTeacher(), {**config, OFFLOADING: on}, None, device_kind="cuda").peak_bytes()
        for on in (0, 1)
    )
    assert beside - without == pytest.approx(TEACHER_BYTES, rel=0.01)


def test_on_the_cpu_offloading_changes_nothing() -> None:
    config = {"lr": 0.1, "weight_decay": 0.0, "epochs": 1, "fault": 0}
    beside, without = (trace_workload(WithTeacher(), {**config, OFFLOADING: on}, None).peak_bytes() for on in (0, 1))
    assert beside == without


def test_a_workload_without_such_a_module_refuses_to_offload_it() -> None:
    config = Configuration("a", {"lr": 0.1, "weight_decay": 0.0, "epochs": 1, OFFLOADING: 1})
    with pytest.raises(InputError, match="a: offload_teacher_to_cpu 1: workload toy has no method frozen"):
        Selection(Toy(), lambda: None, [config])
