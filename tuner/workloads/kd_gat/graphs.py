"""Selects the training, validation and test graphs of a configuration of KD-GAT."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can import CanData

Index = NDArray[np.int64]
FIRST_PERCENTILE, LAST_PERCENTILE = 75.0, 95.0
FIRST_RATIO, LAST_RATIO = 1.0, 10.0


def usable(data: CanData, graphs: Index, *, stage: str, held_out: str = "") -> Index:
    """The given graphs that can be used for training or validation, in their order.

    An autoencoder uses only normal graphs. No model uses the kind of attack that is ``held_out``.
    """
    keep = data.label[graphs] == 0 if stage == "autoencoder" else np.ones(len(graphs), bool)
    if held_out:
        keep &= data.attack[graphs] != data.attacks.index(held_out)
    kept: Index = graphs[keep]
    return kept


def graphs_of(data: CanData, split: str, *, stage: str, held_out: str = "") -> Index:
    """The graphs of a split that a stage uses."""
    if split == "test":
        return tested(data, stage=stage, held_out=held_out)
    return usable(data, getattr(data, split), stage=stage, held_out=held_out)


def tested(data: CanData, *, stage: str, held_out: str = "") -> Index:
    """The test graphs: normal ones, and for a classifier all attacks, or only the kind that was held out."""
    if not held_out or stage == "autoencoder":
        return usable(data, data.test, stage=stage)
    kind = data.attack[data.test]
    chosen: Index = data.test[(kind == 0) | (kind == data.attacks.index(held_out))]
    return chosen


def select(graphs: Index, label: NDArray[np.int8], difficulty: NDArray[np.float32], progress: float) -> Index:
    """The graphs of one epoch of a curriculum, as in the KD-GAT pipeline, in their order.

    At progress r, from 0 in the first epoch to 1 in the last, these are all attacks, and of the normal graphs the
    hardest (1 + 9 r) · #attacks whose difficulty is at or above percentile 75 + 20 r. ``graphs`` are indices;
    ``label`` and ``difficulty`` belong to all graphs.
    """
    attacks = label[graphs] == 1
    normal = graphs[~attacks]
    scores = difficulty[normal]
    bar = np.percentile(scores, FIRST_PERCENTILE + (LAST_PERCENTILE - FIRST_PERCENTILE) * progress)
    most = round((FIRST_RATIO + (LAST_RATIO - FIRST_RATIO) * progress) * int(attacks.sum()))
    hardest = np.argsort(-scores, kind="stable")[: max(1, most)]
    chosen = normal[hardest[scores[hardest] >= bar]]
    selected: Index = graphs[attacks | np.isin(graphs, chosen)]
    return selected


def largest(data: CanData, graphs: Index, number: int) -> Index:
    """The ``number`` graphs with the most edges and nodes, the largest first."""
    size = np.diff(data.first_edge)[graphs] + np.diff(data.first)[graphs]
    chosen: Index = graphs[np.argsort(-size, kind="stable")[:number]]
    return chosen
