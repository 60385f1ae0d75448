"""What shares a card: a training that holds memory for a while, and a program that takes some."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import tuner
from tuner.trial import MB


def hold(config: dict[str, Any]) -> None:
    """Holds half of ``mb`` MiB of the card for half of ``seconds``, then all of it."""
    held = []
    for _ in range(2):
        held.append(torch.empty(int(config["mb"] / 2) * MB, dtype=torch.uint8, device="cuda:0"))
        Path(os.environ["HELD"]).touch()
        for _ in range(int(config["seconds"])):
            time.sleep(0.5)
            tuner.report(loss=float(config["mb"]))


def meet(config: dict[str, Any]) -> None:
    """Waits, and reports, until another trial has begun and both have reported a few times."""
    begun = Path(os.environ["HELD"]).parent
    (begun / f"begun-{config['number']}").touch()
    left = 8
    while left:
        time.sleep(0.1)
        tuner.report(loss=1.0)
        left -= len(list(begun.glob("begun-*"))) > 1


def study_of_meeting(folder: str) -> None:
    """A study of two trials, on one core."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    space = {"number": {"choice": [0, 1]}}
    options = {"memory_gb": 1, "gpu_memory_buffer_gb": 0, "time_limit": "3m"}
    tuner.run(meet, space=space, metric="loss", direction="minimize", output=folder, **options)  # type: ignore[arg-type]


def study(folder: str, trials: int, mb: int, seconds: float) -> None:
    """A study of equal trials, each with a context of 500 MiB."""
    space = {"number": {"choice": list(range(trials))}, "mb": mb, "seconds": seconds}
    given = (mb + 600) / 1024
    options = {"memory_gb": given, "gpu_memory_buffer_gb": 0, "backoff": 1.0, "threads": 1}
    tuner.run(hold, space=space, metric="loss", direction="minimize", output=folder, **options)  # type: ignore[arg-type]


def hog(mb: int, released: str) -> None:
    """Another program, which holds ``mb`` MiB, its context included, until the file ``released`` exists."""
    held = torch.empty((mb - 500) * MB, dtype=torch.uint8, device="cuda:0")
    while not Path(released).exists():
        time.sleep(0.1)
    del held


if __name__ == "__main__":
    if sys.argv[1] == "hog":
        hog(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "meet":
        study_of_meeting(sys.argv[2])
    else:
        study(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
