"""The KD-GAT workload: a VGAE and a GAT on graphs of CAN-bus traffic, and students that learn from teachers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tuner.errors import InputError
from tuner.hyperparameters import AnyHyperparameter, Hyperparameter, TextHyperparameter
from tuner.trial import AUTO, CHECKPOINTING, MAX_BATCH, Config, Configuration, ConfigValue
from tuner.workloads.base import Batch, Split, Workload
from tuner.workloads.kd_gat import CHUNK, SHARED, SIZES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tuner.datasets.can import CanData
    from tuner.workloads.kd_gat.graphs import Index
    from tuner.workloads.kd_gat.model import Distilled

STAGES = ("autoencoder", "classifier")
ROLES = ("teacher", "student")
TEACHER_BATCH = 32
MOST_NOTES = 20  # lines of a plan on recordings


class KDGAT(Workload["CanData", "Distilled"]):
    """A VGAE that learns normal CAN traffic (autoencoder), or a GAT that finds attacks in it (classifier).

    Both come in the sizes of a teacher and of a student. With ``use_kd`` a student learns from a teacher: from
    ``teacher_path``, or from one that is trained first for all configurations that need it.
    """

    name = "kd-gat"
    metric = "val_loss"
    headline: ClassVar[Sequence[str]] = ("f1", "auroc")
    default_data: ClassVar[str] = "synthetic"
    imports = ("torch_geometric",)
    memory_scales_with: ClassVar[str | None] = "batch_size"
    batches_vary: ClassVar[bool] = True
    data_options: ClassVar[Sequence[str]] = ("label", "normal")
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]] = {
        "stage": TextHyperparameter("classifier", "the model: a VGAE (autoencoder) or a GAT (classifier)", STAGES),
        "role": TextHyperparameter("student", "sets the sizes that are 0", ROLES),
        "hidden_channels": Hyperparameter(0, 0, 4096, "of a GAT's head or a VGAE's first layer; 0 takes the role's"),
        "num_layers": Hyperparameter(0, 0, 16, "layers of a GAT; 0 takes the role's"),
        "latent_channels": Hyperparameter(0, 0, 4096, "latent channels of a VGAE; 0 takes the role's"),
        "heads": Hyperparameter(0, 0, 64, "attention heads of each layer; 0 takes the role's"),
        "dropout": Hyperparameter(0.2, 0.0, 0.9, "share of channels dropped after a layer"),
        "use_id": Hyperparameter(1, 0, 1, "0 hides the CAN IDs from the model"),
        "held_out": TextHyperparameter("", "a kind of attack that is left out of training, and tested alone"),
        "use_kd": Hyperparameter(0, 0, 1, "1 learns from a teacher"),
        "teacher_path": TextHyperparameter("", "best.pt of a study; empty trains a teacher first"),
        "teacher_epochs": Hyperparameter(40, 1, 100_000, "epochs of a teacher or a scorer that is trained first"),
        "kd_weight": Hyperparameter(0.7, 0.0, 1.0, "the teacher's share of the loss"),
        "temperature": Hyperparameter(4.0, 0.1, 100.0, "divides a classifier's logits in the teacher's share"),
        "use_teacher_cache": Hyperparameter(1, 0, 1, "1 computes the teacher's outputs once and keeps them"),
        "curriculum": Hyperparameter(0, 0, 1, "1 trains on all attacks, and on ever harder normal graphs"),
        "scorer_path": TextHyperparameter("", "best.pt of an autoencoder; empty trains one first"),
        "batch_size": Hyperparameter(4096, 1, 1_000_000, "graphs in a training batch"),
        "optimize_batch_size": Hyperparameter(1, 0, 1, "1 finds the largest batch that fits, up to batch_size"),
        CHECKPOINTING: Hyperparameter(1, 0, 1, "1 recomputes activations in backward to save memory"),
        "clear_cache_every_n": Hyperparameter(100, 0, 1_000_000_000, "steps between clearing a GPU's cache; 0 never"),
        "lr": Hyperparameter(3e-3, 1e-7, 10.0, "Adam's learning rate at the start; decays linearly"),
        "weight_decay": Hyperparameter(1e-4, 0.0, 1.0, "L2 penalty"),
        "epochs": Hyperparameter(40, 1, 100_000, "passes over the training graphs"),
    }

    def finish(self, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        """Adds the role's sizes, absolute paths, and an ``AUTO`` batch size up to the configured one."""
        _refuse(values)
        preset, paths = SIZES[str(values["stage"]), str(values["role"])], ("teacher_path", "scorer_path")
        finished = {**values, **{key: value for key, value in preset.items() if not values[key]}}
        finished |= {key: str(Path(str(values[key])).expanduser().resolve()) for key in paths if values[key]}
        if values["optimize_batch_size"] and MAX_BATCH not in values and values["batch_size"] != AUTO:
            finished |= {"batch_size": AUTO, MAX_BATCH: values["batch_size"]}
        return finished

    def prerequisites(self, config: Config) -> Mapping[str, Configuration]:
        """The teacher of a student, and the autoencoder that scores graphs for a curriculum."""
        needed = {}
        if config["use_kd"] and not config["teacher_path"]:
            needed["teacher_path"] = self._standard(config, str(config["stage"]))
        if config["curriculum"] and not config["scorer_path"]:
            needed["scorer_path"] = self._standard(config, "autoencoder")
        return needed

    def _standard(self, config: Config, stage: str) -> Configuration:
        """A teacher of the default size, with its own learning rate and batch size."""
        values = {key: spec.default for key, spec in self.hyperparameters.items()}
        values |= {key: config[key] for key in SHARED}
        values |= {"stage": stage, "role": "teacher", "epochs": config["teacher_epochs"]}
        values |= {"batch_size": TEACHER_BATCH, "optimize_batch_size": 0}
        words = [stage, "teacher", "" if config["use_id"] else "without-IDs", str(config["held_out"])]
        return Configuration("-".join(filter(None, words)).replace(" ", "-"), self.finish(values))

    def load_data(self, source: str, seed: int, label: str | None = None, normal: str | None = None) -> CanData:
        """Graphs by name, file or folder, split by time without the seed; see ``tuner.datasets.can.load_can``."""
        from tuner.datasets.can import load_can

        return load_can(source, label=label, normal=normal)

    def check(self, configurations: Sequence[Configuration], data: CanData) -> None:
        from tuner.workloads.kd_gat.checks import check

        check(configurations, data)

    def describe(self, data: CanData) -> str:
        attacks = int(data.label.sum())
        return (
            f"{data.name}: {len(data):,} graphs of {len(data.ids):,} nodes and {data.edge.shape[1]:,} edges, "
            f"{len(data.identifiers):,} CAN IDs; {attacks:,} graphs with attacks; {len(data.train):,} training, "
            f"{len(data.validation):,} validation and {len(data.test):,} test graphs"
            + "".join(f"\n{note}" for note in data.notes[:MOST_NOTES])
            + (f"\nand {len(data.notes) - MOST_NOTES:,} more" if len(data.notes) > MOST_NOTES else "")
        )

    def all_data(self, data: CanData) -> CanData:
        import numpy as np

        return replace(data, train=np.arange(len(data)))

    def training_samples(self, data: CanData) -> int:
        return len(data.train)

    def build_model(self, config: Config, data: CanData) -> Distilled:
        from tuner.workloads.kd_gat.model import build

        return build(config, data)

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> nn.Module:
        """The VGAE or GAT, without its teacher."""
        from tuner.workloads.kd_gat.model import restore

        return restore(config, weights)

    def checkpointed(self, model: Distilled) -> Iterable[nn.Module]:
        return model.student.checkpointed

    def frozen(self, model: Distilled) -> Iterable[nn.Module]:
        """The teacher and the scorer while they are needed."""
        return model.frozen

    def prepare(self, model: Distilled, config: Config, data: CanData, *, rehearsal: bool = False) -> None:
        """Computes the difficulties for a curriculum and the teacher's cached outputs, in chunks of graphs."""
        model.prepare(data, rehearsal=rehearsal)

    def epoch_data(self, model: Distilled, config: Config, data: CanData, epoch: int) -> CanData:
        """The graphs of the curriculum in this epoch; all training graphs without a curriculum."""
        from tuner.workloads.kd_gat.batches import select

        scores = model.difficulty
        if scores is None:
            return data
        progress = (epoch - 1) / max(1, int(config["epochs"]) - 1)
        return replace(data, train=select(self._graphs(config, data), data.label, scores, progress))

    def batches(self, config: Config, data: CanData) -> Iterator[Batch]:
        """A ``torch_geometric.data.Batch`` at a time of the training graphs, in a new random order."""
        import torch

        from tuner.workloads.kd_gat.batches import collate

        graphs = self._graphs(config, data)
        order = graphs[torch.randperm(len(graphs)).numpy()]
        size = int(config["batch_size"])
        return (collate(data, order[begin : begin + size]) for begin in range(0, len(order), size))

    def largest_batch(self, config: Config, data: CanData) -> Batch:
        """The training graphs with the most edges and nodes."""
        from tuner.workloads.kd_gat.batches import collate, largest

        return collate(data, largest(data, self._graphs(config, data), int(config["batch_size"])))

    def rehearsal(self, data: CanData) -> CanData:
        """One chunk of the largest graphs of each split."""
        from tuner.workloads.kd_gat.batches import largest

        train, validation, test = (largest(data, part, CHUNK) for part in (data.train, data.validation, data.test))
        return replace(data, train=train, validation=validation, test=test)

    def loss(self, model: Distilled, batch: Batch) -> Tensor:
        """The student's loss, with or without a teacher; the mean over a batch's graphs."""
        return model.loss(batch)

    def evaluate(self, model: Distilled, data: CanData, split: Split) -> dict[str, float]:
        """``loss``; for a classifier also ``accuracy``, and ``f1``, ``precision``, ``recall``, ``auroc`` of attacks.

        An autoencoder has these on the test split. It detects attacks by larger errors than any normal graph had
        before.
        """
        return self.evaluate_in_parts(model, data, split, 1)

    def evaluate_in_parts(self, model: Distilled, data: CanData, split: Split, parts: int) -> dict[str, float]:
        from tuner.workloads.kd_gat.evaluation import evaluate

        return evaluate(model, data, split, parts)

    def _graphs(self, config: Config, data: CanData) -> Index:
        from tuner.workloads.kd_gat.graphs import graphs_of

        return graphs_of(data, "train", stage=str(config["stage"]), held_out=str(config["held_out"]))


def _refuse(values: Config) -> None:
    if values["role"] == "teacher" and values["use_kd"]:
        raise InputError("role teacher and use_kd 1: a teacher has no teacher: leave one of them out")
    if values["teacher_path"] and not values["use_kd"]:
        raise InputError("teacher_path is given, but use_kd is 0: give use_kd 1, or leave it out")
    if values["scorer_path"] and not values["curriculum"]:
        raise InputError("scorer_path is given, but curriculum is 0: give curriculum 1, or leave it out")
    if values["curriculum"] and values["stage"] == "autoencoder":
        raise InputError("curriculum 1: only a classifier has one: leave it out, or give stage classifier")
