"""Workloads with an optimizer and learning rates of their own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.support.toy import Batched, Toy
from tuner.trial import Config


class OwnOptimizer(Toy):
    """A toy that is trained by SGD, with another learning rate for its bias."""

    name: ClassVar[str] = "own-optimizer"

    def optimizer(self, model: nn.Module, config: Config) -> torch.optim.Optimizer:
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}]
        return torch.optim.SGD(groups, lr=float(config["lr"]), momentum=0.5)


class OwnSchedule(OwnOptimizer):
    """Also with a schedule of the class ``kind``."""

    name: ClassVar[str] = "own-schedule"

    def __init__(self, kind: str = "OneCycleLR") -> None:
        self.kind = kind

    def lr_schedule(self, optimizer: torch.optim.Optimizer, config: Config) -> Any:
        epochs = int(config["epochs"])
        if self.kind == "OneCycleLR":
            return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs + 1)
        if self.kind == "ReduceLROnPlateau":
            return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
        if self.kind == "MultiStepLR":
            return lr_scheduler.MultiStepLR(optimizer, [2, 4])
        first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, epochs)], [2])


class WithRMSprop(Batched):
    """A larger model whose optimizer keeps one number for each of its own."""

    name: ClassVar[str] = "with-rmsprop"

    def optimizer(self, model: nn.Module, config: Config) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=float(config["lr"]))
