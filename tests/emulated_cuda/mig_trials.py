"""A study of three trainings, of which one asks for more than its share, on MIG instances."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import tuner
from tuner.trial import MB


def train(config: dict[str, Any]) -> None:
    """Holds ``mb`` MiB for ``seconds`` on the one GPU that it sees."""
    assert torch.cuda.device_count() == 1
    held = torch.empty(int(config["mb"]) * MB, dtype=torch.uint8, device="cuda:0")
    for _ in range(int(config["seconds"]) * 2):
        time.sleep(0.5)
        tuner.report(loss=float(config["mb"]))
    del held


if __name__ == "__main__":
    options: dict[str, Any] = {"memory_gb": 0.8, "gpu_memory_buffer_gb": 0, "threads": 1, "max_attempts": 1}
    space = {"mb": {"choice": [200, 210, 600]}, "seconds": 3}
    tuner.run(train, space=space, metric="loss", direction="minimize", output=sys.argv[1], **options)
