"""Configurations and models of KD-GAT that are small enough for tests, and files of teachers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tuner.datasets.can import CanData
from tuner.search.configurations import complete
from tuner.workloads.kd_gat.model import Distilled
from tuner.workloads.kd_gat.workload import KDGAT

SMALL = {
    "classifier": {"hidden_channels": 4, "num_layers": 2, "heads": 2},
    "autoencoder": {"hidden_channels": 8, "latent_channels": 4, "heads": 1},
}
STAGES = tuple(SMALL)


def config(stage: str = "classifier", **values: Any) -> dict[str, Any]:
    """A complete configuration of few channels and batches of 8."""
    given = {**SMALL[stage], "stage": stage, "batch_size": 8, "optimize_batch_size": 0, "dropout": 0.0, **values}
    return KDGAT().finish(complete(given, KDGAT().schema))


def model_of(data: CanData, stage: str = "classifier", **values: Any) -> Distilled:
    """A new model of such a configuration, the same every time."""
    torch.manual_seed(0)
    return KDGAT().build_model(config(stage, **values), data)


def best_pt(path: Path, data: CanData, stage: str = "classifier", **values: Any) -> str:
    """A file of untrained weights as a study keeps its best; its path."""
    values = {"role": "teacher", **values}
    content = {"workload": "kd-gat", "config": config(stage, **values)}
    torch.save({**content, "weights": model_of(data, stage, **values).state_dict()}, path)
    return str(path)
