"""A hand-written loop with SGD and a cosine: a convolutional network on pictures, from the command line."""

import torch
from common import images
from torch import nn

import tuner


def train(config):
    (pictures, labels), (unseen, truth) = images()
    channels = config["channels"]
    parts = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(49 * channels, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    first, state = 1, tuner.checkpoint()
    if state is not None:
        first = state["epoch"] + 1
        for name, part in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
            part.load_state_dict(state[name])
    for epoch in range(first, 4):
        for part in torch.randperm(len(labels)).split(config["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pictures[part]), labels[part]).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            right = torch.cat([model(part).argmax(1) for part in unseen.split(64)]) == truth
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        state = {name: part.state_dict() for name, part in parts.items()}
        tuner.report(val_accuracy=right.float().mean(), epoch=epoch, checkpoint={"epoch": epoch, **state})
