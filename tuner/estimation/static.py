"""Closed formulas for a workload's footprint: no torch, milliseconds, and on the safe side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from tuner.errors import InputError
from tuner.estimation.kd_gat_formula import estimate_kd_gat
from tuner.trial import GB, MemoryEstimate
from tuner.workloads.gt_ssl.workload import EVALUATION_PATHS, EVALUATION_TREES

FLOAT_BYTES = 4
MOVIELENS_NODES = 943 + 1682
# GB at MovieLens-100K: PROCESS + hidden_dim * (PER_CHANNEL + PER_CHANNEL_AND_LAYER * num_layers). Fitted to the
# reference table of the GraphSAGE tuning guide (8 rows from 1.2 to 4.2 GB), and within 15 % of each of them.
PROCESS_GB = 0.85
PER_CHANNEL_GB = 0.0065
PER_CHANNEL_AND_LAYER_GB = 0.0019


def estimate_model_memory(
    hidden_dim: int = 64, num_layers: int = 2, num_users: int = 1000, num_items: int = 1000
) -> float:
    """GPU memory in GB (2**30 bytes) that one GraphSAGE training process takes: a conservative closed formula.

    At MovieLens-100K's size it follows the guide's reference table; beyond the process's own share it grows in
    proportion to the number of nodes, as embeddings, optimizer state and activations do.

    Args:
        hidden_dim: channels of the embeddings and of every layer.
        num_layers: number of GraphSAGE layers.
        num_users: users in the data set.
        num_items: items in the data set.

    Raises:
        InputError: an argument is not a positive number.
    """
    arguments = {"hidden_dim": hidden_dim, "num_layers": num_layers, "num_users": num_users, "num_items": num_items}
    for name, value in arguments.items():
        if value <= 0:
            raise InputError(f"{name} = {value!r}: must be at least 1")
    per_channel = PER_CHANNEL_GB + PER_CHANNEL_AND_LAYER_GB * num_layers
    return PROCESS_GB + hidden_dim * per_channel * (num_users + num_items) / MOVIELENS_NODES


def estimate_graphsage(config: Mapping[str, Any], data: Any) -> MemoryEstimate:
    """The parts of ``estimate_model_memory`` for one configuration.

    Parameters, gradients and Adam's two moments are counted; the activations are what is left of the formula's
    total, which stands for the edge-wise messages of a plain ``SAGEConv``, plus the decoder's share of batches
    that are larger than the guide's (eight ``hidden_dim``-wide rows for each rating).

    Args:
        config: a complete configuration of the GraphSAGE workload.
        data: its ``RatingData``.
    """
    hidden, layers = config["hidden_dim"], config["num_layers"]
    total = estimate_model_memory(hidden, layers, data.num_users, data.num_items) * GB
    nodes = data.num_users + data.num_items
    parameters = FLOAT_BYTES * hidden * (nodes + layers * (2 * hidden + 1))
    process = PROCESS_GB * GB
    decoder = FLOAT_BYTES * 8 * hidden * config["batch_size"]
    return MemoryEstimate(
        method="static",
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        optimizer_bytes=2 * parameters,
        activation_bytes=int(max(0, total - process - 4 * parameters) + decoder),
        context_bytes=int(process),
    )


def estimate_gt_ssl(config: Mapping[str, Any], data: Any) -> MemoryEstimate:
    """A closed formula for one configuration of the GT-SSL workload: what its largest batch keeps for backward.

    A path keeps 16 rows of H numbers in each layer: the message's input of 7, its hidden layers' 4 and 2, and the
    three geometry networks' hidden layers; the backward pass of one layer takes 11 more. A node's chain of ancestors
    counts as a path, and a pair that is not in order keeps 5 rows. See docs/gt_ssl.md.

    An evaluation keeps nothing but its paths' geometry.

    Args:
        config: a complete configuration.
        data: its ``TreeData``.
    """
    hidden, layers = config["hidden_channels"], config["num_interactions"]
    distance, angle, turn = (config[f"num_{name}_centers"] for name in ("rbf", "angle", "dihedral"))
    basis = 3 * distance + 2 * angle + turn
    layer = 3 * (hidden + hidden * hidden + hidden) + basis * hidden + (7 * 4 + 4 * 2 + 2) * hidden**2 + 7 * hidden
    parameters = FLOAT_BYTES * (layers * layer + 3 * hidden * hidden + (8 + distance) * hidden)
    rows = _most_paths(data, config["batch_size"], config["max_paths_per_batch"])
    pairs = min(config["batch_size"], len(data)) * config["n_negatives"]
    trained = rows * ((16 * layers + 11) * hidden + 2 * basis) + pairs * (5 * hidden + 6)
    evaluated = EVALUATION_PATHS * 22 * hidden + _most_paths(data, EVALUATION_TREES) * 3 * basis
    values = max(trained, evaluated)
    return MemoryEstimate(
        method="static",
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        optimizer_bytes=2 * parameters,
        activation_bytes=FLOAT_BYTES * values,
        data_bytes=rows * 4 * 8 + pairs * (2 * 8 + FLOAT_BYTES),
        context_bytes=int(PROCESS_GB * GB),
    )


def _most_paths(data: Any, trees: int, limit: int | None = None) -> int:
    """Paths and chains of the so many largest trees together: of a tree's nodes each has at most two chains."""
    paths, nodes = (sorted(int(b - a) for a, b in pairwise(each)) for each in (data.first_path, data.first))
    return min(limit or sum(paths), sum(paths[-trees:])) + 2 * sum(nodes[-trees:])


FORMULAS: dict[str, Callable[[Mapping[str, Any], Any], MemoryEstimate]] = {
    "graphsage": estimate_graphsage,
    "gt-ssl": estimate_gt_ssl,
    "kd-gat": partial(estimate_kd_gat, context_bytes=int(PROCESS_GB * GB)),
}


def estimate_static(workload: str, config: Mapping[str, Any], data: Any) -> MemoryEstimate:
    """The closed formula's estimate for one configuration of a built-in workload.

    Raises:
        InputError: there is no formula for this workload.
    """
    if workload not in FORMULAS:
        known = ", ".join(FORMULAS)
        raise InputError(f"no memory formula for workload {workload!r} (known: {known}): give --model-memory-gb")
    return FORMULAS[workload](config, data)


def auto_estimate_memory_from_configs(configurations: list[dict[str, Any]], num_users: int, num_items: int) -> float:
    """The largest footprint among GraphSAGE configurations, in GB: what each of them can be given to run.

    Args:
        configurations: mappings in which ``hidden_dim`` and ``num_layers`` count (64 and 2 where left out).
        num_users: users in the data set.
        num_items: items in the data set.

    Raises:
        InputError: the list is empty, or a value is not a positive number.
    """
    if not configurations:
        raise InputError("configurations: the list is empty; give at least one")
    return max(
        estimate_model_memory(entry.get("hidden_dim", 64), entry.get("num_layers", 2), num_users, num_items)
        for entry in configurations
    )
