"""Chooses the largest batch of a workload's configuration that has a device to itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from tuner.errors import InputError, option
from tuner.estimation.service import EstimationService
from tuner.sizing.choices import Chosen, Goal, accumulation_for
from tuner.sizing.search import TRAINING_SET, USERS_BOUND, DoesNotFit, LargestBatch, check_least, largest_batch
from tuner.trial import ACCUMULATION, GB, MAX_BATCH, Config, ConfigValue, Device, MemoryEstimate
from tuner.workloads.base import numeric_hyperparameter
from tuner.workloads.protocols import training_samples
from tuner.workloads.task import TrainingTask

ACCUMULATING = 2  # a step's second batch has the gradients of the one before, like all further ones
NeedBytes = Callable[[MemoryEstimate], int]  # the bytes that count of an estimate, with or without margins


def total_bytes(guess: MemoryEstimate) -> int:
    """The estimate without its own margin, as the device already has a safety margin."""
    return guess.total_bytes


@dataclass(frozen=True)
class Predictor:
    """Predicts footprints of a workload's configurations on a device."""

    task: TrainingTask
    device: Device
    service: EstimationService = field(default_factory=EstimationService)

    def estimate(self, config: Config, batch: int, accumulation: int = 1) -> MemoryEstimate:
        """The estimate with this batch size and this number of batches in an optimizer step."""
        sized = in_batches(config, batch_key(self.task), batch, accumulation)
        return self.service.estimate(self.task.workload, sized, self.task.data, self.device)

    def largest(
        self,
        config: Config,
        limit_bytes: int,
        need_bytes: NeedBytes = total_bytes,
        *,
        at_least: int = 1,
        at_most: int | None = None,
        accumulation: int = 1,
    ) -> tuple[LargestBatch, MemoryEstimate]:
        """The largest batch that fits, and its estimate; the configuration's own batch and accumulation are ignored.

        By default the training set or the hyperparameter's maximum bounds the batch. With an ``accumulation`` above 1
        the result is a micro-batch. It takes more than a batch of its size, because of the gradients before it.

        Raises:
            InputError: the workload has no batch to size, too few samples, or no estimate.
            DoesNotFit: a batch of ``at_least`` does not fit.
        """
        guess = cache(lambda batch: self.estimate(config, batch, accumulation))
        most, bound = batch_bound(self.task, config)
        if accumulation > most:
            raise InputError(f"accumulation {accumulation} is above {most}, {bound}: lower it")
        check_least(at_least, most, bound)
        most //= accumulation
        if at_most is not None and at_most < most:
            most, bound = at_most, USERS_BOUND
        found = largest_batch(
            lambda batch: need_bytes(guess(batch)), limit_bytes, at_least=at_least, at_most=most, bound=bound
        )
        return found, guess(found.batch_size)


def in_batches(config: Config, key: str, batch: int, accumulation: int) -> dict[str, ConfigValue]:
    """The configuration with this batch size and accumulation; ``key`` is the samples of an optimizer step."""
    alone = {name: value for name, value in config.items() if name != ACCUMULATION}
    parts = {ACCUMULATION: accumulation} if accumulation > 1 else {}
    return {**alone, key: batch * accumulation, **parts}


def batch_key(task: TrainingTask) -> str:
    """The hyperparameter for the batch size. A workload without one raises ``InputError``."""
    if task.workload.memory_scales_with is None:
        raise InputError(f"workload {task.workload.name}: it has no batch whose size decides its memory")
    return task.workload.memory_scales_with


def batch_bound(task: TrainingTask, config: Config = MappingProxyType({})) -> tuple[int, str]:
    """The maximum batch size of a configuration, and the name of that bound."""
    key = batch_key(task)
    allowed = int(numeric_hyperparameter(task.workload, key).high)
    samples = training_samples(task.workload, task.data)
    bounds = [(allowed, f"the largest {key} that {task.workload.name} allows")]
    bounds += [(samples, TRAINING_SET)] if samples is not None else []
    bounds += [(int(config[MAX_BATCH]), MAX_BATCH)] if config.get(MAX_BATCH) else []
    return min(reversed(bounds), key=lambda bound: bound[0])


def reachable(task: TrainingTask, goal: Goal) -> int:
    """The wanted samples of an optimizer step, at most the training set and the hyperparameter's maximum."""
    return min(goal.effective_batch, batch_bound(task)[0])


def size_configuration(
    predictor: Predictor, name: str, config: Config, goal: Goal, need_bytes: NeedBytes = total_bytes
) -> Chosen:
    """The largest batch of a configuration, whose own batch and accumulation are ignored.

    Raises:
        InputError: the workload has no batch to size, too few samples, or no estimate.
        DoesNotFit: the smallest batch does not fit; the text has the missing memory and remedies.
    """

    def largest(accumulation: int = 1) -> tuple[LargestBatch, MemoryEstimate]:
        return predictor.largest(
            config,
            goal.limit_bytes,
            need_bytes,
            at_least=goal.min_batch_size,
            at_most=goal.max_batch_size,
            accumulation=accumulation,
        )

    try:
        found, guess = largest()
    except DoesNotFit as error:
        remedy = f"it fits a device of {error.need_bytes / goal.safety_margin / GB:.2f} GB"
        if goal.min_batch_size > 1:
            remedy += f"; or lower {option('min_batch_size')}"
        text = f"{name}: {error.text}: {remedy}; `tuner plan --gpu` looks for changes with which it fits"
        raise DoesNotFit(text, error.need_bytes, error.limit_bytes) from error
    wanted = reachable(predictor.task, goal)
    accumulation = accumulation_for(found.batch_size, goal.devices, wanted)
    if accumulation > 1:
        try:
            found, guess = largest(ACCUMULATING)
            accumulation = accumulation_for(found.batch_size, goal.devices, wanted)
        except DoesNotFit:
            accumulation = 1  # the choice's explanation says why
    return Chosen(
        name=name,
        batch_size=found.batch_size,
        accumulation=accumulation,
        devices=goal.devices,
        need_bytes=found.need_bytes,
        stopped_by=found.stopped_by,
        method=guess.method,
        beyond_bytes=found.beyond_bytes,
    )
