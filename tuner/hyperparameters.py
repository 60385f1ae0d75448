"""Declarations of hyperparameters, and the keys that the training loop reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.trial import (
    ACCUMULATION,
    CHECKPOINTING,
    CUDA_GRAPHS,
    EVALUATION_PARTS,
    LARGEST_BATCH,
    MAX_BATCH,
    MOST_RANKS,
    NODES,
    OFFLOADING,
    RANKS,
    Auto,
    Config,
    ConfigValue,
)


@dataclass(frozen=True)
class Hyperparameter:
    """A number that a workload accepts under one key of a configuration.

    Attributes:
        default: the value if a configuration has none. Only values of its type are accepted.
        low: the smallest accepted value; by default there is no limit.
        high: the largest accepted value; by default there is no limit.
        doc: a short description.
        optional: whether configurations have the key only if the value differs from the default.
        auto: whether ``AUTO`` is accepted, too.
    """

    default: int | float
    low: float = -math.inf
    high: float = math.inf
    doc: str = ""
    optional: bool = False
    auto: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether it is 0 or 1, so that ``true`` and ``false`` are accepted, too."""
        return isinstance(self.default, int) and (self.low, self.high) == (0, 1)


@dataclass(frozen=True)
class TextHyperparameter:
    """A text that a workload accepts under one key of a configuration; one of ``choices`` if there are any.

    With ``numbers`` a whole number or a list of them is accepted, too, and becomes text, as in "10,5".
    """

    default: str
    doc: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    numbers: bool = False


AnyHyperparameter = Hyperparameter | TextHyperparameter
Declared = AnyHyperparameter | int | float | str  # a hyperparameter, or its default alone

# Keys that the training loop reads, for workloads that do not declare them.
LOOP_DEFAULTS: Mapping[str, Hyperparameter] = {
    "epochs": Hyperparameter(10, 1, 100_000, "passes over the training data"),
    "lr": Hyperparameter(1e-3, 0.0, doc="the learning rate at the start"),
    "weight_decay": Hyperparameter(0.0, 0.0, doc="L2 penalty"),
}

# Keys that the training loop reads from every workload's configurations.
LOOP_OPTIONS: Mapping[str, AnyHyperparameter] = {
    ACCUMULATION: Hyperparameter(1, 1, 1_000_000, "micro-batches of a batch", optional=True),
    "amp": Hyperparameter(0, 0, 1, "1 trains in bfloat16 where autocast does", optional=True),
    "clear_cache_every_n": Hyperparameter(0, 0, 1_000_000_000, "steps between clearing a GPU's cache", optional=True),
    CHECKPOINTING: Hyperparameter(0, 0, 1, "1 recomputes activations in backward to save memory", optional=True),
    CUDA_GRAPHS: Hyperparameter(0, 0, 1, "1 records a step on a GPU as a CUDA graph", optional=True),
    EVALUATION_PARTS: Hyperparameter(1, 1, 1_000_000, "parts of each chunk of an evaluation", optional=True),
    RANKS: Hyperparameter(1, 1, MOST_RANKS, "processes that train it, each with a GPU", optional=True, auto=True),
    NODES: Hyperparameter(1, 1, MOST_RANKS, "machines of a cluster on which these are", optional=True),
    "lr_schedule": TextHyperparameter(
        "linear", "how the learning rate falls from epoch to epoch", ("linear", "constant", "cosine"), optional=True
    ),
    MAX_BATCH: Hyperparameter(0, 0, LARGEST_BATCH, "the largest auto batch size; 0 for no limit", optional=True),
    "momentum": Hyperparameter(0.0, 0.0, 0.9999, "the momentum of the optimizer sgd", optional=True),
    OFFLOADING: Hyperparameter(0, 0, 1, "1 keeps modules that are never trained off the GPU", optional=True),
    "optimizer": TextHyperparameter("adam", "the optimizer", ("adam", "adamw", "sgd"), optional=True),
    "patience": Hyperparameter(
        0, 0, 1_000_000_000, "epochs without a better metric after which a trial ends; 0 for never", optional=True
    ),
}


def declared(key: str, given: Declared) -> AnyHyperparameter:
    """A workload's declaration of a hyperparameter as an object.

    A hyperparameter that the training loop reads takes missing bounds from the loop.
    """
    if isinstance(given, TextHyperparameter):
        return given
    loop = LOOP_DEFAULTS.get(key) or LOOP_OPTIONS.get(key)
    if isinstance(given, str):
        return replace(loop, default=given) if isinstance(loop, TextHyperparameter) else TextHyperparameter(given)
    if not isinstance(given, Hyperparameter):
        switch = Hyperparameter(int(given), 0, 1) if isinstance(given, bool) else None
        as_known = loop is not None and isinstance(loop.default, float)
        given = switch or Hyperparameter(float(given) if as_known else given)
    if not isinstance(loop, Hyperparameter) or (given.low, given.high) != (-math.inf, math.inf):
        return given
    return replace(given, low=loop.low, high=loop.high, doc=given.doc or loop.doc)


def is_auto(config: Config) -> bool:
    """Whether a configuration's batch size is ``AUTO``."""
    return any(isinstance(value, Auto) for key, value in config.items() if key != RANKS)


def shrunk(config: Config) -> dict[str, ConfigValue]:
    """The values by which a retry has made batches or evaluations smaller; empty without any."""
    return {key: config[key] for key in (ACCUMULATION, EVALUATION_PARTS) if key in config}


def with_batch(config: Config, batch_size: int) -> dict[str, ConfigValue]:
    """The configuration with this batch size instead of ``AUTO``."""
    return {key: batch_size if isinstance(value, Auto) and key != RANKS else value for key, value in config.items()}
