"""The interface of a workload: five methods for a model and its data.

Training, estimation and measurement use the same ``loss``, so an estimate is always of the model that is trained. A
workload object holds no state of a trial: ``loss`` uses only the model (parameters and buffers) and the batch.
"""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias

from tuner.errors import InputError
from tuner.hyperparameters import LOOP_DEFAULTS, LOOP_OPTIONS, AnyHyperparameter, Declared, Hyperparameter, declared
from tuner.objective import DIRECTIONS, DirectionWord, Objective
from tuner.trial import LARGEST_BATCH, Config
from tuner.workloads.pickling import SearchPath, place_of, search_path

if TYPE_CHECKING:
    from torch import Tensor, nn
    from typing_extensions import TypeVar

    DataT = TypeVar("DataT", default=Any)
    ModelT = TypeVar("ModelT", bound=nn.Module, default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")
    ModelT = TypeVar("ModelT")

Batch: TypeAlias = Any  # a tuple of tensors, or a graph of PyTorch Geometric (``batches.py``)
Split = Literal["validation", "test"]
DEFAULT_WORKLOAD = "graphsage"
BUILT_IN = {  # the built-in workloads by name
    "graphsage": "tuner.workloads.graphsage.workload:GraphSAGE",
    "gt-ssl": "tuner.workloads.gt_ssl.workload:GTSSL",
    "kd-gat": "tuner.workloads.kd_gat.workload:KDGAT",
}
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")  # a workload's name, which is part of file names
MOST_BYTES_OF_NAME = 150  # file names have at most 255
WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # the boundaries of words in a class name


def _unpickled(_: SearchPath, cls: type[Trainable]) -> Trainable:
    return cls.__new__(cls)


class Trainable(ABC):
    """What trials train: a ``Workload``, or a program whose training is its own."""

    name: str  # in results; by default the class's name, as ``my-model``
    metric: str  # by which configurations are compared
    # Whether less of the metric is better, or more. None is "minimize", but a metric such as an accuracy needs a
    # direction (``objectives.py``).
    direction: DirectionWord | None = None
    headline: ClassVar[Sequence[str]] = ()  # other test metrics that the tables at a study's end show
    batches_vary: ClassVar[bool] = False  # whether batches differ in size, apart from the last one of an epoch
    # The key of the batch size, if memory grows with it and ``loss`` is a mean over the batch. Then a batch may be
    # split into micro-batches, and the key's value may be ``AUTO``.
    memory_scales_with: ClassVar[str | None] = None
    # Modules that its training imports and its own module does not. A worker has them before its first trial, so they
    # are in no trial's footprint.
    imports: Sequence[str] = ()
    asks: ClassVar[bool] = False  # whether its trials ask the study questions as they run
    own_process: ClassVar[bool] = False  # whether each trial needs a new process, whose main thread runs it
    data_options: ClassVar[Sequence[str]] = ()  # the options that ``load_data`` takes by name, such as ``skip_bad``
    # The keys of a configuration that ``load_data`` takes by name where they are not the default. Data are loaded
    # once, so all configurations of a study have the same values of these.
    data_keys: ClassVar[Sequence[str]] = ()
    default_data: ClassVar[str] = ""  # the default ``source`` of ``load_data``

    def __reduce__(self) -> tuple[object, ...]:
        """Sends where the study finds modules before the user's code, so that a worker can import it."""
        return _unpickled, (SearchPath(search_path(self.code), *sys.path), type(self)), self.__getstate__()

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, AnyHyperparameter] | None:
        """The keys that a configuration may set; None if it may set any key."""

    @abstractmethod
    def load_data(self, source: str, seed: int) -> object:
        """The data of all trials, which processes share without copies if they are numpy arrays in plain containers.

        ``source`` is the user's ``data`` option: a name that the workload knows, or a folder. ``seed`` is the seed of
        the validation split only.
        """

    @property
    def code(self) -> object:
        """The user's class or function, whose module other processes import."""
        return type(self)

    def arguments_of(self, config: Config) -> dict[str, object]:
        """A configuration as the user's code receives it."""
        return dict(config)

    @property
    def spec(self) -> str | None:
        """The text by which another process finds it, ``module:Class``; None if it has state or is in no module."""
        return None if vars(self) else place_of(self.code)

    @property
    def objective(self) -> Objective:
        """What configurations are compared by, if the user does not ask for something else.

        A program names no metric of its own: it must be asked for before trials run, but not for a plan.
        """
        return Objective(getattr(self, "metric", ""), DIRECTIONS[self.direction or "minimize"])


