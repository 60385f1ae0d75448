"""The optional methods of a workload, and what happens without them.

``optional`` looks a method up where it is used, and ``call`` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from tuner.errors import InputError, option
from tuner.trial import Config, Configuration, ConfigValue
from tuner.workloads.base import Batch, Split, Trainable, needs_workload

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class OptionalMethods(Protocol):
    """What a workload may have beside the five methods of ``Workload``: any of these methods, alone or together."""

    # Rules about values that depend on each other or on the data.

    def finish(self, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        """All values, including those that follow from others, such as a preset's sizes; raises ``InputError``.

        A finished configuration is not changed.
        """

    def check(self, configurations: Sequence[Configuration], data: object) -> None:
        """Raises ``InputError`` if the data, or files that a configuration names, cannot be used."""

    # Facts about the data.

    def describe(self, data: object) -> str:
        """A short description of the data set, for the plan."""

    def caution(self, data: object) -> str:
        """Why the best of the study's trials may not be the best; empty if the data are no reason."""

    def training_samples(self, data: object) -> int | None:
        """The number of training samples, which a batch cannot exceed; None if it is unknown."""

    def constant_loss(self, data: object) -> float:
        """The training loss of the best constant prediction, which shows whether the first epoch's loss is wild."""

    def all_data(self, data: object) -> object:
        """The data with all samples in the training split. Metrics of the other splits are then meaningless."""

    def rehearsal(self, data: object) -> object:
        """A part of the data whose evaluation needs as much memory as all data, for estimates."""

    def epoch_data(self, model: nn.Module, config: Config, data: object, epoch: int) -> object:
        """The data of one epoch, counted from 1, where epochs train on different data."""

    # Another optimizer, or other learning rates, than those that a configuration can choose.

    def parameter_groups(self, model: nn.Module, config: Config) -> Iterable[dict[str, object]]:
        """The model's parameters in groups, as torch's optimizers take them, for rates other than ``lr``."""

    def optimizer(self, model: nn.Module, config: Config) -> Optimizer:
        """An optimizer of the model's parameters, which are on the device."""

    def lr_schedule(self, optimizer: Optimizer, config: Config) -> LRScheduler:
        """A scheduler of torch. It is stepped after each epoch; ``ReduceLROnPlateau`` gets the workload's metric.

        Its ``state_dict`` is part of checkpoints, so it must hold everything that changes, in plain values.
        """

    # Batches that differ in size, or whose number of samples is not what ``sample_count`` takes.

    def largest_batch(self, config: Config, data: object) -> Batch:
        """The training batch that takes the most memory; by default the largest of one epoch."""

    def count(self, batch: Batch) -> int:
        """The number of samples in a batch."""

    def training_steps(self, config: Config, data: object) -> Iterable[list[Batch]]:
        """One epoch of steps, each as a list of its micro-batches, where these are not simply smaller batches."""

    def evaluate_in_parts(self, model: nn.Module, data: object, split: Split, parts: int) -> Mapping[str, float]:
        """The metrics of ``evaluate``, with each of its chunks split into ``parts`` to save memory."""

    def checkpointed(self, model: nn.Module) -> Iterable[nn.Module]:
        """Modules whose activations can be recomputed in backward (``gradient_checkpointing``).

        They are deterministic apart from torch's random numbers, and change no buffers in training.
        """

    # Models that must be trained first, and modules that are used in training but never trained.

    def prerequisites(self, config: Config) -> Mapping[str, Configuration]:
        """Configurations to train first, by the key for the path of their best weights, unless the key is set."""

    def prepare(self, model: nn.Module, config: Config, data: object, *, rehearsal: bool = False) -> None:
        """Computes what the first step needs, such as a teacher's outputs, on the model's device without gradients.

        It must not draw random numbers, since a resumed training calls it again. With ``rehearsal`` only its memory
        matters: everything that it keeps, and its largest step.
        """

    def frozen(self, model: nn.Module) -> Iterable[nn.Module]:
        """Modules that are never trained. Offloaded ones are on the device only while ``forward`` runs."""

    # Models that can be built without their data.

    def constants(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Tensors, such as a graph, that ``restore_model`` needs too. Training never changes them."""

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> nn.Module:
        """The model with the state dict and the constants ``weights``."""


def optional(workload: Trainable, method: Callable[Concatenate[S, P], R]) -> Callable[P, R] | None:
    """The workload's method of this name; None if it has none."""
    return getattr(workload, method.__name__, None)


def call(
    workload: Trainable, method: Callable[Concatenate[S, P], R], default: R, *arguments: P.args, **keywords: P.kwargs
) -> R:
    """What the workload's method of this name returns; the default if it has none."""
    own = optional(workload, method)
    return own(*arguments, **keywords) if own else default


def finish_of(workload: Trainable) -> Callable[[dict[str, ConfigValue]], dict[str, ConfigValue]]:
    """The workload's ``finish``; without one, values are not changed."""
    return optional(workload, OptionalMethods.finish) or dict


def prerequisites(workload: Trainable, config: Config) -> Mapping[str, Configuration]:
    """The workload's ``prerequisites``; empty without the method."""
    return call(workload, OptionalMethods.prerequisites, {}, config)


def training_samples(workload: Trainable, data: object) -> int | None:
    """The number of training samples; None if it is unknown."""
    return call(workload, OptionalMethods.training_samples, None, data)


def joined_splits(workload: Trainable, data: object) -> object:
    """The workload's ``all_data``; raises ``InputError`` without the method."""
    if method := optional(workload, OptionalMethods.all_data):
        return method(data)
    raise InputError(
        f"{option('all_data', True)}: workload {workload.name!r} has no method all_data(data), which joins the data: "
        "add it, or leave the option out"
    )


def restore(workload: Trainable, config: Config, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with the state dict ``weights``; by default made by ``build_model`` without data.

    Raises ``InputError`` if ``build_model`` fails without data.
    """
    if method := optional(workload, OptionalMethods.restore_model):
        return method(config, weights)
    workload = needs_workload(workload, "a model")
    try:
        model: nn.Module = workload.build_model(config, None)
    except Exception as error:
        raise InputError(
            f"workload {workload.name!r}: its build_model fails without data ({type(error).__name__}: "
            f"{error}): give it a method restore_model(config, weights)"
        ) from error
    model.load_state_dict(dict(weights))
    return model
