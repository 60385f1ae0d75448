"""The metrics of a pretrained encoder: its losses on held-out trees, and a linear probe of its embeddings.

The probe is the cross-validated accuracy of a linear classifier on frozen embeddings.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool, global_mean_pool

from tuner.datasets.trees import TreeData
from tuner.workloads.gt_ssl.batches import Limits, batches
from tuner.workloads.gt_ssl.model import Encoder, GtSsl

Labels = NDArray[np.integer]
FOLDS = 10
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-4, 9))  # candidates of the penalty
Readout = Literal["moments", "sum"]


def moments(h: Tensor, batch: Tensor) -> Tensor:
    """The mean and the standard deviation over a tree's nodes: (N, H) → (B, 2H)."""
    mean = global_mean_pool(h, batch)
    variance = global_mean_pool((h - mean[batch]).square(), batch)
    return torch.cat([mean, variance.sqrt()], dim=1)


READOUTS: dict[Readout, Callable[[Tensor, Tensor], Tensor]] = {"moments": moments, "sum": global_add_pool}


def losses(model: GtSsl, data: TreeData, trees: Sequence[int], batch_trees: int, negatives: int) -> dict[str, float]:
    """The mean losses over some trees, with all their paths and the same pairs in every call."""
    growth, order = (torch.zeros((), device=_device(model)) for _ in range(2))
    for batch in _all_paths(model, data, trees, batch_trees, negatives):
        parts = model(batch)
        growth, order = growth + parts[0] * batch.num_graphs, order + parts[1] * batch.num_graphs
    growth, order = growth / len(trees), order / len(trees)
    named = {"loss": model.total(growth, order), "growth_loss": growth, "order_loss": order}
    return {name: float(value) for name, value in named.items()}


def embed(encoder: Encoder, data: TreeData, batch_trees: int, readout: Readout = "moments") -> Tensor:
    """The embeddings of all trees, on the CPU, computed for ``batch_trees`` trees at a time.

    The readout is "moments", mean and standard deviation over a tree's nodes, (T, 2H), or SGMP's "sum", (T, H), which
    mainly reflects a tree's size.
    """
    batches_of_all = _all_paths(encoder, data, range(len(data)), batch_trees, 0)
    return torch.cat([READOUTS[readout](encoder.embed(batch).cpu(), batch.batch.cpu()) for batch in batches_of_all])


def probe(encoder: Encoder, data: TreeData, batch_trees: int) -> dict[str, float]:
    """``probe_accuracy`` of a linear classifier of the trees' labels; empty if there is nothing to classify."""
    accuracy = probe_accuracy(embed(encoder, data, batch_trees), data.label)
    return {} if accuracy is None else {"probe_accuracy": float(accuracy)}


def _all_paths(
    module: torch.nn.Module, data: TreeData, trees: Sequence[int], batch_trees: int, negatives: int
) -> Iterator[Batch]:
    limits = Limits(batch_trees, sys.maxsize, 0, negatives)
    for batch in batches(data, trees, limits, np.random.default_rng(0)):
        yield batch.to(_device(module))


def _device(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device


def probe_accuracy(embeddings: Tensor, labels: Labels, seed: int = 0) -> Tensor | None:
    """The accuracy of ridge classification (least squares on ±1 targets of each class), 10-fold cross-validated.

    Embeddings are (T, H), labels (T,) integers. The folds are stratified. On a fold's training part, features are
    scaled to variance 1 and the penalty is chosen by leave-one-out error. The result is a scalar from 0 to 1; None if
    fewer than two classes have two samples.
    """
    counts = np.bincount(labels)
    if np.sum(counts >= 2) < 2:
        return None
    x = embeddings.double()
    truth = torch.from_numpy(labels.astype(np.int64))
    targets = 2 * F.one_hot(truth, len(counts)).double() - 1
    folds = _folds(labels, min(FOLDS, int(counts.max())), seed)
    right = torch.zeros((), dtype=torch.float64)
    for fold in range(folds.max() + 1):
        train, held = (torch.from_numpy(np.flatnonzero(part)) for part in (folds != fold, folds == fold))
        predicted = ridge(x[train], targets[train], x[held])
        right += (predicted.argmax(1) == truth[held]).sum()
    return right / len(labels)


def ridge(x: Tensor, targets: Tensor, held: Tensor) -> Tensor:
    """Ridge regression with the penalty of the lowest leave-one-out error, by one singular value decomposition.

    It is fitted to x (n, H) and targets (n, C) and predicts (m, C) for ``held`` (m, H).
    """
    mean, scale = x.mean(0), x.std(0)
    scale = torch.where(scale < 1e-9, 1.0, scale)
    x, held, center = (x - mean) / scale, (held - mean) / scale, targets.mean(0)
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    projected = u.T @ (targets - center)
    strengths = torch.tensor(STRENGTHS, dtype=x.dtype)
    shrink = s.square() / (s.square() + strengths[:, None])  # (strengths, rank)
    leverage = shrink @ u.square().T + 1 / len(x)  # (strengths, n)
    residual = targets - center - u @ (shrink[:, :, None] * projected)  # (strengths, n, C)
    errors = (residual / (1 - leverage[:, :, None]).clamp(min=1e-9)).square().sum((1, 2))
    best = strengths.index_select(0, errors.argmin(0, keepdim=True))
    predicted: Tensor = held @ (vt.T @ ((s / (s.square() + best))[:, None] * projected)) + center
    return predicted


def _folds(labels: Labels, count: int, seed: int) -> NDArray[np.int64]:
    """A fold for each sample. The classes, in random order, are distributed over the folds one after another."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    _, first, number = np.unique(labels[shuffled], return_index=True, return_inverse=True)
    fold = np.empty(len(labels), dtype=np.int64)
    fold[shuffled[np.argsort(first[number], kind="stable")]] = np.arange(len(labels)) % count
    return fold
