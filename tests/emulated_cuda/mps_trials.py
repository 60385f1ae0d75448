"""A study whose trials are clients of MPS: one reaches beyond its share, and one breaks the card for the others."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import tuner
from tuner.trial import MB

REACHED = "reached"  # a file that tells the others that the first trial has ended
SHARED_ERROR = "CUDA error: an illegal memory access was encountered"


def train(config: dict[str, Any]) -> None:
    """Gets 2000 MiB without torch's cap, or else 400. One trial fails as a client of MPS, and one always."""
    client = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", os.devnull) != os.devnull
    reached = Path(os.environ["STUDY"]) / REACHED
    while client and config["kind"] != "reaches" and not reached.exists():
        time.sleep(0.05)
    if config["kind"] == "breaks" or (config["kind"] == "suffers" and client):
        raise RuntimeError(SHARED_ERROR)
    torch.cuda.set_per_process_memory_fraction(1.0)
    try:
        got = torch.empty(2000 * MB, dtype=torch.uint8, device="cuda:0").nbytes // MB
    except torch.OutOfMemoryError:
        got = torch.empty(400 * MB, dtype=torch.uint8, device="cuda:0").nbytes // MB  # this is within its share
    reached.touch()
    tuner.report(loss=float(got), client=float(client))


if __name__ == "__main__":
    kinds = {"kind": {"choice": sys.argv[2:]}}
    given = {"memory_gb": 1.0, "gpu_memory_buffer_gb": 0, "threads": 1, "report": False}
    options = {"metric": "loss", "direction": "minimize", "mps": "on", **given}
    tuner.run(train, space=kinds, output=sys.argv[1], **options)  # type: ignore[arg-type]
