"""What a workload is: the five methods through which everything else sees a model and its data.

One ``loss`` serves training, estimation and measurement, so that an estimate can never be of another model than
the one that is trained. A workload object holds no state of a trial: whatever ``loss`` touches is in the model
(parameters and buffers) or in the batch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tuner.errors import InputError
from tuner.trial import (
    ACCUMULATION,
    LOOP_OPTIONS,
    AnyHyperparameter,
    Configuration,
    Hyperparameter,
    TextHyperparameter,
)
from tuner.workloads.contract import epoch
from tuner.workloads.search_path import SearchPath, search_path

if TYPE_CHECKING:
    from torch import Tensor, nn

Config = Mapping[str, Any]
Batch = tuple["Tensor", ...]
Split = Literal["validation", "test"]
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")  # a workload's: it is part of files' names
WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # between the words of a class's name


def _unpickled(_: SearchPath, cls: type[Workload]) -> Workload:
    return cls.__new__(cls)


class Workload(ABC):
    """A model, its data and its loss.

    Attributes:
        name: how results call it; by default the class's name, as ``my-model``.
        metric: the validation metric that configurations are compared by; smaller is better.
        hyperparameters: what a configuration may set; must hold ``epochs``, ``lr`` and ``weight_decay``, which
            the training loop reads.
        batches_vary: whether batches differ in size, other than that the last of an epoch may be smaller.
        memory_scales_with: the key of a configuration that says how many samples are in a batch, if memory grows with
            it and ``loss`` is a mean over them: then a step may be taken in several smaller batches, and the key's
            value may be ``AUTO``.
        memory_limited_by: the key of a configuration beyond which a batch takes no more memory, however many samples
            it may have; None where there is none.
        default_data: what ``load_data`` is given as its source where the user names none.
        divergence_factor: an epoch's mean loss that is so many times the first step's ends a trial as diverged.
        skips_bad_files: whether ``load_data`` takes ``skip_bad=True``, to leave out files that cannot be used.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]]
    batches_vary: ClassVar[bool] = False
    memory_scales_with: ClassVar[str | None] = None
    memory_limited_by: ClassVar[str | None] = None
    skips_bad_files: ClassVar[bool] = False
    default_data: ClassVar[str] = ""
    # Where the model had learned nothing: of a squared error, a prediction a thousand times as wrong as an untrained
    # model's. It must be that much: with one step an epoch, wide models were seen at 80,000 times their first loss
    # and came down again. Losses that begin near 0 or below it are measured as if they began at 1.
    divergence_factor: ClassVar[float] = 1e6

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):  # also where its base has one: results tell them apart by it
            cls.name = WORDS.sub("-", cls.__name__).lower().strip("_")

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker can import what this process could; pickle builds these in their order."""
        return _unpickled, (SearchPath(search_path(type(self))), type(self)), self.__getstate__()

    @property
    def schema(self) -> Mapping[str, AnyHyperparameter]:
        """Everything that a configuration may set: the workload's own and the training loop's options.

        A workload that has one of the loop's options among its own gives it another default.
        """
        key = self.memory_scales_with
        batch = self.hyperparameters[key] if key else None
        sized = {key: replace(batch, auto=True)} if key and isinstance(batch, Hyperparameter) else {}
        others = {name: option for name, option in LOOP_OPTIONS.items() if name not in self.hyperparameters}
        return {**self.hyperparameters, **sized, **others}

    def number(self, key: str) -> Hyperparameter:
        """The hyperparameter of this name, which is a number; with its limits.

        Raises:
            TypeError: it is text.
        """
        found = self.schema[key]
        if isinstance(found, TextHyperparameter):
            raise TypeError(f"workload {self.name}: {key} is text")
        return found

    def finish(self, values: dict[str, Any]) -> dict[str, Any]:
        """What follows from a complete configuration's values, such as sizes that a preset names; optional.

        A configuration that is finished already stays as it is.

        Raises:
            InputError: values that do not go together.
        """
        return values

    def check(self, configurations: Sequence[Configuration], data: Any) -> None:
        """Refuses configurations that these data, or files that they name, do not serve; optional.

        Raises:
            InputError: what cannot be used, and why.
        """
        return None

    def prerequisites(self, config: Config) -> Mapping[str, Configuration]:
        """What must be trained before: the key that the path of its best weights goes into, and what to train.

        Optional. A configuration has none once all such keys are filled in.
        """
        return {}

    def prepare(self, model: nn.Module, config: Config, data: Any, *, rehearsal: bool = False) -> None:
        """What a training needs of its model on the device before the first step, such as a teacher's outputs.

        Optional; in evaluation mode and without gradients. It draws no random numbers, as a training that goes on
        from a checkpoint prepares once more.

        Args:
            model: on its device.
            config: a complete configuration.
            data: what ``load_data`` returned.
            rehearsal: only the memory that it takes is asked for: what it keeps in its whole size, and the largest
                of its steps.
        """
        return None

    def epoch_data(self, model: nn.Module, config: Config, data: Any, epoch: int) -> Any:
        """The data with what one epoch, counted from 1, trains on, such as a curriculum's; all of it by default."""
        return data

    def frozen(self, model: nn.Module) -> Iterable[nn.Module]:
        """Modules that are used in training and never trained, such as a teacher; optional.

        With ``offload_teacher_to_cpu`` each is on the device only while its ``forward`` runs.
        """
        return ()

    @property
    def can_offload(self) -> bool:
        """Whether the workload names such modules."""
        return type(self).frozen is not Workload.frozen

    @abstractmethod
    def load_data(self, source: str, seed: int) -> Any:
        """The data set, as numpy arrays in plain containers: it is shared between processes without copies.

        Args:
            source: what the user gave as ``--data``: a name that the workload knows, or a folder.
            seed: drives the validation split, and nothing else.
        """

    @abstractmethod
    def build_model(self, config: Config, data: Any) -> nn.Module:
        """A freshly initialised model on the CPU; what it needs of the data is copied into its buffers."""

    @abstractmethod
    def batches(self, config: Config, data: Any) -> Iterable[Batch]:
        """One epoch of training batches: tuples of CPU tensors, in an order drawn from torch's generator."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of one batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        """Metrics on the validation or test split, by names without the split's prefix."""

    def count(self, batch: Batch) -> int:
        """The samples in a batch: by default the length of its first tensor."""
        return len(batch[0])

    def training_samples(self, data: Any) -> int | None:
        """The samples to train on, the most that a batch can have; None where that is not known."""
        return None

    def largest_batch(self, config: Config, data: Any) -> Batch:
        """The training batch that takes the most memory, asked for where ``batches_vary``.

        By default the largest of an epoch, which later epochs may exceed: a workload that knows better should say so.
        """
        return max(epoch(self, config, data), key=lambda batch: sum(part.nbytes for part in batch))

    def accumulated(self, config: Config) -> Config | None:
        """The same training in micro-batches of half the size; None where they cannot be halved."""
        micro_batches = 2 * config.get(ACCUMULATION, 1)
        if self.memory_scales_with is None or config[self.memory_scales_with] % micro_batches:
            return None
        return {**config, ACCUMULATION: micro_batches}

    def training_steps(self, config: Config, data: Any) -> Iterator[list[Batch]]:
        """One epoch of optimizer steps, each as its micro-batches."""
        batches = epoch(self, self.micro_batch(config), data)
        while group := list(islice(batches, config.get(ACCUMULATION, 1))):
            yield group

    def rehearsal(self, data: Any) -> Any:
        """Data whose evaluation takes as much memory as that of all; for estimates. All, unless told better."""
        return data

    def micro_batch(self, config: Config) -> Config:
        """The configuration by which micro-batches are drawn: the same but for their size."""
        key = self.memory_scales_with
        if key is None or config.get(ACCUMULATION, 1) == 1:
            return config
        return {**config, key: config[key] // config[ACCUMULATION]}

    def all_data(self, data: Any) -> Any:
        """The data set with everything in it to train on; optional. Its other splits, if it has any, tell nothing.

        Raises:
            InputError: the workload does not provide it.
        """
        raise InputError(
            f"--all-data: workload {self.name!r} does not say how its data are joined: give it a method "
            "all_data(data), or leave --all-data out"
        )

    def checkpointed(self, model: nn.Module) -> Iterable[nn.Module]:
        """The modules whose activations may be computed again in backward (``gradient_checkpointing``); optional.

        They must be deterministic but for torch's random numbers, and change no buffers in training.
        """
        return ()

    @property
    def can_checkpoint(self) -> bool:
        """Whether the workload names such modules."""
        return type(self).checkpointed is not Workload.checkpointed

    def describe(self, data: Any) -> str:
        """The data set in a few words, for the plan; optional."""
        return ""

    def restore_model(self, config: Config, weights: Mapping[str, Tensor]) -> nn.Module:
        """The model that ``weights`` (a state dict) were saved of, without its data.

        By default what ``build_model`` makes of a configuration and None; optional where that is a model.

        Raises:
            InputError: it is not.
        """
        try:
            model = self.build_model(config, None)
        except Exception as error:
            raise InputError(
                f"workload {self.name!r}: its build_model makes no model without data ({type(error).__name__}: "
                f"{error}): give it a method restore_model(config, weights)"
            ) from error
        model.load_state_dict(dict(weights))
        return model
