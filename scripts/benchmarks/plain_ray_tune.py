"""The plain way that comparison.py compares with: Ray Tune, and PyG's SAGEConv on an edge_index.

Of tuner only the data loader is used, so that the splits are the same.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import click
import torch
from ray import tune
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

from tuner.datasets.movielens import load_ratings
from tuner.datasets.ratings import RatingData, Ratings


class GraphSAGE(nn.Module):
    """Rating = mean + biases + ⟨z_user, z_item⟩; z is the sum of the input and every layer's output."""

    def __init__(
        self,
        user_features: Tensor,
        item_features: Tensor,
        edge_index: Tensor,
        mean: float,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.user_features, self.item_features = user_features, item_features
        self.edge_index = edge_index
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
            x = F.dropout(F.relu(layer(x, self.edge_index)), self.dropout, self.training)
            z = z + x
        return z + self.layers[-1](x, self.edge_index)

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


def train(space: dict[str, Any], data: RatingData) -> dict[str, float]:
    config = space["configuration"]
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    user, item, rating = tensors(data.train)
    validation, test = tensors(data.validation), tensors(data.test)
    low, high = rating.min().item(), rating.max().item()
    edges = torch.stack([user, item + data.num_users])
    model = GraphSAGE(
        scaled(data.user_features),
        scaled(data.item_features),
        torch.cat([edges, edges.flip(0)], dim=1),
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


@click.command()
@click.argument("study", type=click.File())
@click.option("--data", default="synthetic", help="As tune's: synthetic, ml-100k, or a folder.")
@click.option("--seed", default=0, help="Of the validation split, weights, batches and dropout.")
@click.option("--output", required=True, type=click.File("w"), help="Where to write the results, as JSON.")
@click.option("--storage", required=True, help="The folder for Ray Tune's own files.")
def main(study: Any, data: str, seed: int, output: Any, storage: str) -> None:
    """Run the configurations in STUDY, a JSON list of mappings, with Ray Tune."""
    configurations = [{**config, "seed": seed} for config in json.load(study)]
    trainable = tune.with_parameters(train, data=load_ratings(data, seed=seed))
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"configuration": tune.grid_search(configurations)},
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    results = tuner.fit()
    if results.num_errors:
        raise SystemExit(f"error: {results.num_errors} trials failed: {results.errors[0]}")
    found = [
        {"name": result.config["configuration"]["name"], "test_rmse": result.metrics["test_rmse"]}
        for result in results
    ]
    json.dump(found, output)


if __name__ == "__main__":
    main()
