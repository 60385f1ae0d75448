"""``batch_size: auto``: the largest batch that fits a worker's share of a uniform plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.decisions.plan import Bound, make_plan, need_bytes
from tuner.errors import InputError, ParameterError, option, spelled
from tuner.estimation.estimate_cache import memory_key
from tuner.estimation.service import EstimatePair
from tuner.hyperparameters import is_auto, with_batch
from tuner.sizing.choices import MEMORY, TRAINING_SET, DoesNotFit, LargestBatch
from tuner.sizing.workload_sizing import Predictor, batch_bound, batch_key
from tuner.spec.settings import Settings
from tuner.study.needs import Estimates, Needs
from tuner.study.ranks import check_ranks
from tuner.trial import ACCUMULATION, AUTO, GB, MAX_BATCH, Device, MemoryEstimate, Trial, title
from tuner.workloads.task import Selection

SHOWN = 8  # the most batches that the plan shows
# With on_oom="accumulate" a trial's micro-batch may be halved three times where it is a multiple of this; where that
# would take away more than an eighth of the batch, an even one can be halved once.
HALVED = 8


@dataclass(frozen=True)
class WorkerShare:
    """A worker's share of memory in a uniform plan, and how it was found."""

    size_bytes: int  # the share
    device: Device | None = None  # the device with the smallest shares; None where the user has given it
    budget_bytes: int = 0  # what that device's trials divide between them; 0 where the user has given the share
    workers: int = 1  # how many they are, on that device
    bound: Bound = "number of trials"  # what keeps them from being more
    devices: int = 1  # how many are used

    @property
    def text(self) -> str:
        """How the share was found, in one line."""
        if self.device is None:
            return f"the share is {self.size_bytes / GB:.2f} GB, as given"
        bound = option(self.bound) if self.bound == "max_workers" else self.bound
        return (
            f"the share is {self.size_bytes / GB:.2f} GB = {self.budget_bytes / GB:.2f} GB of {self.device.label} / "
            f"{self.workers} worker{'s' * (self.workers > 1)}, bounded by {bound}"
        )


@dataclass(frozen=True)
class AutoBatch:
    """The batch that was found for a trial."""

    trial: Trial  # with its batch
    key: str  # the hyperparameter that it is the value of
    micro: LargestBatch  # the largest batch or micro-batch that fits, and what it needs
    bound: str  # what keeps it from being larger: "memory", or what the bound is called

    @property
    def batch_size(self) -> int:
        """The number of samples in an optimizer step."""
        return int(self.trial.config[self.key])

    def __str__(self) -> str:
        """The batch and its footprint, in one line."""
        parts = self.trial.micro_batches
        size = f"{self.key} {self.batch_size:,}" + (f" in {parts} micro-batches" if parts > 1 else "")
        once = ": one step an epoch" if self.bound == TRAINING_SET else ""
        return f"{size} takes {self.micro.need_bytes / GB:.2f} GB, bounded by {self.bound}{once}"


@dataclass(frozen=True)
class SizedTrials:
    """A study's trials with a number for every batch, and their estimates."""

    estimates: Estimates  # of all of them, in their order
    share: WorkerShare | None = None  # what each worker has; None where no trial had a batch to be found
    batches: Sequence[AutoBatch] = ()  # those that were found

    def by_trial(self) -> dict[str, int]:
        """The batches that were found, by trial id."""
        return {batch.trial.trial_id: batch.batch_size for batch in self.batches}

    @property
    def text(self) -> str:
        """The share, and a line for each configuration's batch; empty if none was to be found."""
        several = len({request.trial.workload for request in self.estimates.requests}) > 1
        names = [title(batch.trial.workload, batch.trial.name, several=several) for batch in self.batches]
        lines = list(dict.fromkeys(f"{name}: {batch}" for name, batch in zip(names, self.batches, strict=True)))
        more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join([self.share.text, *lines[:SHOWN], *more]) if self.share and lines else ""

    def __str__(self) -> str:
        return spelled(self.text)


def packed_uniformly(settings: Settings) -> Settings:
    """The settings with uniform packing, as the share decides the size of a batch that is ``auto``."""
    if settings.packing == "per-trial":
        rule = f"a batch of {AUTO} fills the share of a uniform plan"
        remedy = f"leave out {option('packing')}, or give the batch as a number"
        raise ParameterError("packing", settings.packing, rule, remedy)
    return settings.changed(packing="uniform")


def refuse_auto(selections: Sequence[Selection]) -> None:
    """Refuses a batch that is ``auto`` in a command that has no plan with shares."""
    for selection in selections:
        for configuration in selection.configurations:
            if is_auto(configuration.values):
                key = selection.workload.memory_scales_with
                raise InputError(
                    f"{configuration.name}: {key} {AUTO}: only a plan with shares can find it: use `tuner plan`, or "
                    f"give a number ({option('overrides', f'{key}=N')}, or in the file)"
                )


