"""The GraphSAGE workload: rating prediction on MovieLens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tuner.errors import InputError
from tuner.hyperparameters import AnyHyperparameter, Hyperparameter, TextHyperparameter
from tuner.trial import Config, ConfigValue
from tuner.workloads.base import Split, Workload
from tuner.workloads.batches import to_tensor

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from tuner.datasets.ratings import RatingData, Ratings
    from tuner.workloads.graphsage.model import GraphSAGEModel


ALL, BY_SIZE = "all", "by-size"
WHOLE_GRAPH = 2**21  # training ratings up to which ``fanout: by-size`` takes all neighbours
MOST_NEIGHBOURS = 10_000
SAMPLED_NODES = 25  # for each user and item of a batch, beside the nodes between; 2 for each layer at least
FEWEST_TO_CHOOSE_BY = 50  # validation ratings; the RMSE of fewer has a standard error of over 10 %
FLAGS = 4  # more than a user or a film of MovieLens has
CONSTANTS = ("user_features", "item_features", "crow", "col")
EVALUATION_PAIRS = 2**16  # pairs that are decoded at a time, with two (2**16, hidden_dim) gathers


class GraphSAGE(Workload["RatingData", "GraphSAGEModel"]):
    """Learned embeddings and features, GraphSAGE layers with mean aggregation, a product decoder with biases, MSE.

    Test and validation ratings are never edges of the graph. Predictions are limited to the scale of the training
    ratings in evaluation only.
    """

    name = "graphsage"
    metric = "val_rmse"
    default_data: ClassVar[str] = "synthetic"
    imports = ("torch_geometric",)
    data_options: ClassVar[Sequence[str]] = ("columns",)
    memory_scales_with: ClassVar[str | None] = "batch_size"
    divergence_factor: ClassVar[float] = 1e3  # no width, depth or default rate reached twice the ratings' variance
    # The defaults were chosen on the validation RMSE of MovieLens-100K.
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]] = {
        "hidden_dim": Hyperparameter(64, 1, 8192, "channels of embeddings and layers"),
        "num_layers": Hyperparameter(2, 1, 16, "GraphSAGE layers"),
        "dropout": Hyperparameter(0.3, 0.0, 0.95, "share of channels dropped"),
        "fanout": TextHyperparameter(
            BY_SIZE,
            "neighbours sampled for each layer, as in 10,5; all; or by-size, which samples if the graph is large",
            optional=True,
            numbers=True,
        ),
        "lr": Hyperparameter(
            0.01, 1e-7, 10.0, "Adam's learning rate at the start, up to 64 channels; decays linearly"
        ),
        "weight_decay": Hyperparameter(5e-4, 0.0, 1.0, "L2 penalty"),
        "batch_size": Hyperparameter(2048, 1, 10_000_000, "ratings in a training batch"),
        "epochs": Hyperparameter(12, 1, 100_000, "passes over the training ratings"),
    }

    def finish(self, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        """Checks ``fanout``."""
        fanouts(values)
        return values

    def load_data(self, source: str, seed: int, columns: str | None = None) -> RatingData:
        """Ratings by name, folder or table; see ``tuner.datasets.movielens.load_ratings``."""
        from tuner.datasets.movielens import load_ratings

        return load_ratings(source, seed=seed, columns=columns)

    def describe(self, data: RatingData) -> str:
        low, high = float(data.train.rating.min()), float(data.train.rating.max())
        scale = f" from {low:g} to {high:g}" * (low < 0.5 or high > 5)  # unlike MovieLens
        repeats = f"; {data.repeats:,} repeat an earlier one's user and item" if data.repeats else ""
        dropped = f", of which {data.dropped:,} are left out, as they are test ratings" if data.dropped else ""
        samples = "; training samples neighbours, unless fanout says otherwise" * (len(data.train) > WHOLE_GRAPH)
        return (
            f"{data.name}: {data.num_users:,} users, {data.num_items:,} items; "
            f"{len(data.train):,} training, {len(data.validation):,} validation and {len(data.test):,} test ratings"
            f"{scale}{repeats}{dropped}{samples}"
        )

    def caution(self, data: RatingData) -> str:
        count = len(data.validation)
        if count >= FEWEST_TO_CHOOSE_BY:
            return ""
        error = 1 / math.sqrt(2 * count)  # relative, of a standard deviation from this number of normal errors
        few = f"{count} validation rating{'s' * (count > 1)}"
        return f"it was chosen by {few}, whose RMSE has a standard error of about {error:.0%}: give more ratings"

    def all_data(self, data: RatingData) -> RatingData:
        return data.all_training()

    def training_samples(self, data: RatingData) -> int:
        return len(data.train)

    def constant_loss(self, data: RatingData) -> float:
        """The variance of the training ratings."""
        return float(to_tensor(data.train.rating).var(correction=0))  # unlike numpy's, without a copy of all ratings

    def build_model(self, config: Config, data: RatingData) -> GraphSAGEModel:
        """A new model over the graph of the training ratings."""
        import numpy as np
        import torch

        rating = data.train.rating
        scale = torch.tensor([rating.mean(dtype=np.float64), rating.min(), rating.max()], dtype=torch.float32)
        constants = {
            "user_features": _scaled(to_tensor(data.user_features)),
            "item_features": _scaled(to_tensor(data.item_features)),
            "crow": to_tensor(data.graph.crow),
            "col": to_tensor(data.graph.col),
        }
        return _model(config, constants, scale, sampled(len(rating), config))

    def constants(self, model: GraphSAGEModel) -> dict[str, Tensor]:
        """The graph and the features."""
        return {name: getattr(model, name) for name in CONSTANTS}

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> GraphSAGEModel:
        model = _model(config, {name: weights[name] for name in CONSTANTS}, weights["rating_scale"])
        model.load_state_dict({key: weights[key] for key in model.state_dict()})
        return model

    def parameter_groups(self, model: GraphSAGEModel, config: Config) -> list[dict[str, object]]:
        """Rates that fall with the width H from 64 on: with H for layers' matrices, with √H for nodes' vectors.

        Adam changes all numbers of a vector by about its rate at once, and its product with another vector by H times
        that. With one rate, first epochs of wide and deep models are wild. Yang et al. (2022, arXiv 2203.03466)
        derive how rates must fall. SGD's steps shrink with the gradients.
        """
        share = 1.0 if config.get("optimizer") == "sgd" else min(1.0, 64 / int(config["hidden_dim"]))
        matrices = [value for value in model.layers.parameters() if value.ndim == 2]
        apart = {id(value) for value in (*matrices, model.bias)}
        vectors = [value for value in model.parameters() if id(value) not in apart]
        lr = float(config["lr"])
        return [
            {"params": [model.bias]},
            {"params": vectors, "lr": lr * share**0.5},
            {"params": matrices, "lr": lr * share},
        ]

    def checkpointed(self, model: GraphSAGEModel) -> Iterable[nn.Module]:
        """The layers, each with its activation and dropout."""
        return model.layers

    def batches(self, config: Config, data: RatingData) -> Iterator[Data]:
        """A graph's edges in a new random order: ``user`` (B,), ``item`` (B,) and ``rating`` (B,)."""
        import torch
        from torch_geometric.data import Data

        user, item, rating = _tensors(data.train)
        # Half of the memory of randperm's default, of which every worker has its own.
        order, size = torch.randperm(len(rating), dtype=torch.int32), int(config["batch_size"])
        for begin in range(0, len(order), size):  # lazily, since estimates use two of up to 100,000 batches
            chosen = order[begin : begin + size]
            parts = (part.index_select(0, chosen) for part in (user, item, rating))
            yield Data(**dict(zip(("user", "item", "rating"), parts, strict=True)))

    def loss(self, model: GraphSAGEModel, batch: Data) -> Tensor:
        """Mean squared error of a batch's ratings."""
        from torch.nn import functional as F

        return F.mse_loss(model(batch.user, batch.item), batch.rating)

    def count(self, batch: Data) -> int:
        return len(batch.rating)

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
        for users, items, ratings in zip(*(torch.split(part, size) for part in (user, item, rating)), strict=True):
            squared += (model.predict(z, users, items) - ratings).square().sum()
        return {"rmse": math.sqrt(float(squared) / len(rating))}


