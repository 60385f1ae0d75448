"""A plain function: a perceptron on scikit-learn's digits; a wide one takes more memory than its share."""

import torch
from common import options
from sklearn.datasets import load_digits
from torch import nn

import tuner


def train(config):
    images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
    images = images.float() / 16
    model = nn.Sequential(nn.Linear(64, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(4):
        for part in torch.randperm(1437).split(720):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
        with torch.no_grad():
            right = model(images[1437:]).argmax(1) == labels[1437:]
        tuner.report(val_accuracy=right.float().mean(), epoch=epoch, checkpoint=model.state_dict())


if __name__ == "__main__":
    tuner.run(
        train,
        space={"hidden": {"logint": [16, 60_000]}, "lr": {"loguniform": [1e-4, 1e-2]}},
        points=[{"hidden": 60_000, "lr": 1e-4}],
        metric="val_accuracy",
        direction="maximize",
        num_samples=10,
        **options(device_memory_gb=2.0),
    )
