"""Which graphs a classifier trains on as it gets better: all attacks, and normal ones above a bar that rises."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FIRST_PERCENTILE, LAST_PERCENTILE = 75.0, 95.0
FIRST_RATIO, LAST_RATIO = 1.0, 10.0


def select(
    graphs: NDArray[np.int64], label: NDArray[np.int8], difficulty: NDArray[np.float32], progress: float
) -> NDArray[np.int64]:
    """The graphs of one epoch, after the KD-GAT pipeline.

    At progress r: normal graphs whose difficulty reaches percentile 75 + 20 r of the normal ones, the hardest
    (1 + 9 r) · #attacks of them; and all attacks.

    Args:
        graphs: indices of the training graphs.
        label: (G,) of all graphs: 1 for an attack.
        difficulty: (G,) of all graphs.
        progress: r, from 0 in the first epoch to 1 in the last.

    Returns:
        Indices of graphs, in the order of ``graphs``.
    """
    attacks = label[graphs] == 1
    normal = graphs[~attacks]
    scores = difficulty[normal]
    bar = np.percentile(scores, FIRST_PERCENTILE + (LAST_PERCENTILE - FIRST_PERCENTILE) * progress)
    most = round((FIRST_RATIO + (LAST_RATIO - FIRST_RATIO) * progress) * int(attacks.sum()))
    hardest = np.argsort(-scores, kind="stable")[: max(1, most)]
    chosen = normal[hardest[scores[hardest] >= bar]]
    selected: NDArray[np.int64] = graphs[attacks | np.isin(graphs, chosen)]
    return selected
