"""What training takes of memory, in short: for estimates, for measurements, and before a worker's first trial."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from types import MappingProxyType

import torch
from torch import Tensor, nn

from tuner.training.step import build_optimizer, evaluate, place, snapshot, to_device, train_step
from tuner.trial import ACCUMULATION, CHECKPOINTING, Config, Hyperparameter
from tuner.workloads import contract
from tuner.workloads.base import Batch, Workload
from tuner.workloads.contract import calling
from tuner.workloads.micro_batches import micro_batch, sample_count
from tuner.workloads.protocols import DataDescription, VaryingBatches, finish_of, optional
from tuner.workloads.task import TrainingTask

# Enough for the intra-op threads to start: a layer so wide, and so many samples.
WARM_UP_SIZE = 512


def rehearse(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    data: object,
    *,
    config: Config = MappingProxyType({}),
    keep: Callable[[nn.Module], dict[str, Tensor]] | None = None,
) -> None:
    """What ``fit`` does to memory, in short: two epochs of one step each, and the test at the end.

    The second step has the optimizer's state and the kept weights that the first one leaves. Estimates and
    measurements are made of this. Batches are on the device, from ``representative_batches``; of more than two
    micro-batches the second is like all further ones. ``keep`` stands in for ``snapshot``.
    """
    weights: dict[str, Tensor] = {}
    if shorten := optional(workload, DataDescription.rehearsal):
        with calling(workload, "rehearsal"):
            data = shorten(data)
    for _ in range(2):
        model.train()
        micro_batches = islice(batches, min(int(config.get(ACCUMULATION, 1)), 2))
        float(train_step(workload, model, optimizer, *micro_batches, config=config))
        evaluate(workload, model, data, "validation")
        weights = (keep or snapshot)(model)
    model.load_state_dict(weights)
    evaluate(workload, model, data, "test")


def representative_batches(workload: Workload, config: Config, data: object) -> Iterator[Batch]:
    """Batches, or micro-batches, to judge memory by, on and on: the largest where a workload's batches vary.

    Where they do not, those of an epoch but for a smaller last one: a step with the optimizer's state and a whole
    batch takes the most, and an epoch of a batch and a rest would show one without that state.
    """
    config = micro_batch(workload, config)
    while True:
        if workload.batches_vary:
            yield _largest(workload, config, data)
        else:
            yield from _whole(workload, config, data)


def _whole(workload: Workload, config: Config, data: object) -> Iterator[Batch]:
    """The batches of an epoch that are as large as the first; none is held here, as that would be measured too."""
    sizes: list[int] = []

    def is_whole(batch: Batch) -> bool:
        sizes.append(sample_count(workload, batch))
        return sizes[-1] == sizes[0]

    return takewhile(is_whole, contract.epoch(workload, config, data))


def _largest(workload: Workload, config: Config, data: object) -> Batch:
    """By default the largest of an epoch, which later epochs may exceed."""
    own = optional(workload, VaryingBatches.largest_batch)
    if own is None:
        return max(contract.epoch(workload, config, data), key=lambda batch: sum(part.nbytes for part in batch))
    with calling(workload, "largest_batch"):
        return contract.check_batch(workload, own(config, data), "largest_batch returned")


def warm_up(device: str, threads: int | None = None, tasks: Iterable[TrainingTask] = ()) -> None:
    """Takes a few steps, so that what is loaded or started late belongs to a process's base and not to a trial.

    Without a workload's own steps its imports would come under a trial's cap, where they must not fail half-way, and
    lie at the end of the heap that the trial leaves, which could not shrink any more. So the smallest configuration
    of each task is rehearsed too; whatever that raises, its trials will raise.

    ``threads`` are those of CPU operations from now on; their stacks count as the process's memory.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    model = nn.Linear(WARM_UP_SIZE, WARM_UP_SIZE).to(device)
    optimizer = build_optimizer(model, {"lr": 0.1, "weight_decay": 0.0})
    model(torch.ones(WARM_UP_SIZE, WARM_UP_SIZE, device=device)).relu().sum().backward()
    optimizer.step()
    for task in tasks:
        with suppress(Exception):
            _rehearse_smallest(task, device)


def _rehearse_smallest(task: TrainingTask, device: str) -> None:
    workload, data = task.workload, task.data
    # Whole numbers are mostly sizes. But the smallest batch would make an epoch of a hundred thousand.
    config = {
        name: kind.low
        if isinstance(kind, Hyperparameter) and isinstance(kind.default, int) and name != workload.memory_scales_with
        else kind.default
        for name, kind in workload.hyperparameters.items()
    }
    config = finish_of(workload)({**config, CHECKPOINTING: int(task.checkpointing)})
    model = place(workload, config, data, device, rehearsal=True)
    two_epochs = (batch for _ in range(2) for batch in contract.epoch(workload, config, data))
    batches = (to_device(batch, device) for batch in two_epochs)
    rehearse(workload, model, build_optimizer(model, config), batches, data, config=config)
