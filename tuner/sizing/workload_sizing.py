"""Chooses the largest batch of a workload's configuration that has a device to itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from tuner.errors import InputError, option
from tuner.estimation.service import EstimationService
from tuner.hyperparameters import Hyperparameter
from tuner.sizing.choices import PAIRS, Chosen, Goal, accumulation_for, lowered
from tuner.sizing.search import TRAINING_SET, USERS_BOUND, DoesNotFit, LargestBatch, check_least, largest_batch
from tuner.trial import (
    ACCUMULATION,
    CHECKPOINTING,
    GB,
    MAX_BATCH,
    OFFLOADING,
    Config,
    ConfigValue,
    Device,
    MemoryEstimate,
)
from tuner.workloads.base import needs_workload, numeric_hyperparameter
from tuner.workloads.protocols import Checkpointing, Teachers, optional, training_samples
from tuner.workloads.task import TrainingTask

NOT_SIZES = ("epochs", *PAIRS)  # whole numbers that do not change the model's size
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


def with_fewer_pairs(config: Config, chosen: Chosen) -> Config:
    """The configuration with the lowered numbers of pairs."""
    return {**config, **{key: chosen.variables[key] for key in chosen.lowered}}


def reachable(task: TrainingTask, goal: Goal) -> int:
    """The wanted samples of an optimizer step, at most the training set and the hyperparameter's maximum."""
    return min(goal.effective_batch, batch_bound(task)[0])


def limited_by(predictor: Predictor, config: Config, chosen: Chosen) -> str | None:
    """The hyperparameter that bounds the memory of large batches, or None."""
    name = predictor.task.workload.memory_limited_by
    if name is None or chosen.beyond_bytes is not None or chosen.batch_size < 2:
        return None
    config = with_fewer_pairs(config, chosen)
    half, whole = (predictor.estimate(config, batch) for batch in (chosen.batch_size // 2, chosen.batch_size))
    return name if half.total_bytes == whole.total_bytes else None


def size_configuration(
    predictor: Predictor, name: str, config: Config, goal: Goal, need_bytes: NeedBytes = total_bytes
) -> Chosen:
    """The largest batch of a configuration, with fewer pairs if the smallest batch does not fit otherwise.

    The configuration's own batch and accumulation are ignored.

    Raises:
        InputError: the workload has no batch to size, too few samples, or no estimate.
        DoesNotFit: the smallest batch does not fit; the text has the missing memory and remedies.
    """

    def largest(accumulation: int = 1) -> tuple[LargestBatch, MemoryEstimate]:
        return predictor.largest(
            {**config, **changed},
            goal.limit_bytes,
            need_bytes,
            at_least=goal.min_batch_size,
            at_most=goal.max_batch_size,
            accumulation=accumulation,
        )

    changed: dict[str, int] = {}
    try:
        found, guess = largest()
    except DoesNotFit as error:
        changed = _fewer_pairs(predictor, config, goal, need_bytes) or {}
        if not changed:
            remedies = "; ".join(_remedies(predictor, config, goal, error.need_bytes))
            raise DoesNotFit(f"{name}: {error.text}: {remedies}", error.need_bytes, error.limit_bytes) from error
        found, guess = largest()
    accumulation = _accumulation(predictor, goal, found.batch_size)
    if accumulation > 1:
        try:
            found, guess = largest(ACCUMULATING)
            accumulation = _accumulation(predictor, goal, found.batch_size)
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
        variables={**{key: int(config[key]) for key in PAIRS if key in config}, **changed},
        lowered=tuple(changed),
    )


def _accumulation(predictor: Predictor, goal: Goal, batch: int) -> int:
    return accumulation_for(batch, goal.devices, reachable(predictor.task, goal))


def _fewer_pairs(predictor: Predictor, config: Config, goal: Goal, need_bytes: NeedBytes) -> dict[str, int] | None:
    """The pairs with which the smallest batch fits, if possible beside the gradients of earlier batches."""
    batch = goal.min_batch_size
    # For positives, 0 means all of a sample's, which are at most the hyperparameter's maximum.
    pairs = {key: int(config[key]) for key in PAIRS if key in config}
    most = numeric_hyperparameter(predictor.task.workload, "n_positives").high if "n_positives" in pairs else 0
    if pairs.get("n_positives") == 0 and math.isfinite(most):
        pairs["n_positives"] = int(most)

    def fewer(accumulation: int) -> dict[str, int] | None:
        def need(changed: Mapping[str, int]) -> int:
            return need_bytes(predictor.estimate({**config, **changed}, batch, accumulation))

        return lowered(need, pairs, goal.limit_bytes)

    return fewer(min(ACCUMULATING, _accumulation(predictor, goal, batch))) or fewer(1)


def _remedies(predictor: Predictor, config: Config, goal: Goal, need: int) -> list[str]:
    """Remedies: a larger device, a smaller minimum, a switch, or half of the hyperparameter that matters most."""
    batch = goal.min_batch_size
    found = [f"it fits a device of {need / goal.safety_margin / GB:.2f} GB"]
    if batch > 1:
        found.append(f"or lower {option('min_batch_size')}")
    for key, value in [*_switches(predictor, config), *_halved(predictor, config, batch)]:
        total = predictor.estimate({**config, key: value}, batch).total_bytes
        if total < need:
            fits = "fits" if total <= goal.limit_bytes else "is still too much"
            found.append(f"{option('overrides', f'{key}={value}')} takes {total / GB:.2f} GB, which {fits}")
    return found


def _switches(predictor: Predictor, config: Config) -> list[tuple[str, int]]:
    """The switches that save memory and are off. On the CPU, studies allow mixed precision only for fixed batches."""
    workload = predictor.task.workload
    allowed = {
        "amp": predictor.device.kind == "cuda" or not workload.batches_vary,
        CHECKPOINTING: optional(workload, Checkpointing.checkpointed) is not None,
        OFFLOADING: optional(workload, Teachers.frozen) is not None and predictor.device.kind == "cuda",
    }
    return [(key, 1) for key, can in allowed.items() if can and not config.get(key)]


def _halved(predictor: Predictor, config: Config, batch: int) -> list[tuple[str, int]]:
    """The whole number whose half gives the smallest footprint, and that half; empty if there is none."""
    without = (*NOT_SIZES, batch_key(predictor.task))
    halves = [
        (key, int(config[key]) // 2)
        for key, spec in needs_workload(predictor.task.workload, "a smaller size").own_schema.items()
        if isinstance(spec, Hyperparameter) and isinstance(spec.default, int)
        if key not in without and int(config[key]) // 2 >= max(spec.low, 1)
    ]
    guesses = {half: predictor.estimate({**config, half[0]: half[1]}, batch).total_bytes for half in halves}
    return sorted(halves, key=lambda half: guesses[half])[:1]
