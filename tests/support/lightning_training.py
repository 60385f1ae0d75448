"""A training by Lightning."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tuner.lightning import FILE, ReportCallback

__all__ = ["FILE", "QUIET", "ReportCallback", "Sum", "batches", "lightning", "train", "trained"]
QUIET = {
    "accelerator": "cpu",
    **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
}


class Sum(lightning.LightningModule):
    """Learns the sum of four numbers; its learning rate falls from epoch to epoch."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.layer, self.lr, self.steps = nn.Linear(4, 1), lr, 0

    def _loss(self, batch: Any) -> torch.Tensor:
        (x,) = batch
        return (self.layer(x) - x.sum(1, keepdim=True)).square().mean()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.steps += 1
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), self.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(0))), batch_size=8)


def trained(lr: float, callback: Any, epochs: int = 3, **options: Any) -> Sum:
    """A module that was trained as users do it."""
    module = Sum(lr)
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[callback], **QUIET, **options)
    trainer.fit(module, batches(), batches(), ckpt_path=callback.ckpt_path)
    trainer.validate(module, batches(), verbose=False)  # of which nothing is reported
    return module


def train(config: dict[str, Any]) -> None:
    trained(config["lr"], ReportCallback())
