"""What stages pass on: which configurations of a workload are to be tried, and a workload with its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import InputError
from tuner.trial import ACCUMULATION, AUTO, CHECKPOINTING, OFFLOADING, Configuration, Trial
from tuner.workloads.base import Config, Workload


@dataclass(frozen=True)
class TrainingTask:
    """What the trials of one workload train.

    Attributes:
        workload: the model, its batches and its loss.
        data: what ``workload.load_data`` returned.
        checkpointing: whether one of the trials computes activations again.
    """

    workload: Workload
    data: Any
    checkpointing: bool = False


Tasks = Mapping[str, TrainingTask]  # a study's, by the workload's name, in the order in which the user named them


@dataclass(frozen=True)
class Selection:
    """What of one workload is to be tried.

    Attributes:
        workload: what to train.
        load_data: gives its data; called once, when everything else is known to be usable.
        configurations: complete and valid.
    """

    workload: Workload
    load_data: Callable[[], Any]
    configurations: Sequence[Configuration]

    def __post_init__(self) -> None:
        """Refuses options of the training loop that the workload cannot serve.

        Raises:
            InputError: a configuration's ``accumulation`` does not divide its batch, or there is none to divide; or
                it has ``gradient_checkpointing``, and the workload names no modules for it.
        """
        key = self.workload.memory_scales_with
        for each in self.configurations:
            parts = int(each.values.get(ACCUMULATION, 1))
            if parts > 1 and key is None:
                raise InputError(f"{each.name}: accumulation: workload {self.workload.name} has no batch to divide")
            if key is not None and each.values[key] != AUTO and int(each.values[key]) % parts:
                raise InputError(f"{each.name}: accumulation {parts} does not divide {key} {each.values[key]}")
            if each.values.get(CHECKPOINTING) and not self.workload.can_checkpoint:
                raise InputError(
                    f"{each.name}: {CHECKPOINTING} 1: workload {self.workload.name} names no modules that may be "
                    "computed again: leave it out"
                )
            if each.values.get(OFFLOADING) and not self.workload.can_offload:
                raise InputError(
                    f"{each.name}: {OFFLOADING} 1: workload {self.workload.name} has no module that is never "
                    "trained: leave it out"
                )

    def load_checked(self) -> Any:
        """The data, which serve the configurations.

        Raises:
            InputError: they are not there, cannot be read, or do not.
        """
        data = self.load_data()
        self.workload.check(self.configurations, data)
        return data


def load_tasks(selections: Sequence[Selection]) -> dict[str, TrainingTask]:
    """The tasks of a study, with their data.

    Raises:
        InputError: data are not there, cannot be read, or do not serve a configuration.
    """
    return {selection.workload.name: _task(selection) for selection in selections}


def _task(selection: Selection) -> TrainingTask:
    checkpointing = any(each.values.get(CHECKPOINTING) for each in selection.configurations)
    return TrainingTask(selection.workload, selection.load_checked(), checkpointing)


def accumulated(tasks: Tasks, trial: Trial) -> Config | None:
    """A trial's configuration in micro-batches of half the size; None where they cannot be halved."""
    return tasks[trial.workload].workload.accumulated(trial.config)


def metrics_of(tasks: Tasks) -> dict[str, str]:
    """The metric that each workload's trials are compared by."""
    return {name: task.workload.metric for name, task in tasks.items()}


def describe(tasks: Tasks) -> str:
    """The data sets in a few words, a line for each; after the workload's name where there are several."""
    words = {name: task.workload.describe(task.data) for name, task in tasks.items()}
    return "\n".join(f"{name}: {text}" if len(tasks) > 1 else text for name, text in words.items() if text)
