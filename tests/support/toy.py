"""A workload of a few lines, which can be told to fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tuner.hyperparameters import Hyperparameter
from tuner.trial import Config
from tuner.workloads.base import Batch, Split, Workload


class Toy(Workload):
    """Learns y = 2x with one weight; ``fault`` 1 raises, 2 runs out of memory, 3 diverges, 4 takes its time."""

    name: ClassVar[str] = "toy"
    metric: ClassVar[str] = "val_loss"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lr": Hyperparameter(0.1, 0, 10, ""),
        "weight_decay": Hyperparameter(0.0, 0, 1, ""),
        "epochs": Hyperparameter(3, 1, 100, ""),
        "fault": Hyperparameter(0, 0, 4, ""),
    }

    def load_data(self, source: str, seed: int) -> Any:
        return None

    def build_model(self, config: Config, data: Any) -> nn.Module:
        model = nn.Linear(1, 1)
        model.register_buffer("fault", torch.tensor(config["fault"]))
        return model

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        for _ in range(4):
            x = torch.randn(8, 1)
            yield x, 2 * x

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        fault = int(model.get_buffer("fault"))
        if fault == 1:
            raise ValueError("no such\nthing")
        if fault == 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes")
        if fault == 4:
            time.sleep(0.02)
        x, y = batch
        loss = (model(x) - y).square().mean()
        return loss * torch.inf if fault == 3 else loss

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        x = torch.ones(1, 1)
        return {"loss": float((model(x) - 2 * x).abs())}


class Fatal(Toy):
    """A toy whose faults end its worker: 1 by SIGKILL, 2 by an error that no trial should raise."""

    name: ClassVar[str] = "fatal"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        fault = int(model.get_buffer("fault"))
        if fault == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == 2:
            raise SystemExit(3)
        return super().loss(model, batch)


class Batched(Toy):
    """A toy whose batch decides its memory: 64 KiB a sample, and twice that where they are multiplied."""

    name: ClassVar[str] = "batched"
    memory_scales_with: ClassVar[str | None] = "batch_size"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        **Toy.hyperparameters,
        "batch_size": Hyperparameter(8, 1, 100_000, ""),
    }

    def build_model(self, config: Config, data: Any) -> nn.Module:
        return nn.Linear(2**14, 1)

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        for _ in range(4):
            x = torch.ones(config["batch_size"], 2**14)
            yield x, x[:, :1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return (model(x * 2**-14) - y).square().mean()

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return {"loss": float((model(torch.full((1, 2**14), 2**-14)) - 1).abs())}


class Picky(Batched):
    """Builds no model with much weight decay."""

    name: ClassVar[str] = "picky"

    def build_model(self, config: Config, data: Any) -> nn.Module:
        if config["weight_decay"] > 0.05:
            raise AssertionError("no such model")
        return super().build_model(config, data)


class Sharing(Toy):
    """Its metric is 0 if its arrays are read-only memory that somebody else owns, and the mapped one a file's."""

    name: ClassVar[str] = "sharing"

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        copies = [array.flags.writeable or array.flags.owndata for array in data.values()]
        with open("/proc/self/maps") as maps:
            mapped = str(data["mapped"].filename) in maps.read()
        return {"loss": float(any(copies) or not mapped)}


class Wide(Toy):
    """A toy of another name, metric and hyperparameter: learns that a sum of ``width`` products is 2x."""

    name: ClassVar[str] = "toy-wide"
    metric: ClassVar[str] = "val_error"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lr": Hyperparameter(0.1, 0, 10, ""),
        "weight_decay": Hyperparameter(0.0, 0, 1, ""),
        "epochs": Hyperparameter(2, 1, 50, ""),
        "width": Hyperparameter(4, 1, 64, ""),
    }

    def build_model(self, config: Config, data: Any) -> nn.Module:
        return nn.Linear(1, config["width"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return (model(x).sum(1, keepdim=True) - y).square().mean()

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return {"error": float((model(torch.ones(1, 1)).sum() - 2).abs())}
