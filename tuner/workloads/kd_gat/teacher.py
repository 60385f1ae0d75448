"""A teacher's outputs for a student of KD-GAT, computed for parts of a batch, or once and cached."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from tuner.datasets.can import CanData
from tuner.workloads.kd_gat.attention import GraphAttention
from tuner.workloads.kd_gat.batches import parts
from tuner.workloads.kd_gat.networks import GAT, NUM_FEATURES, VGAE


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