def fanouts(config: Config) -> tuple[int, ...]:
    """The neighbours to sample for each layer, by a configuration's ``fanout``; empty for ``all`` and ``by-size``.

    A single number is that of every layer. Raises ``InputError`` for another text.
    """
    given, layers = str(config.get("fanout", BY_SIZE)), int(config["num_layers"])
    if given in (ALL, BY_SIZE):
        return ()
    numbers = [int(number) for number in given.split(",") if re.fullmatch(r"\s*[0-9]{1,9}\s*", number)]
    sound = len(numbers) == given.count(",") + 1 and len(numbers) in (1, layers)
    if not sound or not all(1 <= number <= MOST_NEIGHBOURS for number in numbers):
        raise InputError(
            f"fanout = {given!r:.60} is not allowed (allowed: {ALL}, {BY_SIZE}, a whole number from 1 to "
            f"{MOST_NEIGHBOURS:,}, or one for each of the {layers} layers, as in "
            f"{','.join(map(str, _default_fanout(layers)))})"
        )
    return tuple(numbers * layers if len(numbers) == 1 else numbers)


def _default_fanout(layers: int) -> tuple[int, ...]:
    """About ``SAMPLED_NODES`` in all, however many layers there are."""
    return (max(2, round(SAMPLED_NODES ** (1 / layers))),) * layers


def sampled(ratings: int, config: Config) -> tuple[int, ...]:
    """The neighbours to sample for each layer with this number of training ratings; empty for all neighbours."""
    by_size = config.get("fanout", BY_SIZE) == BY_SIZE and ratings > WHOLE_GRAPH
    return _default_fanout(int(config["num_layers"])) if by_size else fanouts(config)


def _scaled(features: Tensor) -> Tensor:
    """The columns scaled to a maximum magnitude of 1, and rows to a mean sum of magnitudes of at most ``FLAGS``.

    A step of Adam changes the weights of all columns alike, so the more a row fills the further it moves.
    """
    features = features / features.abs().amax(dim=0).clamp(min=1e-12)
    return features / (features.abs().sum(dim=1).mean() / FLAGS).clamp(min=1)


def _model(
    config: Config, constants: dict[str, Tensor], rating_scale: Tensor, fanout: Sequence[int] = ()
) -> GraphSAGEModel:
    from tuner.workloads.graphsage.model import GraphSAGEModel

    return GraphSAGEModel(
        constants,
        rating_scale,
        hidden_dim=int(config["hidden_dim"]),
        num_layers=int(config["num_layers"]),
        dropout=float(config["dropout"]),
        fanout=fanout,
    )


def _tensors(ratings: Ratings) -> tuple[Tensor, Tensor, Tensor]:
    return to_tensor(ratings.user), to_tensor(ratings.item), to_tensor(ratings.rating)
