"""Which graphs a configuration of KD-GAT trains on, chooses by and is tested on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can import CanData

Index = NDArray[np.int64]
FIRST_PERCENTILE, LAST_PERCENTILE = 75.0, 95.0
FIRST_RATIO, LAST_RATIO = 1.0, 10.0


def usable(data: CanData, graphs: Index, *, stage: str, held_out: str = "") -> Index:
    """Those of some graphs that are for training or validation, in their order.

    An autoencoder uses normal graphs only, and no model uses the kind of attack that is ``held_out``.
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
    """The test's graphs: normal ones, and for a classifier attacks; only the kind that was held out, if one was."""
    if not held_out or stage == "autoencoder":
        return usable(data, data.test, stage=stage)
    kind = data.attack[data.test]
    chosen: Index = data.test[(kind == 0) | (kind == data.attacks.index(held_out))]
    return chosen


def select(graphs: Index, label: NDArray[np.int8], difficulty: NDArray[np.float32], progress: float) -> Index:
    """The graphs of one epoch of a curriculum, after the KD-GAT pipeline, in their order.

    At progress r, from 0 in the first epoch to 1 in the last: all attacks; and the normal graphs whose difficulty
    reaches percentile 75 + 20 r of the normal ones, the hardest (1 + 9 r) · #attacks of them. ``graphs`` are indices,
    ``label`` and ``difficulty`` are of all graphs.
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
    """The graphs with the most edges and nodes, so many of them, the largest first."""
    size = np.diff(data.first_edge)[graphs] + np.diff(data.first)[graphs]
    chosen: Index = graphs[np.argsort(-size, kind="stable")[:number]]
    return chosen
