"""The selected configurations of a workload, and a workload with its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import InputError
from tuner.trial import (
    ACCUMULATION,
    AUTO,
    CHECKPOINTING,
    LOOP_OPTIONS,
    OFFLOADING,
    Config,
    Configuration,
    Objective,
    Trial,
)
from tuner.workloads.base import Trainable
from tuner.workloads.micro_batches import halved
from tuner.workloads.program import Program
from tuner.workloads.protocols import Checkpointing, OwnLoop, Teachers, check, describe_data, optional


@dataclass(frozen=True)
class TrainingTask:
    """A workload with the data of its trials."""

    workload: Trainable
    data: object
    checkpointing: bool = False  # whether one of the trials uses gradient checkpointing
    asked: Objective | None = None  # what the user compares its trials by; None for the workload's own objective

    @property
    def objective(self) -> Objective:
        """What its trials are compared by."""
        return self.asked or self.workload.objective


Tasks = Mapping[str, TrainingTask]  # a study's tasks by the workload's name, in the user's order


@dataclass(frozen=True)
class Selection:
    """The selected configurations of a workload."""

    workload: Trainable
    load_data: Callable[[], object]  # called once, after everything else has been checked
    configurations: Sequence[Configuration]  # complete and valid
    asked: Objective | None = None  # what the user compares them by; None for the workload's own objective

    def __post_init__(self) -> None:
        """Raises ``InputError`` for options of the training loop that the workload does not support.

        ``accumulation`` must divide the batch; ``gradient_checkpointing`` and ``offload_teacher_to_cpu`` need modules
        that the workload names.
        """
        if isinstance(self.workload, Program):  # its keys mean what its author says
            return
        key, name = self.workload.memory_scales_with, self.workload.name
        for each in self.configurations:
            parts = int(each.values.get(ACCUMULATION, 1))
            if parts > 1 and key is None:
                raise InputError(f"{each.name}: accumulation: workload {name} has no batch size to divide")
            if key is not None and each.values[key] != AUTO and int(each.values[key]) % parts:
                raise InputError(f"{each.name}: accumulation {parts} does not divide {key} {each.values[key]}")
            if each.values.get(CHECKPOINTING) and not optional(self.workload, Checkpointing.checkpointed):
                text = f"workload {name} has no method checkpointed(model): leave it out"
                raise InputError(f"{each.name}: {CHECKPOINTING} 1: {text}")
            if each.values.get(OFFLOADING) and not optional(self.workload, Teachers.frozen):
                text = f"workload {name} has no method frozen(model): leave it out"
                raise InputError(f"{each.name}: {OFFLOADING} 1: {text}")

            if fault := _loop_fault(self.workload, each.values):
                raise InputError(f"{each.name}: {fault}")

    @property
    def objective(self) -> Objective:
        """What its trials are compared by."""
        return self.asked or self.workload.objective

    def load_checked(self) -> object:
        """The data; raises ``InputError`` if they cannot be read or do not fit a configuration."""
        data = self.load_data()
        check(self.workload, self.configurations, data)
        return data


def _loop_fault(workload: Trainable, values: Config) -> str:
    """Why an option of the loop has no effect; empty if every one has."""
    own = {
        "optimizer": optional(workload, OwnLoop.optimizer),
        "momentum": optional(workload, OwnLoop.optimizer),
        "lr_schedule": optional(workload, OwnLoop.lr_schedule),
    }
    given = [key for key in own if key in values and (workload.schema or {}).get(key) is LOOP_OPTIONS[key]]
    for key in given:
        if method := own[key]:
            return f"{key} {values[key]}: workload {workload.name} has its own method {method.__name__}: leave it out"
    if "momentum" in given and values.get("optimizer") != "sgd":
        return f"momentum {values['momentum']}: only the optimizer sgd has it: add optimizer: sgd, or leave it out"
    return ""


def load_tasks(selections: Sequence[Selection]) -> dict[str, TrainingTask]:
    """The tasks of a study; raises the errors of ``Selection.load_checked``."""
    return {each.workload.name: _task(each) for each in selections}


def _task(selection: Selection) -> TrainingTask:
    checkpointing = any(each.values.get(CHECKPOINTING) for each in selection.configurations)
    return TrainingTask(selection.workload, selection.load_checked(), checkpointing, selection.asked)


def accumulated(tasks: Tasks, trial: Trial) -> Config | None:
    """A trial's configuration with micro-batches of half the size; None if they cannot be halved."""
    return halved(tasks[trial.workload].workload, trial.config)


def objectives_of(tasks: Tasks) -> dict[str, Objective]:
    """What each workload's trials are compared by."""
    return {name: task.objective for name, task in tasks.items()}


def describe(tasks: Tasks) -> str:
    """A line for each data set, with the workload's name if there are several."""
    words = {name: describe_data(task.workload, task.data) for name, task in tasks.items()}
    return "\n".join(f"{name}: {text}" if len(tasks) > 1 else text for name, text in words.items() if text)
