"""A teacher's outputs for a student of KD-GAT: computed for a share of a batch at a time, or once and kept."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tuner.datasets.can import CanData
from tuner.workloads.kd_gat.attention import GraphAttention
from tuner.workloads.kd_gat.batches import CanBatch, parts
from tuner.workloads.kd_gat.networks import GAT, VGAE
from tuner.workloads.kd_gat.sizes import FEATURES


class KeptOutputs(nn.Module):
    """A teacher's outputs for the training graphs, on the device: a row for each graph, or for each of its nodes.

    They are buffers, which move with the model, and are no part of its state.
    """

    start: Tensor

    def __init__(self, teacher: VGAE | GAT, data: CanData, device: torch.device) -> None:
        """Room for the outputs for ``data.train``."""
        super().__init__()
        self._of_nodes = isinstance(teacher, VGAE)
        sizes = np.diff(data.first)[data.train] if self._of_nodes else np.ones(len(data.train), np.int64)
        start = np.zeros(len(data), np.int64)
        start[data.train] = np.cumsum(sizes) - sizes
        self.register_buffer("start", torch.from_numpy(start).to(device), persistent=False)
        widths = (teacher.mean.out_features, FEATURES) if isinstance(teacher, VGAE) else (2,)
        self._names = [f"rows{place}" for place in range(len(widths))]
        for name, width in zip(self._names, widths, strict=True):
            self.register_buffer(name, torch.zeros(int(sizes.sum()), width, device=device), persistent=False)

    @property
    def nbytes(self) -> int:
        """What they take of the device."""
        return sum(buffer.nbytes for buffer in self.buffers())

    @property
    def rows(self) -> list[Tensor]:
        """One tensor for each of the outputs."""
        return [self.get_buffer(name) for name in self._names]

    def put(self, batch: CanBatch, outputs: tuple[Tensor, ...]) -> None:
        """Keeps the outputs for a batch."""
        place = self._place(batch)
        for rows, values in zip(self.rows, outputs, strict=True):
            rows[place] = values

    def get(self, batch: CanBatch) -> tuple[Tensor, ...]:
        """The outputs for a batch."""
        place = self._place(batch)
        return tuple(rows[place] for rows in self.rows)

    def _place(self, batch: CanBatch) -> Tensor:
        start = self.start[batch.graph]
        if not self._of_nodes:
            return start
        size = torch.zeros_like(batch.graph).index_add(0, batch.node_graph, torch.ones_like(batch.node_graph))
        first = (size.cumsum(0) - size)[batch.node_graph]
        within = torch.arange(len(batch.node_graph), device=first.device) - first
        return start[batch.node_graph] + within


def outputs(teacher: VGAE | GAT, batch: CanBatch, times: int = 1) -> tuple[Tensor, ...]:
    """What a student learns from: a GAT's logits; a VGAE's latent means and reconstruction.

    The teacher, in evaluation mode, looks at the batch in ``times`` shares.
    """
    passes = [teacher(part) for part in parts(batch, times)]
    rows = [(each,) if isinstance(each, Tensor) else (each.mean, each.features) for each in passes]
    return tuple(torch.cat(each) for each in zip(*rows, strict=True))


def width_ratio(teacher: VGAE | GAT, student: VGAE | GAT) -> int:
    """How many times as many channels as the student a teacher has, all layers together; rounded up.

    Looking at all of a batch, a teacher would take more memory than its student's step, and neither keeping its
    outputs nor having its weights elsewhere would save any. If it looks so many times at a share, it takes less.
    """
    of_teacher, of_student = (
        sum(each.linear.out_features for each in model.modules() if isinstance(each, GraphAttention))
        for model in (teacher, student)
    )
    return -(-of_teacher // of_student)
