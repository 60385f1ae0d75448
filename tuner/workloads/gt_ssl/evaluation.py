"""Figures of a pretrained encoder: its losses on held-out trees, and a linear probe of its embeddings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tuner.datasets.trees import TreeData
from tuner.workloads.gt_ssl.batches import Limits, batches
from tuner.workloads.gt_ssl.model import Encoder, GtSsl, TreeBatch
from tuner.workloads.gt_ssl.probe import probe_accuracy

Readout = Literal["moments", "sum"]
READOUTS: dict[Readout, Callable[[Tensor], Tensor]] = {
    "moments": lambda h: torch.cat([h.mean(0), h.std(0, correction=0)]),
    "sum": lambda h: h.sum(0),
}


def losses(model: GtSsl, data: TreeData, trees: Sequence[int], batch_trees: int, negatives: int) -> dict[str, float]:
    """Mean losses over some trees, with all their paths and the same pairs every time."""
    growth, order = (torch.zeros((), device=_device(model)) for _ in range(2))
    for batch in _all_paths(model, data, trees, batch_trees, negatives):
        parts = model(batch)
        growth, order = growth + parts[0] * len(batch.graph), order + parts[1] * len(batch.graph)
    growth, order = growth / len(trees), order / len(trees)
    named = {"loss": model.total(growth, order), "growth_loss": growth, "order_loss": order}
    return {name: float(value) for name, value in named.items()}


def embed(encoder: Encoder, data: TreeData, batch_trees: int, readout: Readout = "moments") -> Tensor:
    """Every tree's embedding, on the CPU.

    Args:
        encoder: any.
        data: T trees.
        batch_trees: so many at a time.
        readout: "moments", mean and standard deviation over a tree's nodes, (T, 2H); or "sum", SGMP's own, (T, H),
            which tells of a tree's size before anything else.
    """
    rows: list[Tensor] = []
    for batch in _all_paths(encoder, data, range(len(data)), batch_trees, 0):
        h = encoder(batch.features, batch.position, batch.path, batch.weight).cpu()
        sizes = np.diff(data.first[len(rows) : len(rows) + len(batch.graph) + 1])
        rows += [READOUTS[readout](part) for part in h.split(sizes.tolist())]
    return torch.stack(rows)


def probe(encoder: Encoder, data: TreeData, batch_trees: int) -> dict[str, float]:
    """``probe_accuracy`` of a linear classifier of the trees' labels; empty where there is nothing to classify."""
    accuracy = probe_accuracy(embed(encoder, data, batch_trees), data.label)
    return {} if accuracy is None else {"probe_accuracy": float(accuracy)}


def _all_paths(
    module: torch.nn.Module, data: TreeData, trees: Sequence[int], batch_trees: int, negatives: int
) -> Iterator[TreeBatch]:
    limits = Limits(batch_trees, sys.maxsize, 0, negatives)
    for batch in batches(data, trees, limits, np.random.default_rng(0)):
        yield TreeBatch(*(part.to(_device(module)) for part in batch))


def _device(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device
