"""The methods that a workload may have beside the five of its base class, and what happens without them.

A method is looked for, by ``optional``, where it is used; a workload need not have the others of its protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from tuner.errors import InputError, option
from tuner.trial import Config, Configuration, ConfigValue
from tuner.workloads.base import Batch, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class ConfigurationRules(Protocol):
    """Which values go together, and with which data."""

    def finish(self, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        """All values, with those that follow from others, such as a preset's sizes; raises ``InputError``.

        The values of a finished configuration stay as they are.
        """

    def check(self, configurations: Sequence[Configuration], data: object) -> None:
        """Raises ``InputError`` if the data, or files that a configuration names, cannot be used."""


class DataDescription(Protocol):
    """What is known of the data."""

    def describe(self, data: object) -> str:
        """The data set in a few words, for the plan."""

    def training_samples(self, data: object) -> int | None:
        """The number of samples to train on, which a batch cannot exceed; None if it is not known."""

    def all_data(self, data: object) -> object:
        """The data with all samples in the training split; metrics of the other splits then mean nothing."""

    def rehearsal(self, data: object) -> object:
        """Data whose evaluation takes as much memory as that of all data, for estimates."""


class Curriculum(Protocol):
    """Epochs that train on a part of the data."""

    def epoch_data(self, model: nn.Module, config: Config, data: object, epoch: int) -> object:
        """The data of one epoch, counted from 1."""


class VaryingBatches(Protocol):
    """Batches that differ in size, or whose size is not the length of their first tensor."""

    def largest_batch(self, config: Config, data: object) -> Batch:
        """The training batch that takes the most memory; without this, the largest of one epoch."""

    def count(self, batch: Batch) -> int:
        """The number of samples in a batch."""


class Accumulation(Protocol):
    """Micro-batches that are not simply smaller batches."""

    def training_steps(self, config: Config, data: object) -> Iterable[list[Batch]]:
        """One epoch of optimizer steps, each as its micro-batches."""


class Checkpointing(Protocol):
    """Modules whose activations can be recomputed in backward (``gradient_checkpointing``)."""

    def checkpointed(self, model: nn.Module) -> Iterable[nn.Module]:
        """These modules: deterministic apart from torch's random numbers, and they change no buffers in training."""


class Teachers(Protocol):
    """Models that must be trained first, and modules that are used in training and never trained."""

    def prerequisites(self, config: Config) -> Mapping[str, Configuration]:
        """What to train first, by the key for the path of its best weights; nothing once these keys are set."""

    def prepare(self, model: nn.Module, config: Config, data: object, *, rehearsal: bool = False) -> None:
        """Computes what the first step needs, such as a teacher's outputs; without gradients, on the model's device.

        It draws no random numbers, as training that continues from a checkpoint prepares once more. With
        ``rehearsal`` only its memory matters: all of what it keeps, and the largest of its steps.
        """

    def frozen(self, model: nn.Module) -> Iterable[nn.Module]:
        """Modules that are never trained; offloaded ones are on the device only while ``forward`` runs."""


class Restorable(Protocol):
    """Models that can be built without their data."""

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> nn.Module:
        """The model of which ``weights`` is the state dict."""


def optional(workload: Workload, method: Callable[Concatenate[S, P], R]) -> Callable[P, R] | None:
    """The workload's own method of this name; None if it has none."""
    found: Callable[P, R] | None = getattr(workload, method.__name__, None)
    return found


def finish_of(workload: Workload) -> Callable[[dict[str, ConfigValue]], dict[str, ConfigValue]]:
    """The workload's ``finish``; without one, values stay as they are."""
    return optional(workload, ConfigurationRules.finish) or dict


def check(workload: Workload, configurations: Sequence[Configuration], data: object) -> None:
    """The workload's ``check``; without one, everything can be used."""
    if own := optional(workload, ConfigurationRules.check):
        own(configurations, data)


def prerequisites(workload: Workload, config: Config) -> Mapping[str, Configuration]:
    """The workload's ``prerequisites``; without the method there are none."""
    own = optional(workload, Teachers.prerequisites)
    return own(config) if own else {}


def frozen(workload: Workload, model: nn.Module) -> list[nn.Module]:
    """The modules that are never trained; none if the workload does not name them."""
    own = optional(workload, Teachers.frozen)
    return list(own(model)) if own else []


def describe_data(workload: Workload, data: object) -> str:
    """The data set in a few words; empty if the workload does not describe it."""
    own = optional(workload, DataDescription.describe)
    return own(data) if own else ""


def joined_splits(workload: Workload, data: object) -> object:
    """The workload's ``all_data``; raises ``InputError`` if it has no such method."""
    if own := optional(workload, DataDescription.all_data):
        return own(data)
    raise InputError(
        f"{option('all_data', True)}: workload {workload.name!r} does not say how its data are joined: give it a "
        "method all_data(data), or leave the option out"
    )


def restore(workload: Workload, config: Config, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model of which ``weights`` is the state dict; by default what ``build_model`` makes without data.

    Raises ``InputError`` if it makes none.
    """
    if own := optional(workload, Restorable.restore_model):
        return own(config, weights)
    try:
        model: nn.Module = workload.build_model(config, None)
    except Exception as error:
        raise InputError(
            f"workload {workload.name!r}: its build_model makes no model without data ({type(error).__name__}: "
            f"{error}): give it a method restore_model(config, weights)"
        ) from error
    model.load_state_dict(dict(weights))
    return model
