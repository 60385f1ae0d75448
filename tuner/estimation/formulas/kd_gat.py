"""The closed formula for KD-GAT: the layers of student and teacher, in 4-byte numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tuner.estimation.formulas.footprint import FLOAT_BYTES, footprint
from tuner.trial import CHECKPOINTING, MemoryEstimate
from tuner.workloads.kd_gat.sizes import CHUNK, FEATURES, ID_CHANNELS, PART, SIZES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tuner.datasets.can import CanData
    from tuner.trial import Config

INPUT = (ID_CHANNELS, FEATURES)  # a node's input channels: the embedded ID and the data's features
SCORES = 10  # numbers per edge and head beside the messages: gathered values, scores, their softmax, gradients


class Graphs(NamedTuple):
    """The largest totals of a number of graphs."""

    nodes: int
    edges: int


def estimate_kd_gat(config: Config, data: CanData) -> MemoryEstimate:
    """The estimate of one configuration.

    - Student, and its projection onto a teacher's latent channels: parameters, gradients, Adam's two moments and the
      copy of the best weights.
    - Teacher and scorer: parameters. They always count, although they may be offloaded or dropped after preparation.
    - Cached outputs (``use_teacher_cache``): two logits per training graph, or the teacher's latent channels and 10
      features per node.
    - Activations: the maximum of a training step (``_trained``), of the evaluation's and the scorer's chunks of 500
      graphs (``_computed``), and of a teacher's forward pass on a part of the batch (with a cache, 500 graphs).
    """
    from tuner.workloads.kd_gat.graphs import usable

    ids = len(data.identifiers) + 1
    train = usable(data, data.train, stage=str(config["stage"]), held_out=str(config["held_out"]))
    batch, prepared = _most(data, train, int(config["batch_size"])), _most(data, train, CHUNK)
    chunk = _larger(_most(data, part, CHUNK) for part in (data.validation, data.test))
    chunk = chunk if config["stage"] == "classifier" else _larger([chunk, prepared])  # its test uses these again
    teacher, scorer = _guests(config, ids)
    own = parameters(config, ids)
    if teacher and config["stage"] == "autoencoder":
        own += (int(config["latent_channels"]) + 1) * int(teacher["latent_channels"])
    peaks = [_trained(config, batch, ids), _computed(config, chunk, ids)]
    rows = _kept(teacher, data) if teacher and config["use_teacher_cache"] else 0
    if teacher:
        graphs = min(int(config["batch_size"]), len(train), CHUNK if config["use_teacher_cache"] else len(train))
        peaks.append(_computed(teacher, _most(data, train, -(-graphs // _times_as_wide(teacher, config))), ids))
    if scorer:
        peaks.append(_computed(scorer, prepared, ids))
    frozen = sum(parameters(each, ids) for each in (teacher, scorer) if each)
    errors = 2 * 11 * len(data) if config["stage"] == "autoencoder" else 0  # the largest errors of each graph
    held = own + rows + errors + 14 * max(batch.nodes, chunk.nodes) + 5 * max(batch.edges, chunk.edges)
    return footprint(
        FLOAT_BYTES * own, FLOAT_BYTES * max(peaks), FLOAT_BYTES * held, frozen_bytes=FLOAT_BYTES * frozen
    )


def parameters(config: Config, ids: int) -> int:
    """The number of a VGAE's or GAT's parameters, with the norms' running means and variances.

    An attention layer has a matrix, two score vectors, a bias, and one number per head for the edges.
    """
    pairs, heads = _layers(config), int(config["heads"])
    total = ID_CHANNELS * (ids if config["use_id"] else 1)
    total += sum(before * after + 3 * after + heads for before, after in pairs)
    if config["stage"] == "classifier":
        return int(total + 2 * sum(after for _, after in pairs) + 2)
    hidden, latent = int(config["hidden_channels"]), int(config["latent_channels"])
    total += 4 * (3 * hidden + latent) + 2 * latent * (latent + 1)
    if config["use_id"]:
        total += (latent + 1) * (ids + hidden // 2) + (hidden // 2 + 1) * ids
    return int(total)


def _layers(config: Config) -> list[tuple[int, int]]:
    """The channels before and after each attention layer."""
    hidden, first = int(config["hidden_channels"]), sum(INPUT)
    if config["stage"] == "classifier":
        return list(pairwise([first, *[hidden * int(config["heads"])] * int(config["num_layers"])]))
    half, latent = hidden // 2, int(config["latent_channels"])
    return [*pairwise([first, hidden, half, latent]), *pairwise([latent, half, hidden, FEATURES])]


def _trained(config: Config, graphs: Graphs, ids: int) -> int:
    """The numbers that a training step keeps for the backward pass, and that the backward pass works with.

    A GAT's layer keeps 3 rows: its values, dropout's mask and ReLU's result. A VGAE's keeps 5 because of its norm.
    Without dropout each keeps one less. With gradient checkpointing a layer keeps its input (a VGAE's the norm's
    input, too), and one layer exists completely. The backward pass takes 3 rows of the widest layer. A VGAE also has
    logits of IDs and neighbours with their targets, losses and gradients. bfloat16 saves at least a fifth.
    """
    pairs, vgae = _layers(config), config["stage"] == "autoencoder"
    widths, again = [after for _, after in pairs], config.get(CHECKPOINTING, 0)
    whole, kept = (5, 2) if vgae else (3, 1)
    whole -= 0 if config["dropout"] else 1
    rows = kept * sum(widths) + (whole + 1) * max(widths) if again else whole * sum(widths)
    rows += 3 * max(widths) + (_heads(config, ids, losses=9) if vgae else 0)
    rows = rows * 4 // 5 if config.get("amp") else rows
    return int(graphs.nodes * rows + _around(config, graphs, 1 if again else len(pairs), copies=2))


def _computed(config: Config, graphs: Graphs, ids: int) -> int:
    """The numbers of a forward pass without gradients: one layer's input and three rows of its width."""
    before = 2 if config["stage"] == "autoencoder" else 1  # ReLU's result is beside it
    rows = max(before * one + 3 * other for one, other in _layers(config))
    rows += _heads(config, ids, losses=6) if config["stage"] == "autoencoder" else 0
    return int(graphs.nodes * rows + _around(config, graphs, 1, copies=1))


