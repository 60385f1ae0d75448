"""The largest batch of a workload's configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MappingProxyType

from tuner.errors import InputError
from tuner.estimation.service import EstimationService
from tuner.sizing.search import TRAINING_SET, LargestBatch, check_least, largest_batch
from tuner.trial import ACCUMULATION, MAX_BATCH, Config, ConfigValue, Device, MemoryEstimate
from tuner.workloads.base import numeric_hyperparameter
from tuner.workloads.protocols import DataDescription, optional
from tuner.workloads.task import TrainingTask


def largest_batch_of(
    task: TrainingTask,
    config: Config,
    device: Device,
    limit_bytes: int,
    need_bytes: Callable[[MemoryEstimate], int],
    *,
    at_least: int = 1,
    at_most: int | None = None,
    accumulation: int = 1,
    service: EstimationService,
) -> tuple[LargestBatch, MemoryEstimate]:
    """The largest batch of a configuration that fits, or micro-batch, and the estimate of its footprint.

    Args:
        task: the workload and its data.
        config: a complete configuration; its own batch and its accumulation do not count.
        device: what to estimate for.
        limit_bytes: what there is.
        need_bytes: what an estimate counts as, with or without margins.
        at_least: the smallest batch of interest, in samples.
        at_most: the largest; by default the training set, or what the hyperparameter allows.
        accumulation: micro-batches in a step. Where there are several, one of them is sought: it takes more than a
            batch of its size does, as the gradients of those before it are there, too.
        service: what estimates.

    Raises:
        InputError: the workload has no batch to size, not as many samples as asked for at least, or a footprint
            cannot be estimated.
        DoesNotFit: a batch of ``at_least`` does not.
    """
    key = batch_key(task)

    @cache
    def guess(batch: int) -> MemoryEstimate:
        sized = in_batches(config, key, batch, accumulation)
        return service.estimate(task.workload, sized, task.data, device)

    most, bound = batch_bound(task, config)
    if accumulation > most:
        raise InputError(f"accumulation {accumulation} is above {most}, {bound}: lower it")
    check_least(at_least, most, bound)
    most //= accumulation
    if at_most is not None and at_most < most:
        most, bound = at_most, "--max-batch-size"
    found = largest_batch(
        lambda batch: need_bytes(guess(batch)),
        limit_bytes,
        at_least=at_least,
        at_most=most,
        bound=bound,
    )
    return found, guess(found.batch_size)


def in_batches(config: Config, key: str, batch: int, accumulation: int) -> dict[str, ConfigValue]:
    """The configuration with optimizer steps of so many batches of this size; its own do not count.

    Args:
        config: a complete configuration.
        key: the hyperparameter that says how many samples an optimizer step has.
        batch: samples of one of the step's batches.
        accumulation: how many of them a step has.
    """
    alone = {name: value for name, value in config.items() if name != ACCUMULATION}
    parts = {ACCUMULATION: accumulation} if accumulation > 1 else {}
    return {**alone, key: batch * accumulation, **parts}


def batch_key(task: TrainingTask) -> str:
    """The hyperparameter that says how many samples are in a batch.

    Raises:
        InputError: the workload has none that memory grows with.
    """
    if task.workload.memory_scales_with is None:
        raise InputError(f"workload {task.workload.name}: it has no batch whose size decides its memory")
    return task.workload.memory_scales_with


def batch_bound(task: TrainingTask, config: Config = MappingProxyType({})) -> tuple[int, str]:
    """The most samples that a batch of a configuration can have, and what sets that bound."""
    key = batch_key(task)
    allowed = int(numeric_hyperparameter(task.workload, key).high)
    training_samples = optional(task.workload, DataDescription.training_samples)
    samples = training_samples(task.data) if training_samples else None
    bounds = [(allowed, f"the largest {key} that {task.workload.name} allows")]
    bounds += [(samples, TRAINING_SET)] if samples is not None else []
    bounds += [(int(config[MAX_BATCH]), MAX_BATCH)] if config.get(MAX_BATCH) else []
    return min(reversed(bounds), key=lambda bound: bound[0])
