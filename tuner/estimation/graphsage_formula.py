"""The closed formula of GraphSAGE: a line through the tuning guide's table. It needs no torch and overestimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.trial import GB, Config, MemoryEstimate
from tuner.workloads.graphsage.workload import sampled

if TYPE_CHECKING:
    from tuner.datasets.ratings import RatingData

FLOAT_BYTES = 4
MOVIELENS_NODES = 943 + 1682
# GB at MovieLens-100K: PROCESS + hidden_dim * (PER_CHANNEL + PER_CHANNEL_AND_LAYER * num_layers). Fitted to the
# reference table of the GraphSAGE tuning guide (8 rows from 1.2 to 4.2 GB), and within 15 % of each of them.
PROCESS_GB = 0.85  # a process without its tensors
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


def estimate_graphsage(config: Config, data: RatingData) -> MemoryEstimate:
    """The estimate of one configuration: with Adam, it has the total of ``estimate_model_memory``.

    Parameters, gradients and the optimizer's state are counted. The rest of the total is activations: the edge-wise
    messages of a plain ``SAGEConv``. The decoder adds eight rows of ``hidden_dim`` numbers per rating of a batch.
    With sampled neighbours each node of a layer's input adds twelve such rows, and each sample nine indices.
    """
    hidden, layers = int(config["hidden_dim"]), int(config["num_layers"])
    total = estimate_model_memory(hidden, layers, data.num_users, data.num_items) * GB
    nodes = data.num_users + data.num_items
    parameters = FLOAT_BYTES * hidden * (nodes + layers * (2 * hidden + 1))
    decoder = FLOAT_BYTES * 8 * hidden * int(config["batch_size"])
    activations = max(0, total - PROCESS_GB * GB - 4 * parameters) + decoder
    reached = 2 * int(config["batch_size"])
    for number in sampled(len(data.train), config):
        activations += FLOAT_BYTES * (12 * hidden * reached + 9 * number * reached)
        reached *= number
    moments = (1 if config.get("momentum") else 0) if config.get("optimizer") == "sgd" else 2
    return MemoryEstimate(
        method="static",
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        optimizer_bytes=moments * parameters,
        activation_bytes=int(activations),
        context_bytes=int(PROCESS_GB * GB),
        parameters=parameters // FLOAT_BYTES,
    )


def auto_estimate_memory_from_configs(
    configurations: Sequence[Mapping[str, int]], num_users: int, num_items: int
) -> float:
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
