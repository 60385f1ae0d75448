"""How good a VGAE or a GAT of KD-GAT is, on some graphs, a chunk of them at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tuner.datasets.can import CanData
from tuner.workloads.can_batches import CanBatch, collate
from tuner.workloads.can_models import GAT, VGAE
from tuner.workloads.distillation import score, vgae_loss
from tuner.workloads.kd_gat import CHUNK
from tuner.workloads.kd_gat_data import tested, usable
from tuner.workloads.kd_gat_model import Distilled


def evaluate(model: Distilled, data: CanData, split: str) -> dict[str, float]:
    """The metrics of a split, by names without its prefix.

    Args:
        model: in evaluation mode.
        data: all graphs.
        split: "validation" or "test".
    """
    stage, held_out = model.stage, model.held_out
    if split == "test":
        graphs = tested(data, stage=stage, held_out=held_out)
    else:
        graphs = usable(data, getattr(data, split), stage=stage, held_out=held_out)
    if isinstance(model.student, GAT):
        logits = torch.cat([model.student(batch) for batch in chunks(data, graphs, model.device)])
        return of_classifier(logits, torch.from_numpy(data.label[graphs].astype(np.int64)).to(logits.device))
    found = {"loss": _vgae_loss(model.student, data, graphs, model.device)}
    if split == "test" and data.label[data.test].any():
        everything = tested(data, stage="classifier", held_out=held_out)
        scores = score(model.student, chunks(data, everything, model.device))
        found["auroc"] = auroc(scores, torch.from_numpy(data.label[everything].astype(np.int64)))
    return found


def chunks(data: CanData, graphs: NDArray[np.int64], device: torch.device | str) -> Iterator[CanBatch]:
    """The graphs in their order, ``CHUNK`` at a time, on the device."""
    for begin in range(0, len(graphs), CHUNK):
        batch = collate(data, graphs[begin : begin + CHUNK])
        yield CanBatch(*(part.to(device) for part in batch))


def of_classifier(logits: Tensor, label: Tensor) -> dict[str, float]:
    """Cross entropy, and how well the class of attacks is told: F1, precision and recall are 0 where none is found.

    Args:
        logits: (G, 2).
        label: (G,) int64: 1 for an attack.
    """
    said = logits.argmax(1)
    true, positive = (said & label).sum(), said.sum()
    wrong = positive - true + (label.sum() - true)
    return {
        "loss": float(F.cross_entropy(logits, label)),
        "f1": float(2 * true / (2 * true + wrong).clamp(min=1)),
        "precision": float(true / positive.clamp(min=1)),
        "recall": float(true / label.sum().clamp(min=1)),
        "accuracy": float((said == label).float().mean()),
    }


def auroc(score: Tensor, label: Tensor) -> float:
    """The share of pairs of an attack and a normal graph in which the attack has the higher score; ties count half.

    Args:
        score: (G,).
        label: (G,) int64: 1 for an attack; there is one of each.
    """
    values, place = score.double().unique(return_inverse=True)
    count = torch.zeros(len(values), 2, dtype=torch.double)
    count.index_put_((place, label), torch.ones(len(label), dtype=torch.double), accumulate=True)
    below = count[:, 0].cumsum(0) - count[:, 0]
    pairs = (count[:, 1] * (below + 0.5 * count[:, 0])).sum()
    return float(pairs / (count[:, 0].sum() * count[:, 1].sum()))


def _vgae_loss(model: VGAE, data: CanData, graphs: NDArray[np.int64], device: torch.device) -> float:
    """The mean over graphs."""
    total = torch.zeros((), device=device)
    for batch in chunks(data, graphs, device):
        total += vgae_loss(model(batch), batch) * len(batch.graph)
    return float(total / len(graphs))
