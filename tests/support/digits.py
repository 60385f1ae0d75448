"""An MLP that reads scikit-learn's handwritten digits."""

from itertools import pairwise

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from tuner import Hyperparameter, Workload


class Digits(Workload):
    metric = "val_error"
    direction = "minimize"  # or "maximize", as of an accuracy
    memory_scales_with = "batch_size"
    hyperparameters = {  # noqa: RUF012
        "hidden": Hyperparameter(64, 1, 65536, "units of a hidden layer"),
        "layers": Hyperparameter(1, 1, 16, "hidden layers"),
        "batch_size": Hyperparameter(128, 1, 1257, "digits in a batch"),
        "epochs": Hyperparameter(10, 1, 10000, "passes over the training digits"),
        "lr": Hyperparameter(0.003, 1e-6, 1, "Adam's learning rate at the start"),
        "weight_decay": Hyperparameter(0.0, 0, 1, "L2 penalty"),
    }

    def load_data(self, source, seed):
        images, labels = load_digits(return_X_y=True)
        images = (images / 16).astype(np.float32)
        order = np.random.default_rng(seed).permutation(1437)
        parts = {"train": order[180:], "validation": order[:180], "test": np.arange(1437, 1797)}
        return {name: (images[part], labels[part]) for name, part in parts.items()}

    def build_model(self, config, data):
        sizes = [64] + [config["hidden"]] * config["layers"]
        hidden = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], 10))

    def batches(self, config, data):
        images, labels = map(torch.tensor, data["train"])
        for part in torch.randperm(len(labels)).split(config["batch_size"]):
            yield images[part], labels[part]

    def loss(self, model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model, data, split):
        device = next(model.parameters()).device
        images, labels = (torch.tensor(part, device=device) for part in data[split])
        return {"error": (model(images).argmax(1) != labels).float().mean()}
