"""The metrics of KD-GAT's VGAE and GAT."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import global_max_pool

from tuner.datasets.can import CanData
from tuner.workloads.base import Split
from tuner.workloads.kd_gat import CHUNK
from tuner.workloads.kd_gat.batches import chunks
from tuner.workloads.kd_gat.distillation import vgae_loss
from tuner.workloads.kd_gat.graphs import Index, graphs_of
from tuner.workloads.kd_gat.model import Distilled
from tuner.workloads.kd_gat.networks import GAT, VGAE
from tuner.workloads.micro_batches import chunk_size


def evaluate(model: Distilled, data: CanData, split: Split, parts: int = 1) -> dict[str, float]:
    """The metrics of a split by name without its prefix. The model must be in evaluation mode.

    Each chunk of ``CHUNK`` graphs is computed in this number of ``parts``.
    """
    graphs = graphs_of(data, split, stage=model.stage, held_out=model.held_out)
    if isinstance(model.student, GAT):
        logits = torch.cat([model.student(batch) for batch in _chunks(model, data, graphs, parts)])
        label = _labels(data, graphs).to(logits.device)
        metrics = {"loss": float(F.cross_entropy(logits, label)), **attack_metrics(logits.argmax(1), label)}
        return {**metrics, **_auroc((logits[:, 1] - logits[:, 0]).cpu(), label.cpu())}
    total = torch.zeros((), device=model.device)
    for batch in _chunks(model, data, graphs, parts):
        total += vgae_loss(model.student(batch), batch) * batch.num_graphs
    loss = {"loss": float(total / len(graphs))}
    return {**loss, **_detection(model, data, parts)} if split == "test" else loss


def attack_metrics(predicted: Tensor, label: Tensor) -> dict[str, float]:
    """F1, precision and recall of the class of attacks (0 if none is found), and the accuracy.

    Both arguments are (G,) int64, 1 for an attack.
    """
    true, positive = (predicted & label).sum(), predicted.sum()
    wrong = positive - true + (label.sum() - true)
    return {
        "f1": float(2 * true / (2 * true + wrong).clamp(min=1)),
        "precision": float(true / positive.clamp(min=1)),
        "recall": float(true / label.sum().clamp(min=1)),
        "accuracy": float((predicted == label).float().mean()),
    }


def largest_errors(model: VGAE, batch: Batch) -> Tensor:
    """The largest squared error of each feature among a graph's nodes, (B, 10); with IDs (B, 11), the last CE(id).

    Means would hide a single node that floods the bus, and a feature with small errors.
    """
    output = model(batch)
    error = (output.features - batch.x).square()
    if output.ids is not None:
        error = torch.cat([error, F.cross_entropy(output.ids, batch.ids, reduction="none")[:, None]], dim=1)
    largest: Tensor = global_max_pool(error, batch.batch, batch.num_graphs)
    return largest


def anomalies(model: Distilled, data: CanData, graphs: Index, parts: int = 1) -> tuple[Tensor, Tensor]:
    """An autoencoder's score of each graph, (G,), and the score above which it is an attack, a scalar; on the CPU.

    A score is the graph's largest error of a feature divided by the largest one of the normal training graphs. The
    validation graphs, which are later, show how far normal traffic drifts. The test graphs are later still, so they
    may drift as far again before they count as attacks. Raises ``TypeError`` for a classifier.
    """
    if not isinstance(autoencoder := model.student, VGAE):
        raise TypeError("a classifier has no errors: give an autoencoder")
    trained, later = (
        graphs_of(data, split, stage=model.stage, held_out=model.held_out) for split in ("train", "validation")
    )
    trained_errors, later_errors, seen = (
        torch.cat([largest_errors(autoencoder, batch).cpu() for batch in _chunks(model, data, some, parts)])
        for some in (trained, later, graphs)
    )
    largest = trained_errors.amax(0).clamp(min=1e-12)
    drift = (later_errors / largest).amax().clamp(min=1.0)
    return (seen / largest).amax(1), drift.square()


def _detection(model: Distilled, data: CanData, parts: int) -> dict[str, float]:
    """How well a VGAE, trained without attacks, detects those of the test split; empty if it has none."""
    graphs = graphs_of(data, "test", stage="classifier", held_out=model.held_out)
    label = _labels(data, graphs)
    if not label.any() or label.all():
        return {}
    score, bar = anomalies(model, data, graphs, parts)
    return {**attack_metrics((score > bar).long(), label), **_auroc(score, label)}


def _chunks(model: Distilled, data: CanData, graphs: Index, parts: int) -> Iterator[Batch]:
    return chunks(data, graphs, model.device, chunk_size(CHUNK, len(graphs), parts))


def _labels(data: CanData, graphs: Index) -> Tensor:
    return torch.from_numpy(data.label[graphs].astype(np.int64))


def _auroc(score: Tensor, label: Tensor) -> dict[str, float]:
    """``auroc`` by its name; empty unless both classes are present."""
    return {"auroc": auroc(score.numpy(), label.numpy())} if label.any() and not label.all() else {}


def auroc(score: NDArray[np.floating], label: NDArray[np.integer]) -> float:
    """The share of pairs of an attack and a normal graph in which the attack has the higher score; ties count half.

    Labels are 1 for an attack. Both classes must be present.
    """
    ranks, attacks = pd.Series(score).rank().to_numpy(), int(label.sum())
    pairs = ranks[label == 1].sum() - attacks * (attacks + 1) / 2
    return float(pairs / (attacks * (len(label) - attacks)))
