"""An LSTM that reads pictures row by row; a large batch takes more memory than its share."""

import torch
from common import images, options
from torch import nn

import tuner


class Reader(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(28, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, pictures):
        return self.head(self.lstm(pictures.squeeze(1))[0][:, -1])


def train(config):
    (pictures, labels), (unseen, truth) = images()
    model = Reader(config["hidden"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(1, 4):
        for part in torch.randperm(len(labels)).split(config["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pictures[part]), labels[part]).backward()
            optimizer.step()
        with torch.no_grad():
            right = torch.cat([model(part).argmax(1) for part in unseen.split(64)]) == truth
        tuner.report({"val_accuracy": right.float().mean()}, epoch=epoch)


if __name__ == "__main__":
    tuner.run(
        train,
        space={
            "hidden": {"logint": [8, 320]},
            "batch_size": {"logint": [32, 2048]},
            "lr": {"loguniform": [1e-3, 1e-1]},
        },
        points=[{"hidden": 320, "batch_size": 2048, "lr": 0.003}],
        metric="val_accuracy",
        direction="maximize",
        num_samples=10,
        **options(device_memory_gb=2.4),
    )
