"""A VGAE or a GAT with a frozen teacher or its cached outputs, and with the difficulties for a curriculum.

The teacher's outputs are computed for parts of a batch, or once and cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch

from tuner.datasets.can import CanData
from tuner.errors import InputError, one_line
from tuner.trial import ACCUMULATION, Config
from tuner.workloads.kd_gat import CHUNK, SIZES
from tuner.workloads.kd_gat.batches import chunks, largest, parts
from tuner.workloads.kd_gat.distillation import (
    difficulty,
    distilled_gat_loss,
    distilled_vgae_loss,
    gat_loss,
    vgae_loss,
)
from tuner.workloads.kd_gat.graphs import graphs_of
from tuner.workloads.kd_gat.networks import GAT, NUM_FEATURES, VGAE, GraphAttention

STUDENT = "student."
ANOTHER = "give the best.pt of a study of kd-gat"


class KeptOutputs(nn.Module):
    """A teacher's outputs for the training graphs, on the device: a row for each graph, or for each of its nodes.

    They are buffers that move with the model but do not belong to its state.
    """

    start: Tensor
    rows: Tensor

    def __init__(self, teacher: VGAE | GAT, data: CanData, device: torch.device) -> None:
        """Allocates memory for the outputs for ``data.train``."""
        super().__init__()
        self._of_nodes = isinstance(teacher, VGAE)
        sizes = np.diff(data.first)[data.train] if self._of_nodes else np.ones(len(data.train), np.int64)
        start = np.zeros(len(data), np.int64)
        start[data.train] = np.cumsum(sizes) - sizes
        self.register_buffer("start", torch.from_numpy(start).to(device), persistent=False)
        self._widths = [teacher.mean.out_features, NUM_FEATURES] if isinstance(teacher, VGAE) else [2]
        rows = torch.zeros(int(sizes.sum()), sum(self._widths), device=device)
        self.register_buffer("rows", rows, persistent=False)

    def put(self, batch: Batch, outputs: tuple[Tensor, ...]) -> None:
        """Stores the outputs for a batch."""
        self.rows[self._place(batch)] = torch.cat(outputs, dim=1)

    def get(self, batch: Batch) -> tuple[Tensor, ...]:
        """The outputs for a batch."""
        return torch.split(self.rows[self._place(batch)], self._widths, dim=1)

    def _place(self, batch: Batch) -> Tensor:
        start = self.start[batch.graph]
        if not self._of_nodes:
            return start
        place: Tensor = (start - batch.ptr[:-1])[batch.batch] + torch.arange(batch.num_nodes, device=start.device)
        return place


def outputs(teacher: VGAE | GAT, batch: Batch, times: int = 1) -> tuple[Tensor, ...]:
    """A student's targets: a GAT's logits, or a VGAE's latent means and reconstruction.

    The teacher, in evaluation mode, processes the batch in ``times`` parts.
    """
    passes = [teacher(part) for part in parts(batch, times)]
    rows = [(output,) if isinstance(output, Tensor) else (output.mean, output.features) for output in passes]
    return tuple(map(torch.cat, zip(*rows, strict=True)))


def width_ratio(teacher: VGAE | GAT, student: VGAE | GAT) -> int:
    """The ratio of a teacher's channels in all layers to its student's, rounded up.

    On a whole batch a teacher would take more memory than its student's step, so that caching its outputs or
    offloading its weights would save nothing. In this number of parts it takes less.
    """
    of_teacher, of_student = (
        sum(int(layer.lin.out_channels) for layer in model.modules() if isinstance(layer, GraphAttention))
        for model in (teacher, student)
    )
    return math.ceil(of_teacher / of_student)


class Saved(TypedDict):
    """The content of a ``best.pt``."""

    workload: str
    config: Config
    weights: dict[str, Tensor]


class Distilled(nn.Module):
    """A student with its teacher and scorer, which do not belong to its parameters and its state."""

    def __init__(
        self, student: VGAE | GAT, config: Config, teacher: VGAE | GAT | None = None, scorer: VGAE | None = None
    ) -> None:
        super().__init__()
        self.student = student
        # Maps a student's latent channels to its teacher's.
        self.projection = (
            nn.Linear(student.mean.out_features, teacher.mean.out_features)
            if isinstance(teacher, VGAE) and isinstance(student, VGAE)
            else None
        )
        self.stage, self.held_out = str(config["stage"]), str(config["held_out"])
        self._config = config
        # Set by ``prepare`` if configured: the difficulty (G,) of every graph, and the teacher's outputs.
        self.difficulty: NDArray[np.float32] | None = None
        self.kept: KeptOutputs | None = None
        # In a dictionary, since attributes that are modules would become parameters and state of this module.
        self._guests: dict[str, VGAE | GAT | None] = {"teacher": teacher, "scorer": scorer}
        self._passes = width_ratio(teacher, student) if teacher else 1

    @property
    def frozen(self) -> list[nn.Module]:
        """The teacher and the scorer while they are needed."""
        return [guest for guest in self._guests.values() if guest is not None]

    @property
    def device(self) -> torch.device:
        """The student's device."""
        return next(self.student.parameters()).device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Distilled:
        for guest in self.frozen:
            guest._apply(fn)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def prepare(self, data: CanData, *, rehearsal: bool = False) -> None:
        """Scores the training graphs and caches the teacher's outputs, if configured.

        The scorer, and a teacher whose outputs are cached, are then dropped. With ``rehearsal`` only one chunk of the
        largest graphs is computed, with memory for the outputs of all graphs.
        """
        graphs = graphs_of(data, "train", stage=self.stage, held_out=self.held_out)
        graphs = largest(data, graphs, CHUNK) if rehearsal else graphs
        if isinstance(scorer := self._guests["scorer"], VGAE):
            self.difficulty = np.zeros(len(data), np.float32)
            self.difficulty[graphs] = difficulty(scorer, chunks(data, graphs, self.device)).numpy()
            self._guests["scorer"] = None
        if (teacher := self._guests["teacher"]) is not None and self._config["use_teacher_cache"]:
            kept = KeptOutputs(teacher, data, self.device)
            # The size of a micro-batch, so that this takes no more memory than a training step.
            size = min(CHUNK, int(self._config["batch_size"]) // int(self._config.get(ACCUMULATION, 1)))
            for batch in chunks(data, graphs[:size] if rehearsal else graphs, self.device, size):
                kept.put(batch, outputs(teacher, batch, self._passes))
            self.kept, self._guests["teacher"] = kept, None

    def loss(self, batch: Batch) -> Tensor:
        """The student's loss of a batch, a scalar."""
        targets = self._targets(batch)  # first, so that the teacher's memory is freed before the student runs
        output = self.student(batch)
        if targets is None:
            return gat_loss(output, batch) if isinstance(output, Tensor) else vgae_loss(output, batch)
        weight = float(self._config["kd_weight"])
        if isinstance(output, Tensor):
            temperature = float(self._config["temperature"])
            return distilled_gat_loss(output, batch, targets[0], weight=weight, temperature=temperature)
        assert self.projection is not None
        return distilled_vgae_loss(output, batch, targets[0], targets[1], self.projection, weight=weight)

    def _targets(self, batch: Batch) -> tuple[Tensor, ...] | None:
        """The teacher's cached or computed outputs for a batch; None without a teacher."""
        if self.kept is not None:
            return self.kept.get(batch)
        if (teacher := self._guests["teacher"]) is None:
            return None
        with torch.no_grad():
            return outputs(teacher, batch, self._passes)


def build(config: Config, data: CanData) -> Distilled:
    """A new model for a configuration, with its teacher and its scorer.

    A teacher or scorer that has not been trained yet gets new weights and the default size.
    """
    num_ids = len(data.identifiers) + 1
    teacher = _guest(config, "teacher_path", str(config["stage"]), num_ids) if config["use_kd"] else None
    scorer = _guest(config, "scorer_path", "autoencoder", num_ids) if config["curriculum"] else None
    assert scorer is None or isinstance(scorer, VGAE)
    return Distilled(student(config, num_ids), config, teacher, scorer)


def restore(config: Config, weights: Mapping[str, Tensor]) -> VGAE | GAT:
    """The VGAE or GAT with these weights."""
    state = _own(weights)
    model = student(config, _num_ids(config, state))
    model.load_state_dict(state)
    return model


def student(config: Config, num_ids: int) -> VGAE | GAT:
    """A new VGAE or GAT of a configuration's sizes; ``num_ids`` counts the entry for unknown IDs."""
    hidden, heads = int(config["hidden_channels"]), int(config["heads"])
    dropout, use_id = float(config["dropout"]), bool(config["use_id"])
    if config["stage"] == "autoencoder":
        latent = int(config["latent_channels"])
        return VGAE(
            num_ids, hidden_channels=hidden, latent_channels=latent, heads=heads, dropout=dropout, use_id=use_id
        )
    layers = int(config["num_layers"])
    return GAT(num_ids, hidden_channels=hidden, num_layers=layers, heads=heads, dropout=dropout, use_id=use_id)


def load_teacher(path: str, stage: str, num_ids: int) -> tuple[Config, VGAE | GAT]:
    """The configuration and the frozen model of a study's ``best.pt``. The weights are mapped from the file.

    ``num_ids`` is the size of the data's vocabulary with the entry for unknown IDs. Raises ``InputError`` if the file
    is missing or damaged, or has another stage or shape.
    """
    try:
        content = _content(path, Path(path).stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}): {ANOTHER}") from error
    config = content["config"]
    if config["stage"] != stage:
        raise InputError(f"it is of stage {config['stage']}, and {stage} is needed: give another")
    weights = _own(content["weights"])
    trained_ids = _num_ids(config, weights)
    if config["use_id"] and trained_ids != num_ids:
        raise InputError(
            f"its shape does not fit: it knows {trained_ids - 1} CAN IDs, and the data have {num_ids - 1}: train one "
            "on these data, or leave it out"
        )
    model = student(config, num_ids)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        line = one_line(error, 120)
        raise InputError(f"its weights do not fit its own configuration ({line}): it is damaged") from error
    return config, model.requires_grad_(False).eval()


