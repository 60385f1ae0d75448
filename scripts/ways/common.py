"""What the ways share: pictures of MNIST's shape, and how their studies run."""

from pathlib import Path

import torch

STUDY = Path("study")
NUMBER, CLASSES, SIDE = 3072, 10, 28


def images():
    """Noisy pictures of ten shapes with their classes: those to train on, and those to validate with."""
    draw = torch.Generator().manual_seed(7)
    shapes = torch.rand(CLASSES, 1, SIDE, SIDE, generator=draw)
    labels = torch.randint(CLASSES, (NUMBER,), generator=draw)
    pictures = shapes[labels] + torch.randn(NUMBER, 1, SIDE, SIDE, generator=draw)
    held_out = NUMBER // 3
    return (pictures[held_out:], labels[held_out:]), (pictures[:held_out], labels[:held_out])


def options(device_memory_gb):
    """Where a study is and what it may take; one that has begun is resumed."""
    if (STUDY / "study.json").exists():
        return {"resume": str(STUDY)}
    limits = {"device_memory_gb": device_memory_gb, "gpu_memory_buffer_gb": 0, "backoff": 0.1}
    return {"output": str(STUDY), "device": "cpu", "report": False, **limits}