def _heads(config: Config, ids: int, *, losses: int) -> int:
    """The numbers per node in a VGAE's latent variables and heads; a head has a number for each ID."""
    latent, half = int(config["latent_channels"]), int(config["hidden_channels"]) // 2
    return int(10 * latent + 6 * FEATURES + (losses * ids + 3 * half if config["use_id"] else 0))


def _around(config: Config, graphs: Graphs, layers: int, *, copies: int) -> int:
    """The numbers that do not grow with nodes times width.

    They are: the nodes' embedded input and its parts; the edges' scores in ``layers`` layers, with their ends and
    feature; the messages of one part of the edges, from the source, to the target, and their product; and ``copies``
    of the largest matrix, as the scores need it in another order.
    """
    pairs = _layers(config)
    edges = graphs.edges * (SCORES * int(config["heads"]) * layers + SCORES)
    messages = 3 * min(graphs.edges, PART) * max(after for _, after in pairs)
    return int(
        2 * graphs.nodes * sum(INPUT) + edges + messages + copies * max(before * after for before, after in pairs)
    )


def _guests(config: Config, ids: int) -> tuple[Config | None, Config | None]:
    """The configurations of the teacher and the scorer, or None."""
    teacher = _guest(config, "teacher_path", str(config["stage"]), ids) if config["use_kd"] else None
    scorer = _guest(config, "scorer_path", "autoencoder", ids) if config["curriculum"] else None
    return teacher, scorer


def _guest(config: Config, key: str, stage: str, ids: int) -> Config:
    """The configuration in the file, which ``check`` has read, or that of the default teacher, not trained yet."""
    if not config[key]:
        return {**config, **SIZES[stage, "teacher"], "stage": stage}
    from tuner.workloads.kd_gat.model import load_teacher

    return load_teacher(str(config[key]), stage, ids)[0]


def _times_as_wide(teacher: Config, config: Config) -> int:
    """The number of parts that a teacher splits a batch into, as in ``kd_gat.teacher.width_ratio``."""
    of_teacher, of_student = (sum(after for _, after in _layers(each)) for each in (teacher, config))
    return -(-of_teacher // of_student)


def _kept(teacher: Config, data: CanData) -> int:
    """The numbers of a teacher's cached outputs, with two for each graph's position."""
    if teacher["stage"] == "classifier":
        return 2 * len(data.train) + 2 * len(data)
    nodes = int((data.first[data.train + 1] - data.first[data.train]).sum())
    return int(nodes * (int(teacher["latent_channels"]) + FEATURES) + 2 * len(data))


def _most(data: CanData, graphs: NDArray[np.int64], count: int) -> Graphs:
    """The nodes of the ``count`` graphs with the most nodes, and the edges of those with the most edges."""
    import numpy as np

    totals = []
    for first in (data.first, data.first_edge):
        sizes = first[graphs + 1] - first[graphs]
        smaller = len(sizes) - count
        totals.append(int((np.partition(sizes, smaller)[smaller:] if smaller > 0 else sizes).sum()))
    return Graphs(*totals)


def _larger(several: Iterable[Graphs]) -> Graphs:
    return Graphs(*(max(each) for each in zip(*several, strict=True)))
