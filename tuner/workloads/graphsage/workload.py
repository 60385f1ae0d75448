"""The GraphSAGE workload: rating prediction on MovieLens."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tuner.hyperparameters import AnyHyperparameter, Hyperparameter
from tuner.trial import Config, ConfigValue
from tuner.workloads.base import Batch, Split, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from tuner.datasets.ratings import RatingData, Ratings
    from tuner.workloads.graphsage.model import GraphSAGEModel
    from tuner.workloads.graphsage.sparse import Csr


EVALUATION_PAIRS = 2**16  # pairs that are decoded at a time, with two (2**16, hidden_dim) gathers


class GraphSAGE(Workload["RatingData", "GraphSAGEModel"]):
    """Learned embeddings and features, GraphSAGE layers with mean aggregation, a product decoder with biases, MSE.

    Test and validation ratings are never edges of the graph. Predictions are limited to the scale of the training
    ratings in evaluation only.
    """

    name = "graphsage"
    metric = "val_rmse"
    default_data: ClassVar[str] = "synthetic"
    memory_scales_with: ClassVar[str | None] = "batch_size"
    divergence_factor: ClassVar[float] = 1e3  # no width, depth or default rate reached twice the ratings' variance
    # The defaults were chosen on the validation RMSE of MovieLens-100K.
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]] = {
        "hidden_dim": Hyperparameter(64, 1, 8192, "channels of embeddings and layers"),
        "num_layers": Hyperparameter(2, 1, 16, "GraphSAGE layers"),
        "dropout": Hyperparameter(0.3, 0.0, 0.95, "share of channels dropped"),
        "lr": Hyperparameter(0.0, 0.0, 10.0, "Adam's learning rate at the start; 0 takes one that fits hidden_dim"),
        "weight_decay": Hyperparameter(5e-4, 0.0, 1.0, "L2 penalty"),
        "batch_size": Hyperparameter(2048, 1, 10_000_000, "ratings in a training batch"),
        "epochs": Hyperparameter(12, 1, 100_000, "passes over the training ratings"),
    }

    def finish(self, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        """Replaces an ``lr`` of 0 by min(0.01, 0.08 / √hidden_dim).

        Adam changes all of a node's H numbers by about ``lr`` in the same step, and their product with another node's
        by H times that: with one rate for all, the first epochs of wide models go astray. Yang et al. (2022,
        arXiv 2203.03466) derive how rates fall with the width.
        """
        return values if values["lr"] else {**values, "lr": round(min(0.01, 0.08 / float(values["hidden_dim"]) ** 0.5), 6)}

    def load_data(self, source: str, seed: int) -> RatingData:
        """Ratings by name or folder; see ``tuner.datasets.movielens.load_ratings``."""
        from tuner.datasets.movielens import load_ratings

        return load_ratings(source, seed=seed)

    def describe(self, data: RatingData) -> str:
        return (
            f"{data.name}: {data.num_users:,} users, {data.num_items:,} items; "
            f"{len(data.train):,} ratings to train on, {len(data.validation):,} to choose by, "
            f"{len(data.test):,} to report on"
        )

    def all_data(self, data: RatingData) -> RatingData:
        """All ratings as training ratings, and so as edges of the graph."""
        from tuner.datasets.spans import joined

        return replace(data, train=joined([data.train, data.validation, data.test]))

    def training_samples(self, data: RatingData) -> int:
        return len(data.train)

    def constant_loss(self, data: RatingData) -> float:
        """The variance of the training ratings."""
        return float(data.train.rating.var(dtype="float64"))

    def build_model(self, config: Config, data: RatingData) -> GraphSAGEModel:
        """A new model over the graph of the training ratings."""
        import torch

        from tuner.workloads.graphsage.sparse import bipartite_mean

        user, item, rating = _tensors(data.train)
        users, items = (_unit_columns(_tensor(each)) for each in (data.user_features, data.item_features))
        scale = torch.stack([rating.mean(), rating.min(), rating.max()])
        return _model(config, users, items, bipartite_mean(user, item, data.num_users, data.num_items), scale)

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> GraphSAGEModel:
        from tuner.workloads.graphsage.sparse import Csr

        crow, col, value, value_t = (weights[key] for key in ("crow", "col", "value", "value_t"))
        users, items, scale = (weights[key] for key in ("user_features", "item_features", "rating_scale"))
        model = _model(config, users, items, Csr(crow, col, value, crow, col, value_t), scale)
        model.load_state_dict(dict(weights))
        return model

    def checkpointed(self, model: GraphSAGEModel) -> Iterable[nn.Module]:
        """The layers, each with its activation and dropout."""
        return model.layers

    def batches(self, config: Config, data: RatingData) -> Iterator[Batch]:
        """Users (B,), items (B,) and ratings (B,) in a new random order."""
        import torch

        user, item, rating = _tensors(data.train)
        order, size = torch.randperm(len(rating)), int(config["batch_size"])
        for begin in range(0, len(order), size):  # lazily, since estimates use two of up to 100,000 batches
            chosen = order[begin : begin + size]
            yield user[chosen], item[chosen], rating[chosen]

    def loss(self, model: GraphSAGEModel, batch: Batch) -> Tensor:
        """Mean squared error of a batch's ratings."""
        from torch.nn import functional as F

        user, item, rating = batch
        return F.mse_loss(model(user, item), rating)

    def evaluate(self, model: GraphSAGEModel, data: RatingData, split: Split) -> dict[str, float]:
        """The root mean squared error, ``rmse``, of a split."""
        return self.evaluate_in_parts(model, data, split, 1)

    def evaluate_in_parts(
        self, model: GraphSAGEModel, data: RatingData, split: Split, parts: int
    ) -> dict[str, float]:
        import torch

        from tuner.workloads.micro_batches import chunk_size

        user, item, rating = (part.to(model.embedding.device) for part in _tensors(getattr(data, split)))
        z = model.encode()
        size = chunk_size(EVALUATION_PAIRS, len(rating), parts)
        squared = torch.zeros((), device=z.device)
        for part in torch.split(torch.arange(len(rating), device=z.device), size):
            predicted = model.clamp(model.decode(z, user[part], item[part]))
            squared += (predicted - rating[part]).square().sum()
        return {"rmse": math.sqrt(float(squared) / len(rating))}


def _unit_columns(features: Tensor) -> Tensor:
    """The columns scaled to a maximum magnitude of 1. Flags are not changed."""
    return features / features.abs().amax(dim=0).clamp(min=1e-12)


def _model(config: Config, users: Tensor, items: Tensor, graph: Csr, rating_scale: Tensor) -> GraphSAGEModel:
    from tuner.workloads.graphsage.model import GraphSAGEModel

    hidden, layers, dropout = int(config["hidden_dim"]), int(config["num_layers"]), float(config["dropout"])
    return GraphSAGEModel(users, items, graph, rating_scale, hidden_dim=hidden, num_layers=layers, dropout=dropout)


def _tensors(ratings: Ratings) -> tuple[Tensor, Tensor, Tensor]:
    return _tensor(ratings.user), _tensor(ratings.item), _tensor(ratings.rating)


def _tensor(array: NDArray[np.number]) -> Tensor:
    """The array as a tensor over the same memory, which is read-only in Ray's store. Nothing writes to the tensor."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
