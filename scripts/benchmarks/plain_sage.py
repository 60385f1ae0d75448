"""A plain PyG script that comparison.py compares with: one training function, tuned in three ways.

Its model is GraphSAGE of PyG's SAGEConv, on an ``edge_index`` or on a CSR matrix. Of tuner it uses the data loader,
so that the splits are the same, and ``tuner.run`` if it is asked to.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import to_torch_csr_tensor

from tuner.datasets.movielens import load_ratings
from tuner.datasets.ratings import RatingData, Ratings


class Task(NamedTuple):
    """What all trials of a study share."""

    data: RatingData
    seed: int
    csr: bool


class GraphSAGE(nn.Module):
    """Rating = mean + biases + ⟨z_user, z_item⟩; z is the sum of the input and every layer's output."""

    def __init__(
        self,
        user_features: Tensor,
        item_features: Tensor,
        adjacency: Tensor,
        mean: float,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.user_features, self.item_features = user_features, item_features
        self.adjacency = adjacency
        self.mean = mean
        self.dropout = dropout
        self.num_users = len(user_features)
        num_nodes = self.num_users + len(item_features)
        self.embedding = nn.Parameter(0.1 * torch.randn(num_nodes, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(num_nodes))
        self.user_projection = nn.Linear(user_features.shape[1], hidden_dim, bias=False)
        self.item_projection = nn.Linear(item_features.shape[1], hidden_dim, bias=False)
        self.layers = nn.ModuleList(SAGEConv(hidden_dim, hidden_dim) for _ in range(num_layers))

    def encode(self) -> Tensor:
        features = torch.cat([self.user_projection(self.user_features), self.item_projection(self.item_features)])
        x = F.dropout(self.embedding + features, self.dropout, self.training)
        z = x
        for layer in self.layers[:-1]:
            x = F.dropout(F.relu(layer(x, self.adjacency)), self.dropout, self.training)
            z = z + x
        return z + self.layers[-1](x, self.adjacency)

    def decode(self, z: Tensor, user: Tensor, item: Tensor) -> Tensor:
        item = item + self.num_users
        return self.mean + self.bias[user] + self.bias[item] + (z[user] * z[item]).sum(dim=1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.decode(self.encode(), user, item)


def tensors(ratings: Ratings) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(ratings.user).long(), torch.tensor(ratings.item).long(), torch.tensor(ratings.rating)


def scaled(features: Any) -> Tensor:
    """Columns with a largest magnitude of 1, as tuner scales them."""
    columns = torch.tensor(features)
    return columns / columns.abs().amax(dim=0).clamp(min=1e-12)


@torch.no_grad()
def rmse(model: GraphSAGE, ratings: tuple[Tensor, Tensor, Tensor], low: float, high: float) -> float:
    user, item, rating = ratings
    model.eval()
    return math.sqrt(F.mse_loss(model(user, item).clamp(low, high), rating))


def adjacency_of(edges: Tensor, nodes: int, csr: bool) -> Tensor:
    """The edges in both directions, as an ``edge_index`` or in CSR form (PyG's guide on sparse tensors)."""
    both_ways = torch.cat([edges, edges.flip(0)], dim=1)
    if not csr:
        return both_ways
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's support of CSR is in beta
        return to_torch_csr_tensor(both_ways, size=(nodes, nodes))  # it is its own transpose


def train(config: dict[str, Any], task: Task) -> dict[str, float]:
    data = task.data
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)  # not exact with Optuna, whose threads draw from one generator
    user, item, rating = tensors(data.train)
    validation, test = tensors(data.validation), tensors(data.test)
    low, high = rating.min().item(), rating.max().item()
    edges = torch.stack([user, item + data.num_users])
    model = GraphSAGE(
        scaled(data.user_features),
        scaled(data.item_features),
        adjacency_of(edges, data.num_users + data.num_items, task.csr),
        rating.mean().item(),
        config["hidden_dim"],
        config["num_layers"],
        config["dropout"],
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    epochs = config["epochs"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)
    best, weights = math.inf, {}
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(rating)).split(config["batch_size"]):
            optimizer.zero_grad()
            F.mse_loss(model(user[batch], item[batch]), rating[batch]).backward()
            optimizer.step()
        schedule.step()
        score = rmse(model, validation, low, high)
        if score < best:
            best, weights = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    return {"val_rmse": best, "test_rmse": rmse(model, test, low, high)}


def by_ray_tune(configurations: list[dict[str, Any]], task: Task, folder: Path) -> dict[str, float]:
    from ray import tune

    trainable = tune.with_parameters(lambda space, task: train(space["configuration"], task), task=task)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"configuration": tune.grid_search(configurations)},
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = tuner.fit()
    if results.num_errors:
        raise SystemExit(f"error: {results.num_errors} trials failed: {results.errors[0]}")
    return {result.config["configuration"]["name"]: result.metrics["test_rmse"] for result in results}


def by_optuna(configurations: list[dict[str, Any]], task: Task, folder: Path) -> dict[str, float]:
    import optuna

    def objective(trial: optuna.Trial) -> float:
        metrics = train(configurations[trial.suggest_int("place", 0, len(configurations) - 1)], task)
        trial.set_user_attr("test_rmse", metrics["test_rmse"])
        return metrics["val_rmse"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for place in range(len(configurations)):
        study.enqueue_trial({"place": place})
    study.optimize(objective, n_trials=len(configurations), n_jobs=2)
    return {configurations[trial.params["place"]]["name"]: trial.user_attrs["test_rmse"] for trial in study.trials}


def by_tuner(configurations: list[dict[str, Any]], task: Task, folder: Path) -> dict[str, float]:
    import tuner

    options: dict[str, Any] = {"metric": "val_rmse", "direction": "minimize", "device": "cpu"}
    result = tuner.run(train, config=configurations, data=task, output=folder / "study", **options)
    return {row["name"]: row["test_rmse"] for row in result.rows}


BY: dict[str, Callable[[list[dict[str, Any]], Task, Path], dict[str, float]]] = {
    "ray-tune": by_ray_tune,
    "optuna": by_optuna,
    "tuner": by_tuner,
}


@click.command()
@click.argument("study", type=click.File())
@click.option("--by", type=click.Choice(list(BY)), required=True, help="What tunes the function.")
@click.option("--csr", is_flag=True, help="The graph as a CSR matrix; else as an edge_index.")
@click.option("--data", default="synthetic", help="As tuner's: synthetic, ml-100k, or a folder.")
@click.option("--seed", default=0, help="Of the validation split, weights, batches and dropout.")
@click.option("--output", required=True, type=click.File("w"), help="Where to write test RMSEs by name, as JSON.")
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="For files of Ray Tune or tuner.")
def main(study: Any, by: str, csr: bool, data: str, seed: int, output: Any, folder: Path) -> None:
    """Train the configurations in STUDY, a JSON list of mappings, two at a time."""
    task = Task(load_ratings(data, seed=seed), seed, csr)
    json.dump(BY[by](json.load(study), task, folder), output)


if __name__ == "__main__":
    main()
