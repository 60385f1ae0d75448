"""The GT-SSL workload: self-supervised pretraining of an encoder on geometric trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tuner.hyperparameters import AnyHyperparameter, Hyperparameter
from tuner.trial import ACCUMULATION, Config
from tuner.workloads.base import Batch, Split, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tuner.datasets.trees import TreeData
    from tuner.workloads.gt_ssl.batches import Limits
    from tuner.workloads.gt_ssl.model import GtSsl


EVALUATION_TREES = 8  # the number of trees in a batch of an evaluation
EVALUATION_NEGATIVES = 64
MOST_CLASSES = 10  # that a plan lists, as well as of files that were left out


class GTSSL(Workload["TreeData", "GtSsl"]):
    """An SGMP encoder that is pretrained by subtree growth and hierarchical order.

    Configurations are compared by these two losses only. Labels are used once at the end, by a linear probe of the
    frozen embeddings that decides nothing.
    """

    name = "gt-ssl"
    metric = "val_loss"
    headline: ClassVar[Sequence[str]] = ("probe_accuracy",)
    default_data: ClassVar[str] = "synthetic"
    imports = ("torch_geometric",)
    memory_scales_with: ClassVar[str | None] = "batch_size"
    batches_vary: ClassVar[bool] = True
    data_options: ClassVar[Sequence[str]] = ("skip_bad", "largest_tree")
    data_keys: ClassVar[Sequence[str]] = ("label_level",)
    divergence_factor: ClassVar[float] = 1e3  # an order loss rose from 5.4 to 151,633 in one epoch
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]] = {
        "hidden_channels": Hyperparameter(64, 2, 4096, "channels of embeddings and messages"),
        "num_interactions": Hyperparameter(3, 1, 16, "layers of the encoder"),
        "num_rbf_centers": Hyperparameter(20, 2, 1000, "radial basis functions of a distance"),
        "num_angle_centers": Hyperparameter(6, 2, 1000, "radial basis functions of an angle"),
        "num_dihedral_centers": Hyperparameter(12, 2, 1000, "radial basis functions of a dihedral"),
        "cutoff": Hyperparameter(10.0, 0.1, 1e6, "the largest distance with a centre, in mean edges"),
        "batch_size": Hyperparameter(4, 1, 1_000_000, "trees in a training batch"),
        "max_paths_per_batch": Hyperparameter(8192, 16, 100_000_000, "third-order paths in a training batch"),
        "n_positives": Hyperparameter(0, 0, 1_000_000, "ordered pairs of a tree; 0 takes all"),
        "n_negatives": Hyperparameter(64, 0, 1_000_000, "pairs of a tree that are not in order"),
        "lr": Hyperparameter(1e-3, 1e-7, 10.0, "Adam's learning rate at the start; decays linearly"),
        "weight_decay": Hyperparameter(5e-4, 0.0, 1.0, "L2 penalty"),
        "lambda_order": Hyperparameter(1.0, 0.0, 1e6, "weight of the hierarchical order's loss"),
        "delta": Hyperparameter(1.0, 0.0, 1e6, "margin of pairs that are not in order"),
        "epochs": Hyperparameter(100, 1, 100_000, "passes over the training trees"),
        "label_level": Hyperparameter(1, 1, 100, "level of the folders whose names are the labels", optional=True),
    }

    def load_data(
        self, source: str, seed: int, skip_bad: bool = False, label_level: int = 1, largest_tree: bool = False
    ) -> TreeData:
        """Trees by name or folder; see ``tuner.datasets.trees.load_trees``."""
        from tuner.datasets.trees import load_trees

        return load_trees(source, seed=seed, skip_bad=skip_bad, label_level=label_level, largest_tree=largest_tree)

    def describe(self, data: TreeData) -> str:
        left_out = f"; {data.bad} file{'s' * (data.bad > 1)} left out" if data.bad else ""
        return (
            f"{data.name}: {len(data):,} trees, {len(data.parent):,} nodes, {data.path.shape[1]:,} third-order "
            f"paths; {len(data.train):,} training, {len(data.validation):,} validation and {len(data.test):,} test "
            f"trees; classes: {_classes(data)}{left_out}" + "".join(f"\n{note}" for note in data.notes[:MOST_CLASSES])
        )

    def all_data(self, data: TreeData) -> TreeData:
        import numpy as np

        return replace(data, train=np.arange(len(data)))

    def training_samples(self, data: TreeData) -> int:
        return len(data.train)

    def build_model(self, config: Config, data: TreeData) -> GtSsl:
        """A new encoder with the two tasks' heads."""
        return _model(config)

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> GtSsl:
        """The model with these weights; its ``encoder`` is the pretrained part."""
        model = _model(config)
        model.load_state_dict(dict(weights))
        return model

    def checkpointed(self, model: GtSsl) -> Iterable[nn.Module]:
        """The encoder's layers. The paths' geometry is kept, since every layer needs it."""
        return model.encoder.interactions

    def batches(self, config: Config, data: TreeData) -> Iterator[Batch]:
        """A ``torch_geometric.data.Batch`` at a time of the training trees, in a new random order."""
        return (batch for (batch,) in self.training_steps({**config, ACCUMULATION: 1}, data))

    def training_steps(self, config: Config, data: TreeData) -> Iterator[list[Batch]]:
        """Batches whose trees are divided into micro-batches. The limit on paths holds for the whole batch."""
        import numpy as np
        import torch

        from tuner.workloads.gt_ssl.batches import collate, group_trees

        random = np.random.default_rng(int(torch.randint(2**62, ())))
        limits, parts = _limits(config), int(config.get(ACCUMULATION, 1))
        for trees in group_trees(data, random.permutation(data.train).tolist(), limits):
            split = np.array_split(np.array(trees), min(parts, len(trees)))
            yield [collate(data, part.tolist(), limits, random) for part in split]

    def rehearsal(self, data: TreeData) -> TreeData:
        """The trees of the largest batch of an evaluation."""
        import numpy as np

        sizes = np.diff(data.first_path)
        return data.take(np.argsort(-sizes, kind="stable")[:EVALUATION_TREES])

    def largest_batch(self, config: Config, data: TreeData) -> Batch:
        """A batch of the trees with the most paths."""
        import numpy as np

        from tuner.workloads.gt_ssl.batches import collate, largest

        limits = _limits(config)
        return collate(data, largest(data, data.train, limits), limits, np.random.default_rng(0))

    def loss(self, model: GtSsl, batch: Batch) -> Tensor:
        """Growth + λ · order, the mean over a batch's trees."""
        return model.total(*model(batch))

    def evaluate(self, model: GtSsl, data: TreeData, split: Split) -> dict[str, float]:
        """``loss``, ``growth_loss`` and ``order_loss`` of a split; for the test split also ``probe_accuracy``.

        The probe is cross-validated on all trees. It is missing if fewer than two labels have two trees.
        """
        return self.evaluate_in_parts(model, data, split, 1)

    def evaluate_in_parts(self, model: GtSsl, data: TreeData, split: Split, parts: int) -> dict[str, float]:
        from tuner.workloads.gt_ssl.evaluation import losses, probe
        from tuner.workloads.micro_batches import chunk_size

        trees = getattr(data, split).tolist()
        metrics = losses(model, data, trees, chunk_size(EVALUATION_TREES, len(trees), parts), EVALUATION_NEGATIVES)
        if split == "validation":
            return metrics
        return {**metrics, **probe(model.encoder, data, chunk_size(EVALUATION_TREES, len(data), parts))}


