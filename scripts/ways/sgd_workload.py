"""The same as a Workload, whose step is traced; what its batches take in numpy alone no trace sees."""

import numpy as np
import torch
from common import images, options
from torch import nn

import tuner


class Pictures(tuner.Workload):
    metric = "val_accuracy"
    direction = "maximize"
    hyperparameters = {"channels": 4, "copies": 1, "batch_size": 64, "lr": 0.05, "epochs": 3}  # noqa: RUF012

    def load_data(self, source, seed):
        return [[each.numpy() for each in part] for part in images()]

    def build_model(self, config, data):
        channels = config["channels"]
        parts = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten()]
        return nn.Sequential(*parts, nn.Linear(49 * channels, 10))

    def batches(self, config, data):
        pictures, labels = map(torch.from_numpy, data[0])
        copies = [np.ones(pictures.shape, np.float32) for _ in range(config["copies"])]  # in no trace
        for step, part in enumerate(torch.randperm(len(labels)).split(config["batch_size"])):
            noise = torch.from_numpy(copies[step % len(copies)])
            yield pictures[part] * noise[part], labels[part]

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, data, split):
        pictures, labels = map(torch.from_numpy, data[1])
        right = torch.cat([model(part).argmax(1) for part in pictures.split(64)]) == labels
        return {"accuracy": right.float().mean()}

    def optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def lr_schedule(self, optimizer, config):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config["epochs"])


if __name__ == "__main__":
    tuner.run(
        Pictures(),
        space={
            "channels": {"int": [4, 16]},
            "batch_size": {"choice": [32, 64, 128]},
            "copies": {"choice": [1, 2, 4, 60]},
        },
        points=[{"channels": 8, "batch_size": 64, "copies": 60}],
        num_samples=10,
        auto_memory=True,
        calibration=False,
        **options(device_memory_gb=1.6),
    )
