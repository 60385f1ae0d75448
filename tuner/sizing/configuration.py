"""What a workload's configuration is to be trained with on a device that it has to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.estimation.service import EstimationService
from tuner.sizing.choices import PAIRS, Chosen, Goal, accumulation_for, lowered
from tuner.sizing.search import DoesNotFit, LargestBatch
from tuner.sizing.workload import batch_bound, batch_key, in_batches, largest_batch_of
from tuner.trial import CHECKPOINTING, GB, OFFLOADING, Config, Device, Hyperparameter, MemoryEstimate
from tuner.workloads.base import numeric_hyperparameter
from tuner.workloads.protocols import Checkpointing, Teachers, optional
from tuner.workloads.task import TrainingTask

# What no smaller model is made of.
NOT_SIZES = ("epochs", *PAIRS)
# Where a step accumulates, the second batch is like all further ones: the gradients of those before it are there.
ALIKE = 2


@dataclass(frozen=True)
class Predictor:
    """How footprints of a workload's configurations are predicted.

    Attributes:
        task: the workload and its data.
        device: what to estimate for.
        service: what estimates.
    """

    task: TrainingTask
    device: Device
    service: EstimationService = field(default_factory=EstimationService)

    def estimate(self, config: Config, batch: int, accumulation: int = 1) -> MemoryEstimate:
        """A configuration's estimate with batches of so many samples, and so many of them in an optimizer step."""
        sized = in_batches(config, batch_key(self.task), batch, accumulation)
        return self.service.estimate(self.task.workload, sized, self.task.data, self.device)

    def largest(
        self, config: Config, goal: Goal, need_bytes: Callable[[MemoryEstimate], int], accumulation: int = 1
    ) -> tuple[LargestBatch, MemoryEstimate]:
        """The largest batch of a configuration of which a step has so many, and its estimate.

        Raises:
            InputError: the smallest is above what there can be.
            DoesNotFit: not even the smallest does.
        """
        return largest_batch_of(
            self.task,
            config,
            self.device,
            goal.limit_bytes,
            need_bytes,
            at_least=goal.min_batch_size,
            at_most=goal.max_batch_size,
            accumulation=accumulation,
            service=self.service,
        )


def with_fewer_pairs(config: Config, chosen: Chosen) -> Config:
    """The configuration with the numbers of pairs that had to be lowered."""
    return {**config, **{key: chosen.variables[key] for key in chosen.lowered}}


def total_bytes(guess: MemoryEstimate) -> int:
    """What an estimate counts as where a safety margin is taken off the device: no margin of its own."""
    return guess.total_bytes


def size_configuration(
    predictor: Predictor,
    name: str,
    config: Config,
    goal: Goal,
    need_bytes: Callable[[MemoryEstimate], int] = total_bytes,
) -> Chosen:
    """The largest batch of a configuration, with fewer pairs where not even the smallest fits with all of them.

    Args:
        predictor: how footprints are predicted.
        name: what the configuration is called.
        config: a complete configuration; its own batch and accumulation do not count.
        goal: what is asked for.
        need_bytes: what an estimate counts as.

    Raises:
        InputError: the workload has no batch to size or none as large as the smallest asked for, or a footprint
            cannot be estimated.
        DoesNotFit: nothing makes the smallest batch fit; the text says by how much, and what would.
    """
    changed: dict[str, int] = {}
    try:
        found, guess = predictor.largest(config, goal, need_bytes)
    except DoesNotFit as error:
        changed = _fewer_pairs(predictor, config, goal, need_bytes) or {}
        if not changed:
            remedies = "; ".join(_remedies(predictor, config, goal, error.need_bytes))
            raise DoesNotFit(f"{name}: {error}: {remedies}", error.need_bytes, error.limit_bytes) from error
        found, guess = predictor.largest({**config, **changed}, goal, need_bytes)
    accumulation = _accumulation(predictor, goal, found.batch_size)
    if accumulation > 1:
        try:
            found, guess = predictor.largest({**config, **changed}, goal, need_bytes, ALIKE)
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


def _accumulation(predictor: Predictor, goal: Goal, batch: int) -> int:
    return accumulation_for(batch, goal.devices, reachable(predictor.task, goal))


def _fewer_pairs(
    predictor: Predictor, config: Config, goal: Goal, need_bytes: Callable[[MemoryEstimate], int]
) -> dict[str, int] | None:
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

    return fewer(min(ALIKE, _accumulation(predictor, goal, batch))) or fewer(1)


def _remedies(predictor: Predictor, config: Config, goal: Goal, need: int) -> list[str]:
    """What would make the smallest batch fit: a larger device, a switch, half of what counts the most."""
    batch = goal.min_batch_size
    found = [f"it fits a device of {need / goal.safety_margin / GB:.2f} GB"]
    if goal.min_batch_size > 1:
        found.append("or lower --min-batch-size")
    half = _halved(predictor, config, batch)
    for key, value in [*_switches(predictor, config), *([half] if half else [])]:
        total = predictor.estimate({**config, key: value}, batch).total_bytes
        if total < need:
            fits = "fits" if total <= goal.limit_bytes else "is still too much"
            found.append(f"--set {key}={value} takes {total / GB:.2f} GB, which {fits}")
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


def _halved(predictor: Predictor, config: Config, batch: int) -> tuple[str, int] | None:
    """The whole number of which half leaves the smallest footprint."""
    without = (*NOT_SIZES, batch_key(predictor.task))
    halves = {
        key: int(config[key]) // 2
        for key, spec in predictor.task.workload.hyperparameters.items()
        if isinstance(spec, Hyperparameter) and isinstance(spec.default, int)
        if key not in without and int(config[key]) // 2 >= max(spec.low, 1)
    }
    if not halves:
        return None
    return min(halves.items(), key=lambda each: predictor.estimate({**config, each[0]: each[1]}, batch).total_bytes)
