"""A LightningModule: a small convolutional network on pictures; a large batch takes more memory than its share."""

import lightning
import torch
from common import images, options
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tuner
from tuner.lightning import ReportCallback


class Pictures(lightning.LightningModule):
    def __init__(self, channels, lr):
        super().__init__()
        self.save_hyperparameters()
        parts = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten()]
        self.layers = nn.Sequential(*parts, nn.Linear(49 * channels, 10))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_accuracy", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def train(config):
    training, unseen = (TensorDataset(*part) for part in images())
    loaders = DataLoader(training, config["batch_size"], shuffle=True), DataLoader(unseen, 256)
    report = ReportCallback()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[report], **quiet)
    trainer.fit(Pictures(config["channels"], config["lr"]), *loaders, ckpt_path=report.ckpt_path)


if __name__ == "__main__":
    tuner.run(
        train,
        space={
            "channels": {"logint": [4, 64]},
            "batch_size": {"logint": [32, 2048]},
            "lr": {"loguniform": [1e-3, 1e-1]},
        },
        points=[{"channels": 64, "batch_size": 2048, "lr": 0.01}],
        metric="val_accuracy",
        direction="maximize",
        num_samples=10,
        **options(device_memory_gb=3.2),
    )