class Workload(Trainable, Generic[DataT, ModelT]):
    """A model, its data and its loss. ``protocols.py`` lists the optional methods.

    ``metric`` is a validation metric of ``evaluate``, with the prefix ``val_``.

    Attributes:
        hyperparameters: the keys that a configuration may set, each with a ``Hyperparameter`` or its default alone.
            Those that the training loop reads (``epochs``, ``lr`` and ``weight_decay``) may be left out.
        divergence_factor: a trial has diverged if an epoch's mean loss exceeds this factor times the first step's, or
            times that of a constant prediction (``constant_loss``) if this is less.
    """

    hyperparameters: ClassVar[Mapping[str, Declared]]
    # Wide models with one step per epoch reached 80,000 times their first loss and still converged.
    divergence_factor: ClassVar[float] = 1e6

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):  # a base's name is not inherited, since results need different names
            cls.name = WORDS.sub("-", cls.__name__).lower().strip("_")

    @property
    def schema(self) -> Mapping[str, AnyHyperparameter]:
        """The keys that a configuration may set: the workload's hyperparameters and the training loop's options.

        A workload can redefine an option of the loop to change its default.
        """
        others = {name: option for name, option in LOOP_OPTIONS.items() if name not in self.hyperparameters}
        declarations, key = self.own_schema, self.memory_scales_with
        batch = declarations[key] if key else None
        sized = {key: replace(batch, auto=True)} if key and isinstance(batch, Hyperparameter) else {}
        return {**declarations, **sized, **others}

    @property
    def own_schema(self) -> Mapping[str, AnyHyperparameter]:
        """The workload's hyperparameters, with those that every training loop has, but without the loop's options."""
        lacking = {key: value for key, value in LOOP_DEFAULTS.items() if key not in self.hyperparameters}
        declarations = {key: declared(key, value) for key, value in {**self.hyperparameters, **lacking}.items()}
        key = self.memory_scales_with
        batch = declarations.get(key) if key else None
        if key and isinstance(batch, Hyperparameter) and (batch.low, batch.high) == (-math.inf, math.inf):
            declarations[key] = replace(batch, low=1, high=LARGEST_BATCH)
        return declarations

    @abstractmethod
    def load_data(self, source: str, seed: int) -> DataT:
        """As ``Trainable.load_data``."""

    @abstractmethod
    def build_model(self, config: Config, data: DataT) -> ModelT:
        """A newly initialised model on the CPU. Data that it needs are copied into its buffers."""

    @abstractmethod
    def batches(self, config: Config, data: DataT) -> Iterable[Batch]:
        """One epoch of training batches on the CPU, in random order by torch's random generator.

        A batch is a tuple of tensors, or a ``Data``, ``HeteroData`` or ``Batch`` of PyTorch Geometric.
        """

    @abstractmethod
    def loss(self, model: ModelT, batch: Batch) -> Tensor:
        """The training loss of one batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: ModelT, data: DataT, split: Split) -> dict[str, float]:
        """The metrics of the validation or test split, by name without the split's prefix."""


def needs_workload(trainable: Trainable, what: str) -> Workload:
    """The trainable as a workload; raises ``InputError`` if it is a program, which has no model and no loss."""
    if not isinstance(trainable, Workload):
        raise InputError(f"{trainable.name}: {what} needs a class derived from tuner.Workload")
    return trainable


def numeric_hyperparameter(workload: Trainable, key: str) -> Hyperparameter:
    """The numeric hyperparameter of this key; raises ``TypeError`` if there is none."""
    hyperparameter = (workload.schema or {}).get(key)
    if not isinstance(hyperparameter, Hyperparameter):
        raise TypeError(f"workload {workload.name}: {key} is not a number")
    return hyperparameter


def is_built_in(workload: Trainable) -> bool:
    """Whether it is a built-in workload, not the user's."""
    return workload.name in BUILT_IN
