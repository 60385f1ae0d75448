"""A trainable in the shape of Ray's public PyTorch example for MNIST, written as users of Tune write theirs.

https://docs.ray.io/en/latest/tune/examples/includes/mnist_pytorch.html, with generated digits instead of a download,
and checkpoints as in Tune's guide to PyTorch. Workers import it as ``tests.support.tune_mnist``.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ray import tune
from torch import Tensor, nn, optim

from tuner.machine.caps import capped
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter
from tuner.training.rehearsal import warm_up
from tuner.trial import GB

CLASSES = 10


class ConvNet(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, kernel_size=3)
        self.fc = nn.Linear(channels * 64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 3))
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Pictures of 28 x 28 whose class is the column that is bright."""
    target = torch.arange(count) % CLASSES
    pictures = torch.rand(count, 1, 28, 28)
    pictures[torch.arange(count), 0, :, 2 * target + 4] += 1
    return pictures, target


def train_mnist(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = ConvNet(config["channels"])
    optimizer = optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    first = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "checkpoint.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        # Batches grow, as in many schedules: what the second epoch takes, the first does not tell.
        data, target = digits(config["batch_size"] // (1 if epoch else 32))
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, Path(folder) / "checkpoint.pt")
            metrics = {"loss": loss.item(), "epoch": epoch, "resumed_at": first, "pid": os.getpid()}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def train_within(config: dict[str, Any]) -> None:
    """The same under the cap that ``memory_aware`` sets for a share of ``gb``, without being wrapped."""
    meter = PeakMeter(ram_device(), lambda: warm_up("cpu"))
    meter.start()
    with capped(ram_device(), int(config["gb"] * GB) - meter.context_bytes, meter.base_bytes):
        train_mnist(config)