def size_batches(needs: Needs, trials: Sequence[Trial]) -> SizedTrials:
    """Finds every batch that is ``auto``, and estimates all trials.

    Raises:
        InputError: not even a batch of one fits the share, there are more micro-batches than samples, or as
            ``Needs.of``.
    """
    to_size = [trial for trial in trials if is_auto(trial.config)]
    for trial in to_size:  # ``Needs.of`` does it for the others
        check_ranks(needs.tasks[trial.workload].workload, trial, needs.settings)
    fixed = needs.of([trial for trial in trials if not is_auto(trial.config)])
    largest = max((request.need_bytes for request in fixed.requests), default=0)
    blank = MemoryEstimate("traced")  # a batch is no part of what a trial takes of its host's RAM
    rest = [needs.request(one, needs.in_ram(one.workload, EstimatePair(blank, blank)).calibrated) for one in to_size]
    host_bytes = max(request.host_bytes for request in (*fixed.requests, *rest))
    share = share_of(needs, largest, len(trials), min(host_bytes, needs.limits.ram_bytes))
    batches = _batches(needs, to_size, share)
    sized = {batch.trial.trial_id: batch.trial for batch in batches}
    return SizedTrials(needs.of([sized.get(trial.trial_id, trial) for trial in trials]), share, batches)


def share_of(needs: Needs, largest_bytes: int, trials: int, host_bytes: int = 0) -> WorkerShare:
    """A worker's share: the memory that the user gives every trial, or the least that a plan gives a worker.

    It is a plan of trials with the largest footprint of the others, which take ``host_bytes`` of a host's RAM.
    """
    devices, settings, most = needs.devices, needs.settings, needs.limits.device_bytes
    if not settings.estimates_memory:
        if settings.given_gb is None:
            raise InputError(f"{option('memory_gb')} is a function: a batch size that is auto needs a number")
        return WorkerShare(int(settings.given_gb * GB))
    if not most:  # nothing is free
        return WorkerShare(0, devices[0])
    plan = make_plan(
        devices,
        [min(largest_bytes, most)] * trials,
        packing="uniform",
        buffer_bytes=settings.buffer_bytes,
        max_workers=settings.max_workers,
        host_needs=[host_bytes] * trials,
    )
    used = [place for place in zip(plan.budgets, plan.slots, devices, strict=True) if place[1]]
    budget, workers, device = min(used, key=lambda place: place[0] / place[1])
    return WorkerShare(budget // workers, device, budget, workers, plan.bound, len(used))


def _batches(needs: Needs, trials: Sequence[Trial], share: WorkerShare) -> list[AutoBatch]:
    """The batch of each trial; trials that differ only in values without effect on memory share one search."""
    largest: dict[tuple[object, ...], LargestBatch] = {}
    batches = []
    for trial in trials:
        task = needs.tasks[trial.workload]
        same = (trial.workload, trial.config.get(MAX_BATCH), memory_key(trial.config))
        micro = largest[same] = largest.get(same) or _largest(needs, trial, share)
        sized = replace(trial, config=with_batch(trial.config, micro.batch_size * trial.micro_batches))
        bound = MEMORY if micro.beyond_bytes else batch_bound(task, trial.config)[1]
        batches.append(AutoBatch(sized, batch_key(task), micro, bound))
    return batches


def _largest(needs: Needs, trial: Trial, share: WorkerShare) -> LargestBatch:
    """The largest batch or micro-batch that fits the share on every kind of device."""
    task, settings = needs.tasks[trial.workload], needs.settings
    kinds = {device.name: device for device in needs.devices}
    name = title(trial.workload, trial.name, several=len(needs.tasks) > 1)
    try:
        batches = [
            Predictor(task, device, needs.service).largest(
                trial.config, share.size_bytes, need_bytes, accumulation=trial.micro_batches
            )[0]
            for device in kinds.values()
        ]
    except DoesNotFit as error:
        if settings.skip_too_large and error.need_bytes > needs.limits.device_bytes:  # with one sample it is left out
            return LargestBatch(1, error.need_bytes, error.need_bytes, MEMORY)
        one = "a micro-batch of 1" if ACCUMULATION in trial.config else "a batch of 1"
        raise InputError(
            f"{name}: {batch_key(task)} {AUTO}: {one} needs {error.need_bytes / GB:.2f} GB, "
            f"{(error.need_bytes - error.limit_bytes) / GB:.2f} GB more than the share of "
            f"{error.limit_bytes / GB:.2f} GB: {_remedy(needs, error.need_bytes, share)}"
        ) from error
    except InputError as error:
        raise InputError(f"{name}: {batch_key(task)} {AUTO}: {error.text}") from error
    smallest = min(batches, key=lambda batch: batch.batch_size)
    return _halvable(smallest) if settings.on_oom == "accumulate" else smallest


def _halvable(largest: LargestBatch) -> LargestBatch:
    """A batch that can be halved after it ran out of memory: the same or a little smaller."""
    size = largest.batch_size
    return replace(largest, batch_size=size - size % (HALVED if size >= HALVED**2 else min(2, size)))


def _remedy(needs: Needs, need_bytes: int, share: WorkerShare) -> str:
    """The remedy for a trial that needs this many bytes."""
    settings = needs.settings
    if not settings.estimates_memory and need_bytes <= needs.limits.device_bytes:
        return f"give {option(settings.given_by, math.ceil(100 * need_bytes / GB) / 100)} or more"
    if settings.estimates_memory and need_bytes <= share.budget_bytes:
        return f"give {option('max_workers', share.budget_bytes // need_bytes * share.devices)}"
    return f"lower {option('gpu_memory_buffer_gb')}, use a larger device, or leave this configuration out"
