"""Chooses the largest batch of a workload's configuration that has a device to itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from types import MappingProxyType

from tuner.errors import InputError, option
from tuner.estimation.measure import measure
from tuner.estimation.overheads import in_fork
from tuner.estimation.service import EstimationService
from tuner.sizing.choices import (
    TRAINING_SET,
    USERS_BOUND,
    Chosen,
    DoesNotFit,
    Goal,
    LargestBatch,
    accumulation_for,
    check_least,
    largest_batch,
)
from tuner.trial import ACCUMULATION, GB, MAX_BATCH, Config, ConfigValue, Device, MemoryEstimate
from tuner.workloads.base import needs_workload, numeric_hyperparameter
from tuner.workloads.protocols import training_samples
from tuner.workloads.task import TrainingTask

ACCUMULATING = 2  # a step's second batch has the gradients of the one before, like all further ones
NeedBytes = Callable[[MemoryEstimate], int]  # the bytes that count of an estimate, with or without margins
TOTAL: NeedBytes = attrgetter("total_bytes")  # without its own margin, as the device already has a safety margin


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
        need_bytes: NeedBytes = TOTAL,
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
        largest = largest_batch(
            lambda batch: need_bytes(guess(batch)), limit_bytes, at_least=at_least, at_most=most, bound=bound
        )
        return largest, guess(largest.batch_size)


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
    predictor: Predictor, name: str, config: Config, goal: Goal, need_bytes: NeedBytes = TOTAL
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
        batch, guess = largest()
    except DoesNotFit as error:
        remedy = f"it fits a device of {error.need_bytes / goal.safety_margin / GB:.2f} GB"
        if goal.min_batch_size > 1:
            remedy += f"; or lower {option('min_batch_size')}"
        text = f"{name}: {error.text}: {remedy}; `tuner plan --gpu` looks for changes with which it fits"
        raise DoesNotFit(text, error.need_bytes, error.limit_bytes) from error
    wanted = reachable(predictor.task, goal)
    accumulation = accumulation_for(batch.batch_size, goal.devices, wanted)
    if accumulation > 1:
        try:
            batch, guess = largest(ACCUMULATING)
            accumulation = accumulation_for(batch.batch_size, goal.devices, wanted)
        except DoesNotFit:
            accumulation = 1  # the choice's explanation says why
    return Chosen(
        name=name,
        batch_size=batch.batch_size,
        accumulation=accumulation,
        devices=goal.devices,
        need_bytes=batch.need_bytes,
        stopped_by=batch.stopped_by,
        method=guess.method,
        beyond_bytes=batch.beyond_bytes,
    )


ROUNDS = 3
NEARLY = 1.03  # the batch must grow by more than this factor to be worth another round


def profiled(predictor: Predictor, config: Config, goal: Goal, chosen: Chosen) -> tuple[Chosen, list[str]]:
    """Measures real steps, corrects the predictions, and chooses again.

    The prediction's error is added to other predictions in proportion to their reserved bytes. A choice is final if
    its steps fit and the corrected batch is at most ``NEARLY`` times as large.

    Returns:
        The largest choice whose steps fit, with its measured memory, and a line for each round.

    Raises:
        InputError: no batch fits by the measurements, or steps do not fit after ``ROUNDS``.
        ExecutionError: a step failed.
    """
    name, notes, best, too_large = chosen.name, list[str](), None, math.inf
    for _ in range(ROUNDS):
        took = _measured_bytes(predictor, config, chosen)
        fits = took <= goal.limit_bytes
        over = "" if fits else f", and {goal.limit_bytes / GB:.2f} GB is the limit: chosen anew"
        predicted = f"{chosen.need_bytes / GB:.2f} GB predicted"
        notes.append(f"{name}: a batch of {chosen.batch_size} took {took / GB:.2f} GB, {predicted}{over}")
        if not fits:
            too_large = min(too_large, chosen.batch_size)
        elif best is None or chosen.batch_size > best.batch_size:
            best = replace(chosen, measured_bytes=took)
        guess = predictor.estimate(config, chosen.batch_size, chosen.accumulation)
        chosen = size_configuration(predictor, name, config, goal, _corrected(guess, took))
        if best is not None and not NEARLY * best.batch_size < chosen.batch_size < too_large:
            return best, notes
    if best is not None:
        return best, notes
    raise InputError(
        f"after {ROUNDS} rounds of {option('profile', True)}: {'; '.join(notes)}: lower {option('safety_margin')}"
    )


def _corrected(guess: MemoryEstimate, took_bytes: int) -> Callable[[MemoryEstimate], int]:
    share = (took_bytes - guess.total_bytes) / max(1, guess.reserved_bytes)
    return lambda other: other.total_bytes + int(share * other.reserved_bytes)


def _measured_bytes(predictor: Predictor, config: Config, chosen: Chosen) -> int:
    task, device = predictor.task, predictor.device
    sizes = chosen.batch_size, chosen.accumulation
    whole = in_batches(config, batch_key(task), *sizes)
    measured = measure(
        needs_workload(task.workload, "a measured step"),
        whole,
        task.data,
        device,
        predictor.service.expandable_segments,
    )
    context = measured.estimate.context_bytes
    return measured.peak_bytes + (in_fork(context) - context if device.kind == "cpu" else 0)
