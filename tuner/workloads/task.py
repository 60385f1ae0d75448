"""The selected configurations of a workload, and a workload with its data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tuner.errors import InputError
from tuner.hyperparameters import LOOP_OPTIONS
from tuner.objective import Objective
from tuner.trial import (
    ACCUMULATION,
    AUTO,
    CHECKPOINTING,
    EVALUATION_PARTS,
    OFFLOADING,
    Config,
    Configuration,
    Phase,
    Trial,
)
from tuner.workloads import micro_batches
from tuner.workloads.base import Trainable
from tuner.workloads.pickling import own_bytes
from tuner.workloads.program import Program
from tuner.workloads.protocols import OptionalMethods, call, joined_splits, optional

# The method that each of these options of the training loop needs.
NEEDED: Mapping[str, tuple[Callable[..., object], str]] = {
    CHECKPOINTING: (OptionalMethods.checkpointed, "checkpointed(model)"),
    EVALUATION_PARTS: (OptionalMethods.evaluate_in_parts, "evaluate_in_parts(model, data, split, parts)"),
    OFFLOADING: (OptionalMethods.frozen, "frozen(model)"),
}


@dataclass(frozen=True)
class TrainingTask:
    """A workload with the data of its trials."""

    workload: Trainable
    data: object
    checkpointing: bool = False  # whether one of the trials uses gradient checkpointing
    # What its trials are compared by; by default the workload's own.
    objective: Objective = None  # type: ignore[assignment]
    last_epoch: int | None = None  # nothing is held out, and training ends after it; None with held-out data

    def __post_init__(self) -> None:
        """Takes the workload's own objective if none is given."""
        object.__setattr__(self, "objective", self.objective or self.workload.objective)

    @cached_property
    def own_bytes(self) -> int:
        """The RAM that the data take in each process: see ``pickling.own_bytes``."""
        return own_bytes(self.data)


Tasks = Mapping[str, TrainingTask]  # a study's tasks by the workload's name, in the user's order


@dataclass(frozen=True)
class Selection:
    """The selected configurations of a workload."""

    workload: Trainable
    load_data: Callable[[], object]  # called once, after everything else has been checked
    configurations: Sequence[Configuration]  # complete and valid
    objective: Objective = None  # type: ignore[assignment]  # as in ``TrainingTask``
    last_epoch: int | None = None  # as in ``TrainingTask``

    def __post_init__(self) -> None:
        """Raises ``InputError`` for options of the training loop that the workload does not support.

        ``accumulation`` must divide the batch, and others need a method of the workload.
        """
        object.__setattr__(self, "objective", self.objective or self.workload.objective)
        if isinstance(self.workload, Program):  # its keys mean what its author says
            return
        key, name = self.workload.memory_scales_with, self.workload.name
        for configuration in self.configurations:
            parts = int(configuration.values.get(ACCUMULATION, 1))
            if parts > 1 and key is None:
                raise InputError(f"{configuration.name}: accumulation: workload {name} has no batch size to divide")
            if key is not None and configuration.values[key] != AUTO and int(configuration.values[key]) % parts:
                raise InputError(
                    f"{configuration.name}: accumulation {parts} does not divide {key} {configuration.values[key]}"
                )
            for option, (method, signature) in NEEDED.items():
                given, default = configuration.values.get(option), LOOP_OPTIONS[option].default
                if given not in (None, default) and not optional(self.workload, method):
                    text = f"workload {name} has no method {signature}: leave it out"
                    raise InputError(f"{configuration.name}: {option} {given}: {text}")
            if fault := _loop_fault(self.workload, configuration.values):
                raise InputError(f"{configuration.name}: {fault}")

    def load_checked(self) -> object:
        """The data; raises ``InputError`` if they cannot be read or do not fit a configuration."""
        data = self.load_data()
        call(self.workload, OptionalMethods.check, None, self.configurations, data)
        return data


def on_all_data(selection: Selection, last_epoch: int) -> Selection:
    """The selection with nothing held out: it trains on all its data, and ends after ``last_epoch``."""

    def load() -> object:
        return joined_splits(selection.workload, selection.load_data())

    return replace(selection, load_data=load, objective=Objective("train_loss"), last_epoch=last_epoch)


def _loop_fault(workload: Trainable, values: Config) -> str:
    """Why an option of the loop has no effect; empty if every one has."""
    methods = {
        "optimizer": optional(workload, OptionalMethods.optimizer),
        "momentum": optional(workload, OptionalMethods.optimizer),
        "lr_schedule": optional(workload, OptionalMethods.lr_schedule),
    }
    given = [key for key in methods if key in values and (workload.schema or {}).get(key) is LOOP_OPTIONS[key]]
    for key in given:
        if method := methods[key]:
            return f"{key} {values[key]}: workload {workload.name} has its own method {method.__name__}: leave it out"
    if "momentum" in given and values.get("optimizer") != "sgd":
        return f"momentum {values['momentum']}: only the optimizer sgd has it: add optimizer: sgd, or leave it out"
    return ""


def load_tasks(selections: Sequence[Selection]) -> dict[str, TrainingTask]:
    """The tasks of a study; raises the errors of ``Selection.load_checked``."""
    return {
        selection.workload.name: TrainingTask(
            selection.workload,
            selection.load_checked(),
            any(configuration.values.get(CHECKPOINTING) for configuration in selection.configurations),
            selection.objective,
            selection.last_epoch,
        )
        for selection in selections
    }


def smaller(tasks: Tasks, trial: Trial, phase: Phase) -> Config | None:
    """A trial's configuration with half of what ran out of memory in this phase; None if that cannot be halved."""
    return micro_batches.smaller(tasks[trial.workload].workload, trial.config, phase)


def objectives_of(tasks: Tasks) -> dict[str, Objective]:
    """What each workload's trials are compared by."""
    return {name: task.objective for name, task in tasks.items()}


def describe(tasks: Tasks) -> str:
    """A line for each data set, with the workload's name if there are several."""
    texts = {name: call(task.workload, OptionalMethods.describe, "", task.data) for name, task in tasks.items()}
    return "\n".join(f"{name}: {text}" if len(tasks) > 1 else text for name, text in texts.items() if text)