def _guest(config: Config, key: str, stage: str, num_ids: int) -> VGAE | GAT:
    if config[key]:
        return load_teacher(str(config[key]), stage, num_ids)[1]
    usual = {**config, **SIZES[stage, "teacher"], "stage": stage}
    return student(usual, num_ids).requires_grad_(False).eval()


def _own(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The student's weights."""
    return {key.removeprefix(STUDENT): value for key, value in weights.items() if key.startswith(STUDENT)}


def _num_ids(config: Config, weights: Mapping[str, Tensor]) -> int:
    """The size of a model's vocabulary with the entry for unknown IDs; 1 for a model without IDs."""
    return len(weights["input.embedding.weight"]) if config["use_id"] else 1


@cache  # unbounded, since files are only mapped; while a step is traced, a file cannot be loaded again
def _content(path: str, modified: int) -> Saved:
    """The content of a ``best.pt``, mapped from the file."""
    try:
        if not Path(path).is_file():  # a pipe would be read for ever
            raise OSError("it is not a file")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if content["workload"] != "kd-gat":
            raise InputError(f"it is of workload {content['workload']}: {ANOTHER}")
        if not {"config", "weights"} <= content.keys():
            raise KeyError("config")
    except InputError:
        raise
    except Exception as error:  # torch raises many types for files that are not its own
        raise InputError(f"not a best.pt ({type(error).__name__}): {ANOTHER}") from error
    return cast(Saved, dict(content))
