"""Steps in several micro-batches, and evaluations in smaller chunks, which take less memory."""

from collections.abc import Iterator
from itertools import islice

from tuner.trial import ACCUMULATION, EVALUATION_PARTS, RANKS, Config, Phase
from tuner.workloads.base import Batch, Trainable, Workload
from tuner.workloads.batches import is_graph
from tuner.workloads.contract import epoch
from tuner.workloads.protocols import OptionalMethods, optional


def divided(config: Config) -> Config:
    """What each rank of a trial works with: a step's micro-batches are those of all ranks, which share them out."""
    ranks = int(config.get(RANKS, 1))
    return {**config, ACCUMULATION: ranks * int(config.get(ACCUMULATION, 1))} if ranks > 1 else config


def halved(workload: Trainable, config: Config) -> Config | None:
    """The same training with micro-batches of half the size; None if they cannot be halved."""
    micro_batches, key = 2 * int(config.get(ACCUMULATION, 1)), workload.memory_scales_with
    if key is None or int(config[key]) % (micro_batches * int(config.get(RANKS, 1))):
        return None
    return {**config, ACCUMULATION: micro_batches}


def smaller(workload: Trainable, config: Config, phase: Phase) -> Config | None:
    """The same training with half of what ran out of memory in this phase; None if that cannot be halved.

    In an evaluation these are its chunks, otherwise the micro-batches.
    """
    if phase != "evaluation":
        return halved(workload, config)
    if optional(workload, OptionalMethods.evaluate_in_parts) is None:
        return None
    return {**config, EVALUATION_PARTS: 2 * int(config.get(EVALUATION_PARTS, 1))}


def micro_batch(workload: Trainable, config: Config) -> Config:
    """The configuration with the micro-batch size as its batch size."""
    key, parts = workload.memory_scales_with, int(config.get(ACCUMULATION, 1))
    return config if key is None or parts == 1 else {**config, key: int(config[key]) // parts}


def chunk_size(most: int, samples: int, parts: int) -> int:
    """The samples in each of the ``parts`` of an evaluation's chunk, which has ``most`` of all its ``samples``."""
    return max(1, -(-min(most, samples) // parts))


def training_steps(workload: Workload, config: Config, data: object) -> Iterator[list[Batch]]:
    """One epoch of optimizer steps, each as a list of its micro-batches."""
    if method := optional(workload, OptionalMethods.training_steps):
        yield from method(config, data)
        return
    batches = epoch(workload, micro_batch(workload, config), data)
    while group := list(islice(batches, int(config.get(ACCUMULATION, 1)))):
        yield group


def sample_count(workload: Workload, batch: Batch) -> int:
    """The number of samples in a batch.

    By default it is the length of a tuple's first tensor. It is a graph's ``batch_size``, which PyTorch Geometric's
    ``Batch`` and the batches of its neighbour loaders have; another graph is one sample.
    """
    if method := optional(workload, OptionalMethods.count):
        return method(batch)
    return int(getattr(batch, "batch_size", 1)) if is_graph(batch) else len(batch[0])