def _classes(data: TreeData) -> str:
    """The largest classes with how many trees they have."""
    import numpy as np

    counts = np.bincount(data.label, minlength=len(data.classes)).tolist()
    listed = sorted(zip(data.classes, counts, strict=True), key=lambda of_class: -of_class[1])
    shown = ", ".join(f"{name or 'in no folder'} {count:,}" for name, count in listed[:MOST_CLASSES])
    return shown + (f" and {len(listed) - MOST_CLASSES} more" if len(listed) > MOST_CLASSES else "")


def _model(config: Config) -> GtSsl:
    from tuner.datasets.trees import FEATURES
    from tuner.workloads.gt_ssl.model import Encoder, GtSsl

    hidden = int(config["hidden_channels"])
    encoder = Encoder(
        len(FEATURES),
        hidden_channels=hidden,
        num_interactions=int(config["num_interactions"]),
        num_rbf_centers=int(config["num_rbf_centers"]),
        num_angle_centers=int(config["num_angle_centers"]),
        num_dihedral_centers=int(config["num_dihedral_centers"]),
        cutoff=float(config["cutoff"]),
    )
    return GtSsl(
        encoder, hidden_channels=hidden, lambda_order=float(config["lambda_order"]), delta=float(config["delta"])
    )


def _limits(config: Config) -> Limits:
    from tuner.workloads.gt_ssl.batches import Limits

    keys = ("batch_size", "max_paths_per_batch", "n_positives", "n_negatives")
    return Limits(*(int(config[key]) for key in keys))
