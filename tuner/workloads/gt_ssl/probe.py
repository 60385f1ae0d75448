"""What frozen embeddings are worth: cross-validated accuracy of a linear classifier on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

FOLDS = 10
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-4, 9))  # of the penalty


def probe_accuracy(embeddings: Tensor, labels: NDArray[Any], seed: int = 0) -> Tensor | None:
    """Accuracy of ridge classification (least squares on ±1 targets, one for each class), 10-fold cross-validated.

    Features are scaled to variance 1 and the penalty is chosen by leave-one-out error, both on a fold's training part
    alone.

    Args:
        embeddings: (T, H).
        labels: (T,) integers.
        seed: of the folds, which are stratified.

    Returns:
        The share of right predictions, from 0 to 1; None if fewer than two classes have two samples.
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
    """Ridge regression with the penalty of the least leave-one-out error, by one singular value decomposition.

    Args:
        x: (n, H) to fit.
        targets: (n, C).
        held: (m, H) to predict for.

    Returns:
        (m, C).
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


def _folds(labels: NDArray[Any], count: int, seed: int) -> NDArray[np.int64]:
    """A fold for each sample: those of a class are dealt out in random order, one class after the other.

    Which class comes first is random too, and not by their numbers.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    _, first, number = np.unique(labels[shuffled], return_index=True, return_inverse=True)
    fold = np.empty(len(labels), dtype=np.int64)
    fold[shuffled[np.argsort(first[number], kind="stable")]] = np.arange(len(labels)) % count
    return fold
