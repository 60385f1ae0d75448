"""A workload that really takes memory, and can have its worker killed once."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tests.support.toy import Toy
from tuner.hyperparameters import Hyperparameter
from tuner.trial import MB, Config
from tuner.workloads.base import Batch

STEP = 64 * MB


class Hungry(Toy):
    """A toy whose every step takes ``mb`` MB; ``kill`` 1 kills its first worker, 2 has Ray's memory monitor do it."""

    name: ClassVar[str] = "hungry"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        **Toy.hyperparameters,
        "mb": Hyperparameter(0, 0, 100_000, ""),
        "kill": Hyperparameter(0, 0, 2, ""),
    }

    def build_model(self, config: Config, data: Any) -> nn.Module:
        marker = Path(data["folder"]) / f"killed-{config['kill']}"
        if config["kill"] and not marker.exists():
            marker.touch()
            if config["kill"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            fill_the_machine(data["bytes"])
        model = super().build_model(config, data)
        model.register_buffer("mb", torch.tensor(config["mb"]))
        return model

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        """Two are enough: to have memory given for the first time takes two seconds a GB on a virtual machine."""
        yield from islice(super().batches(config, data), 2)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        taken = torch.ones(int(model.get_buffer("mb")) * MB // 4)
        return super().loss(model, batch) + 0 * taken[:1].sum()


def fill_the_machine(size: int) -> None:
    """Takes shared memory, which no cap of a process counts, until the monitor kills this process."""
    held = []
    for _ in range(0, size, STEP):
        held.append(mmap.mmap(-1, STEP, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    time.sleep(60)
    raise RuntimeError("the memory monitor has not killed this worker")
