"""The closed formula for GT-SSL: the rows of numbers that each path of a batch has in every layer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tuner.estimation.formulas.footprint import FLOAT_BYTES, footprint
from tuner.workloads.gt_ssl.sizes import EVALUATION_PATHS, EVALUATION_TREES

if TYPE_CHECKING:
    from tuner.datasets.trees import TreeData
    from tuner.trial import Config, MemoryEstimate


def estimate_gt_ssl(config: Config, data: TreeData) -> MemoryEstimate:
    """The estimate of one configuration, by the numbers that its largest batch keeps for the backward pass.

    A path keeps 16 rows of H numbers per layer: the message's input of 7, its hidden layers of 4 and 2, and those of
    the three geometry networks. The backward pass of a layer takes 11 more. A node's chain of ancestors counts as a
    path. A pair that is not in order keeps 5 rows. An evaluation keeps only its paths' geometry.
    """
    hidden, layers = int(config["hidden_channels"]), int(config["num_interactions"])
    distance, angle, turn = (int(config[f"num_{name}_centers"]) for name in ("rbf", "angle", "dihedral"))
    basis = 3 * distance + 2 * angle + turn
    layer = 3 * (hidden + hidden * hidden + hidden) + basis * hidden + (7 * 4 + 4 * 2 + 2) * hidden**2 + 7 * hidden
    parameters = FLOAT_BYTES * (layers * layer + 3 * hidden * hidden + (8 + distance) * hidden)
    rows = _most_paths(data, int(config["batch_size"]), int(config["max_paths_per_batch"]))
    pairs = min(int(config["batch_size"]), len(data)) * int(config["n_negatives"])
    trained = rows * ((16 * layers + 11) * hidden + 2 * basis) + pairs * (5 * hidden + 6)
    evaluated = EVALUATION_PATHS * 22 * hidden + _most_paths(data, EVALUATION_TREES) * 3 * basis
    values = max(trained, evaluated)
    return footprint(parameters, FLOAT_BYTES * values, rows * 4 * 8 + pairs * (2 * 8 + FLOAT_BYTES))


def _most_paths(data: TreeData, trees: int, limit: int | None = None) -> int:
    """The paths and chains of the largest trees. A node has at most two chains."""
    paths, nodes = (sorted(int(b - a) for a, b in pairwise(each)) for each in (data.first_path, data.first))
    return min(limit or sum(paths), sum(paths[-trees:])) + 2 * sum(nodes[-trees:])
