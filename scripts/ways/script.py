"""A script as its user has it, but for the last line: a perceptron on augmented copies of pictures."""

import argparse

import torch
from common import images
from torch import nn

import tuner

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--copies", type=int, default=1)
arguments = parser.parse_args()

torch.manual_seed(0)
(pictures, labels), (unseen, truth) = images()
augmented = torch.cat([pictures + 0.1 * torch.randn_like(pictures) for _ in range(arguments.copies)])
model = nn.Sequential(nn.Flatten(), nn.Linear(784, arguments.hidden), nn.ReLU(), nn.Linear(arguments.hidden, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
for _ in range(60):
    part = torch.randint(len(augmented), (128,))
    loss = nn.functional.cross_entropy(model(augmented[part]), labels[part % len(labels)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
accuracy = (model(unseen).argmax(1) == truth).float().mean().item()
tuner.report(val_accuracy=accuracy)
