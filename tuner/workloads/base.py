"""What a workload is: the five methods through which everything else sees a model and its data.

One ``loss`` serves training, estimation and measurement, so an estimate is always of the model that is trained. A
workload object holds no state of a trial: whatever ``loss`` touches is in the model (parameters and buffers) or in
the batch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

from tuner.trial import LOOP_OPTIONS, AnyHyperparameter, Config, Hyperparameter, TextHyperparameter
from tuner.workloads.pickling import SearchPath, search_path

if TYPE_CHECKING:
    from torch import Tensor, nn
    from typing_extensions import TypeVar

    DataT = TypeVar("DataT", default=Any)
    ModelT = TypeVar("ModelT", bound=nn.Module, default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")
    ModelT = TypeVar("ModelT")

Batch = tuple["Tensor", ...]
Split = Literal["validation", "test"]
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")  # of a workload, which is part of file names
WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # between the words of a class's name


def _unpickled(_: SearchPath, cls: type[Workload]) -> Workload:
    return cls.__new__(cls)


class Workload(ABC, Generic[DataT, ModelT]):
    """A model, its data and its loss. ``protocols.py`` lists the optional methods.

    Attributes:
        name: its name in results; by default the class's name, as ``my-model``.
        metric: the validation metric by which configurations are compared; smaller is better.
        hyperparameters: what a configuration may set; must hold ``epochs``, ``lr`` and ``weight_decay``, which
            the training loop reads.
        batches_vary: whether batches differ in size, apart from the last one of an epoch.
        memory_scales_with: the key of the batch size, if memory grows with it and ``loss`` is a mean over the batch.
            Then a batch may be split into micro-batches, and the key's value may be ``AUTO``.
        memory_limited_by: the key of a limit beyond which a larger batch takes no more memory; None if there is none.
        default_data: the ``source`` for ``load_data`` if the user names none.
        divergence_factor: a trial has diverged if an epoch's mean loss is this many times the first step's loss.
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
    # With a squared error, predictions a thousand times as wrong as an untrained model's. It must be that much: wide
    # models with one step an epoch were seen at 80,000 times their first loss, and came down again.
    divergence_factor: ClassVar[float] = 1e6

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):  # also if its base has one: results tell them apart by it
            cls.name = WORDS.sub("-", cls.__name__).lower().strip("_")

    def __reduce__(self) -> tuple[object, ...]:
        """A worker can import what this process could; pickle builds these in their order."""
        return _unpickled, (SearchPath(search_path(type(self))), type(self)), self.__getstate__()

    @property
    def schema(self) -> Mapping[str, AnyHyperparameter]:
        """What a configuration may set: the workload's own hyperparameters and the training loop's options.

        A workload that has one of the loop's options among its own gives it another default.
        """
        key = self.memory_scales_with
        batch = self.hyperparameters[key] if key else None
        sized = {key: replace(batch, auto=True)} if key and isinstance(batch, Hyperparameter) else {}
        others = {name: option for name, option in LOOP_OPTIONS.items() if name not in self.hyperparameters}
        return {**self.hyperparameters, **sized, **others}

    @abstractmethod
    def load_data(self, source: str, seed: int) -> DataT:
        """The data set, as numpy arrays in plain containers: processes share it without copies.

        ``source`` is the user's ``data`` option: a name that the workload knows, or a folder. ``seed`` is that of the
        validation split, and of nothing else.
        """

    @abstractmethod
    def build_model(self, config: Config, data: DataT) -> ModelT:
        """A freshly initialised model on the CPU; what it needs of the data is copied into its buffers."""

    @abstractmethod
    def batches(self, config: Config, data: DataT) -> Iterable[Batch]:
        """One epoch of training batches: tuples of CPU tensors, in an order drawn from torch's generator."""

    @abstractmethod
    def loss(self, model: ModelT, batch: Batch) -> Tensor:
        """The training loss of one batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: ModelT, data: DataT, split: Split) -> dict[str, float]:
        """Metrics on the validation or test split, by names without the split's prefix."""


def numeric_hyperparameter(workload: Workload, key: str) -> Hyperparameter:
    """A hyperparameter that is a number, with its limits; raises ``TypeError`` if it is text."""
    found = workload.schema[key]
    if isinstance(found, TextHyperparameter):
        raise TypeError(f"workload {workload.name}: {key} is text")
    return found
