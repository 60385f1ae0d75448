"""A short training that shows the memory and the time of a whole one: for estimates and a worker's warm-up."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice, takewhile
from types import MappingProxyType

import torch
from torch import Tensor, nn

from tuner.hyperparameters import Hyperparameter
from tuner.training.graphs import steps_of
from tuner.training.optimizers import Adam, build_optimizer
from tuner.training.step import Steps, evaluate, place, snapshot, to_device, uses
from tuner.trial import ACCUMULATION, CHECKPOINTING, CUDA_GRAPHS, RANKS, Config
from tuner.workloads import contract
from tuner.workloads.base import Batch, Workload, needs_workload
from tuner.workloads.batches import tensors_of
from tuner.workloads.contract import calling
from tuner.workloads.micro_batches import micro_batch, sample_count, training_steps
from tuner.workloads.protocols import OptionalMethods, call, finish_of, optional, training_samples
from tuner.workloads.task import TrainingTask

# The width of a layer and the number of samples that are enough for the intra-op threads to start.
WARM_UP_SIZE = 512
STEPS = 5  # the number of timed steps, after the warm-up
MOST_SECONDS = 2.0  # after this time no further step is timed


def rehearse(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    data: object,
    *,
    config: Config = MappingProxyType({}),
    keep: Callable[[nn.Module], dict[str, Tensor]] | None = None,
    device: str | None = None,
    step: Steps | None = None,
    odd: Batch | None = None,
) -> None:
    """Takes as much memory as ``fit``, in two epochs of one step each and the final test.

    The second step has the optimizer's state and the kept weights of the first one. Batches come from
    ``representative_batches`` and are moved to ``device``, unless it is None. At most two micro-batches of a step are
    run, since all further ones are like the second. ``keep`` replaces ``snapshot``.

    Where steps differ until they have warmed up, the first epoch has all of those, and both epochs have a step with
    ``odd``, a batch of another shape, if there is one. ``step`` replaces what runs the steps.
    """
    weights: dict[str, Tensor] = {}
    with calling(workload, "rehearsal"):
        data = call(workload, OptionalMethods.rehearsal, data, data)
    step = step or steps_of(workload, model, optimizer, config, device)
    micro_batches = int(config.get(ACCUMULATION, 1)) // int(config.get(RANKS, 1))  # see ``divided``
    for steps in (step.warm_up, 1):
        model.train()
        for _ in range(steps):
            float(step(*islice(batches, min(micro_batches, 2))))
        if step.warm_up > 1 and odd is not None:
            float(step(odd))
        evaluate(workload, model, data, "validation", config=config)
        weights = (keep or snapshot)(model)
    model.load_state_dict(weights)
    evaluate(workload, model, data, "test", config=config)


def representative_batches(workload: Workload, config: Config, data: object) -> Iterator[Batch]:
    """An endless iterator of batches, or micro-batches, with the peak memory of a training.

    These are the largest batches if a workload's batches vary in size. Otherwise they are an epoch's batches without
    a smaller last one: the peak is a step with the optimizer's state and a whole batch.
    """
    config = micro_batch(workload, config)
    while True:
        if workload.batches_vary:
            yield _largest(workload, config, data)
        else:
            yield from _whole(workload, config, data)


def _whole(workload: Workload, config: Config, data: object) -> Iterator[Batch]:
    """An epoch's batches that are as large as the first. No reference to them is kept, as that would be measured."""
    sizes: list[int] = []

    def is_whole(batch: Batch) -> bool:
        sizes.append(sample_count(workload, batch))
        return sizes[-1] == sizes[0]

    return takewhile(is_whole, contract.epoch(workload, config, data))


def odd_batch(workload: Workload, config: Config, data: object) -> Batch | None:
    """With ``cuda_graphs``, a batch that is smaller than the first one, as an epoch's last one can be; else None."""
    if not uses(config, CUDA_GRAPHS) or workload.batches_vary or int(config.get(ACCUMULATION, 1)) > 1:
        return None
    key, samples = workload.memory_scales_with, training_samples(workload, data)
    if key and samples and (rest := samples % int(config[key])) and samples > rest:
        return next(contract.epoch(workload, {**config, key: rest}, data))  # without drawing all others
    if key and samples:
        return None
    first = 0
    for batch in contract.epoch(workload, config, data):
        size = sample_count(workload, batch)
        first = first or size
        if size != first:
            return batch
    return None


def _largest(workload: Workload, config: Config, data: object) -> Batch:
    """The workload's ``largest_batch``; by default the largest batch of an epoch, which later epochs may exceed."""
    method = optional(workload, OptionalMethods.largest_batch)
    if method is None:
        return max(contract.epoch(workload, config, data), key=_bytes_of)
    with calling(workload, "largest_batch"):
        return contract.check_batch(workload, method(config, data), "largest_batch returned")


def _bytes_of(batch: Batch) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def epoch_seconds(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Config,
    data: object,
    device: str,
    *,
    most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """An epoch's training and its evaluation: timed steps, times the training samples over theirs.

    None if the number of training samples is unknown. The model is trained by it. Exceptions are the workload's.
    """
    samples = training_samples(workload, data)
    if not samples:
        return None

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        return clock()

    step = steps_of(workload, model, optimizer, config, device)
    model.train()
    # As many epochs as may be needed if each has one step. Batches are drawn within the time, as in training.
    groups = chain.from_iterable(training_steps(workload, config, data) for _ in range(step.warm_up + STEPS))
    for group in islice(groups, step.warm_up):
        step(*group)
    began = trained = now()
    timed = 0
    for group in islice(groups, STEPS):
        step(*group)
        timed += sum(sample_count(workload, batch) for batch in group)
        trained = now()
        if trained - began >= most_seconds:
            break
    evaluate(workload, model, data, "validation", config=config)
    return (trained - began) / timed * samples + now() - trained


def warm_up(device: str, threads: int | None = None, tasks: Iterable[TrainingTask] = ()) -> None:
    """Takes a few steps, so that libraries and threads that start late belong to the process's base, not to a trial.

    The smallest configuration of each task is rehearsed, too. Otherwise its imports would run under a trial's cap,
    where they must not fail half-way, and would keep the heap from shrinking after the trial. Exceptions are ignored
    here, since the trials will raise them again. ``threads`` sets the threads of CPU operations.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    model = nn.Linear(WARM_UP_SIZE, WARM_UP_SIZE).to(device)
    optimizer = Adam(model.parameters(), lr=0.1, fused=True)
    model(torch.ones(WARM_UP_SIZE, WARM_UP_SIZE, device=device)).relu().sum().backward()
    optimizer.step()
    for task in tasks:
        with suppress(Exception):
            _rehearse_smallest(task, device)


def _rehearse_smallest(task: TrainingTask, device: str) -> None:
    workload, data = needs_workload(task.workload, "a rehearsal"), task.data
    # Integers are mostly sizes. The batch size keeps its default: the smallest could give 100,000 batches an epoch.
    config = {
        name: kind.low
        if isinstance(kind, Hyperparameter)
        and isinstance(kind.default, int)
        and math.isfinite(kind.low)
        and name != workload.memory_scales_with
        else kind.default
        for name, kind in workload.own_schema.items()
    }
    config = finish_of(workload)({**config, CHECKPOINTING: int(task.checkpointing)})
    model = place(workload, config, data, device, rehearsal=True)
    two_epochs = (batch for _ in range(2) for batch in contract.epoch(workload, config, data))
    batches = (to_device(batch, device) for batch in two_epochs)
    rehearse(workload, model, build_optimizer(workload, model, config), batches, data, config=config)
