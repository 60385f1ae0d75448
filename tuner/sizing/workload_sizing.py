"""The largest batch of a workload's configuration, and what goes with it where it has a device to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from tuner.errors import InputError, option
from tuner.estimation.service import EstimationService
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
    Hyperparameter,
    MemoryEstimate,
)
from tuner.workloads.base import numeric_hyperparameter
from tuner.workloads.protocols import Checkpointing, DataDescription, Teachers, optional
from tuner.workloads.task import TrainingTask

# What no smaller model is made of.
NOT_SIZES = ("epochs", *PAIRS)
# Where a step accumulates, the second batch is like all further ones: the gradients of those before it are there.
ACCUMULATING = 2
NeedBytes = Callable[[MemoryEstimate], int]  # what an estimate counts as, with or without margins


def total_bytes(guess: MemoryEstimate) -> int:
    """What an estimate counts as where a safety margin is taken off the device: no margin of its own."""
    return guess.total_bytes


@dataclass(frozen=True)
class Predictor:
    """How footprints of a workload's configurations are predicted: for which data, which device, and by whom."""

    task: TrainingTask
    device: Device
    service: EstimationService = field(default_factory=EstimationService)

    def estimate(self, config: Config, batch: int, accumulation: int = 1) -> MemoryEstimate:
        """A configuration's estimate with batches of so many samples, and so many of them in an optimizer step."""
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
        """The largest batch of a configuration that fits, or micro-batch, and the estimate of its footprint.

        Args:
            config: a complete configuration; its own batch and its accumulation do not count.
            limit_bytes: what there is.
            need_bytes: what an estimate counts as.
            at_least: the smallest batch of interest, in samples.
            at_most: the largest; by default the training set, or what the hyperparameter allows.
            accumulation: micro-batches in a step. Where there are several, one of them is sought: it takes more
                than a batch of its size does, as the gradients of those before it are there, too.

        Raises:
            InputError: the workload has no batch to size, not as many samples as asked for at least, or a footprint
                cannot be estimated.
            DoesNotFit: a batch of ``at_least`` does not.
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
    """The configuration with optimizer steps of so many batches of this size; its own do not count.

    ``key`` is the hyperparameter that says how many samples an optimizer step has.
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


def with_fewer_pairs(config: Config, chosen: Chosen) -> Config:
    """The configuration with the numbers of pairs that had to be lowered."""
    return {**config, **{key: chosen.variables[key] for key in chosen.lowered}}


def reachable(task: TrainingTask, goal: Goal) -> int:
    """The samples of an optimizer step that are wanted, but no more than there are or the hyperparameter allows."""
    return min(goal.effective_batch, batch_bound(task)[0])


def limited_by(predictor: Predictor, config: Config, chosen: Chosen) -> str | None:
    """The hyperparameter that kept memory from growing before the batch met its bound; None where nothing did."""
    name = predictor.task.workload.memory_limited_by
    if name is None or chosen.beyond_bytes is not None or chosen.batch_size < 2:
        return None
    config = with_fewer_pairs(config, chosen)
    half, whole = (predictor.estimate(config, batch) for batch in (chosen.batch_size // 2, chosen.batch_size))
    return name if half.total_bytes == whole.total_bytes else None


def size_configuration(
    predictor: Predictor, name: str, config: Config, goal: Goal, need_bytes: NeedBytes = total_bytes
) -> Chosen:
    """The largest batch of a configuration, with fewer pairs where not even the smallest fits with all of them.

    Its own batch and accumulation do not count.

    Raises:
        InputError: the workload has no batch to size or none as large as the smallest asked for, or a footprint
            cannot be estimated.
        DoesNotFit: nothing makes the smallest batch fit; the text says by how much, and what would.
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
            accumulation = 1  # the text of the choice says so
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
    """Those with which the smallest batch fits, where it can be beside the gradients of those before it."""
    batch = goal.min_batch_size
    # Of the positives 0 stands for all that there are, which are fewer than the most that can be asked for.
    pairs = {key: int(config[key]) for key in PAIRS if key in config}
    if pairs.get("n_positives") == 0:
        pairs["n_positives"] = int(numeric_hyperparameter(predictor.task.workload, "n_positives").high)

    def fewer(accumulation: int) -> dict[str, int] | None:
        def need(changed: Mapping[str, int]) -> int:
            return need_bytes(predictor.estimate({**config, **changed}, batch, accumulation))

        return lowered(need, pairs, goal.limit_bytes)

    return fewer(min(ACCUMULATING, _accumulation(predictor, goal, batch))) or fewer(1)


def _remedies(predictor: Predictor, config: Config, goal: Goal, need: int) -> list[str]:
    """What would make the smallest batch fit: a larger device, a switch, half of what counts the most."""
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
    """What can be switched on to need less; mixed precision on the CPU only where a study does not refuse it."""
    workload = predictor.task.workload
    allowed = {
        "amp": predictor.device.kind == "cuda" or not workload.batches_vary,
        CHECKPOINTING: optional(workload, Checkpointing.checkpointed) is not None,
        OFFLOADING: optional(workload, Teachers.frozen) is not None and predictor.device.kind == "cuda",
    }
    return [(key, 1) for key, can in allowed.items() if can and not config.get(key)]


def _halved(predictor: Predictor, config: Config, batch: int) -> list[tuple[str, int]]:
    """The whole number of which half leaves the smallest footprint, and that half; none where there is no number."""
    without = (*NOT_SIZES, batch_key(predictor.task))
    halves = [
        (key, int(config[key]) // 2)
        for key, spec in predictor.task.workload.hyperparameters.items()
        if isinstance(spec, Hyperparameter) and isinstance(spec.default, int)
        if key not in without and int(config[key]) // 2 >= max(spec.low, 1)
    ]
    guesses = {half: predictor.estimate({**config, half[0]: half[1]}, batch).total_bytes for half in halves}
    return sorted(halves, key=lambda half: guesses[half])[:1]
