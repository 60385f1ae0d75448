"""What the two studies beside this file train, which commit 22ab2ae began and which were interrupted."""

import tuner


def train(config):
    """Reports for eight epochs how far x is from 0.3."""
    for epoch in range(1, 9):
        tuner.report(score=(config["x"] - 0.3) ** 2 + 1 / epoch, epoch=epoch)
