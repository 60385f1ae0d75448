"""The models of ``trials_per_hour``, and trials of one without tuner's study.

    python gpu_models.py MODEL EPOCHS DEVICE GRAPHS SEED …

trains one trial after another in this process, and prints a line of JSON for each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tuner
from tuner.hyperparameters import Hyperparameter
from tuner.search.configurations import complete
from tuner.training.endings import Fit
from tuner.training.loop import fit
from tuner.trial import CUDA_GRAPHS, Config, ConfigValue, EpochReport, Trial
from tuner.workloads.base import Batch, Split, Workload
from tuner.workloads.lookup import find_workload
from tuner.workloads.protocols import finish_of

SAMPLES = 16_384  # of the perceptron: 32 steps of 512 in an epoch


class Perceptron(Workload):
    """A perceptron with two hidden layers on generated data: somebody's own model."""

    name: ClassVar[str] = "perceptron"
    metric: ClassVar[str] = "val_loss"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lr": Hyperparameter(0.001, 0, 1, ""),
        "weight_decay": Hyperparameter(0.0, 0, 1, ""),
        "epochs": Hyperparameter(5, 1, 1_000_000, ""),
        "hidden": Hyperparameter(256, 1, 65_536, ""),
        "batch_size": Hyperparameter(512, 1, SAMPLES, ""),
    }

    def load_data(self, source: str, seed: int) -> tuple[Tensor, Tensor]:
        """Features and a target that is a function of them; the last eighth is to choose by."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(SAMPLES * 8 // 7, 64, generator=generator)
        return x, torch.tanh(x @ torch.randn(64, 1, generator=generator) / 8).squeeze(1)

    def build_model(self, config: Config, data: Any) -> nn.Module:
        """Three linear layers, and the held-out samples as buffers."""
        hidden = int(config["hidden"])
        model = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        model.register_buffer("x", data[0][SAMPLES:])
        model.register_buffer("y", data[1][SAMPLES:])
        return model

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        """Batches of one size."""
        for rows in torch.randperm(SAMPLES).split(int(config["batch_size"])):
            yield data[0][rows], data[1][rows]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean squared error."""
        return F.mse_loss(model(batch[0]).squeeze(1), batch[1])

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        """The same on the held-out samples."""
        return {"loss": float(self.loss(model, (model.get_buffer("x"), model.get_buffer("y"))))}


def mlp_function(config: dict[str, Any]) -> None:
    """The perceptron as somebody's own function."""
    workload, device = Perceptron(), "cuda" if torch.cuda.is_available() else "cpu"
    data = workload.load_data("synthetic", 0)
    model = workload.build_model({"hidden": 256}, data).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(config["passes"]):
        for x, y in workload.batches({"batch_size": 512}, data):
            optimizer.zero_grad()
            workload.loss(model, (x.to(device), y.to(device))).backward()
            optimizer.step()
        with torch.no_grad():
            tuner.report(val_loss=workload.evaluate(model, data, "validation")["loss"])


# By name: what ``find_workload`` takes, and the values of hyperparameters that are not the defaults.
MODELS: Mapping[str, tuple[Any, Mapping[str, ConfigValue]]] = {
    "graphsage-32x2": ("graphsage", {"hidden_dim": 32, "num_layers": 2}),
    "graphsage-64x2": ("graphsage", {"hidden_dim": 64, "num_layers": 2}),
    "gt-ssl": ("gt-ssl", {"hidden_channels": 32, "num_interactions": 2}),
    "kd-gat": ("kd-gat", {"hidden_channels": 24, "num_layers": 2, "batch_size": 32, "optimize_batch_size": 0}),
    "mlp": (Perceptron, {}),
    "mlp-function": (mlp_function, {}),
}


@cache
def loaded(model: str) -> tuple[Workload, object]:
    """The workload of a model and its generated data."""
    workload = find_workload(MODELS[model][0])
    assert isinstance(workload, Workload)
    return workload, workload.load_data("synthetic", 0)


def has_constant_shapes(model: str) -> bool:
    """Whether its steps can be CUDA graphs."""
    workload = find_workload(MODELS[model][0])
    return isinstance(workload, Workload) and not workload.batches_vary


def values(model: str, epochs: int, *, graphs: bool) -> dict[str, ConfigValue]:
    """What a configuration of the model sets."""
    return {
        **MODELS[model][1],
        "passes" if model == "mlp-function" else "epochs": epochs,
        **({CUDA_GRAPHS: 1} if graphs else {}),
    }


def train(model: str, epochs: int, device: str, seed: int, *, graphs: bool = False) -> dict[str, Any]:
    """Trains a trial with tuner's loop and nothing else of tuner.

    Returns:
        ``seed``; ``epochs``, when training began and each epoch ended, in unix seconds; ``ended``; ``value``, the
        metric's best; ``reserved_bytes``, the allocator's peak, None on the CPU; ``note``, what the loop has to say.
    """
    workload, data = loaded(model)
    given = complete(values(model, epochs, graphs=graphs), workload.schema)
    config = finish_of(workload)(given)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    metrics: Mapping[str, float] = {}
    notes: list[str] = []
    for event in fit(workload, Trial(f"t{seed}", workload.name, model, config, seed), data, device, notes=notes):
        if isinstance(event, EpochReport):
            times.append(time.time())
        elif isinstance(event, Fit):
            metrics = event.metrics
    reserved = torch.cuda.max_memory_reserved() if device == "cuda" else None
    return {
        "seed": seed,
        "epochs": times,
        "ended": time.time(),
        "value": metrics[workload.objective.metric],
        "reserved_bytes": reserved,
        "note": "; ".join(notes),
    }


def main() -> None:
    model, epochs, device, graphs, *seeds = sys.argv[1:]
    torch.set_num_threads(1)
    for seed in seeds:
        print(json.dumps(train(model, int(epochs), device, int(seed), graphs=bool(int(graphs)))), flush=True)


if __name__ == "__main__":
    main()
