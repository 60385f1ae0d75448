"""A program of Ray Tune's, for a process on emulated cards: what comes of each of its trials."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pynvml
import torch
from ray import tune

import tuner


def train(config: dict[str, Any]) -> None:
    held = torch.empty(config["mb"] << 20, dtype=torch.uint8, device="cuda")
    assert held.is_cuda
    tune.report({"loss": 0.5, "cards": cards_used()})


def cards_used() -> list[int]:
    """Where this process has a context, by NVML's numbers."""
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    users = [{process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)} for handle in handles]
    return [index for index, pids in enumerate(users) if os.getpid() in pids]


def main(folder: str) -> None:
    wrapped = tuner.memory_aware(train, estimate=0.8, device="cuda", gpu_memory_buffer_gb=0, backoff=0.1)
    space = {"mb": tune.grid_search([100, 600])}
    results = tune.Tuner(wrapped, param_space=space, run_config=tune.RunConfig(storage_path=folder, verbose=0)).fit()
    wanted = ("attempts", "peak_memory_gb", "gpu_fraction", "cards")
    found = {result.config["mb"]: {name: result.metrics[name] for name in wanted} for result in results}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
