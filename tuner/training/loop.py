"""The one training loop: every workload's trials, traces and measurements run in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count, islice, takewhile
from types import MappingProxyType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from tuner.errors import TunerError
from tuner.training.checkpoints import Checkpoint, TrainingState
from tuner.training.offload import offload
from tuner.training.optimizers import Adam
from tuner.training.recompute import recomputing
from tuner.trial import (
    ACCUMULATION,
    CHECKPOINTING,
    OFFLOADING,
    AnyHyperparameter,
    Config,
    EpochReport,
    Hyperparameter,
    Phase,
    Trial,
)
from tuner.workloads import contract
from tuner.workloads.base import Batch, Split, Workload
from tuner.workloads.contract import asked
from tuner.workloads.micro_batches import micro_batch, sample_count, training_steps
from tuner.workloads.protocols import (
    Checkpointing,
    Curriculum,
    DataDescription,
    Teachers,
    VaryingBatches,
    finish_of,
    frozen,
    optional,
)
from tuner.workloads.task import TrainingTask

# Enough for the intra-op threads to start: a layer so wide, and so many samples.
WARM_UP_SIZE = 512


class Diverged(TunerError):
    """The training loss is no longer a finite number, or has exploded."""


class Pruned(TunerError):
    """The trial was asked to end before its last epoch.

    Attributes:
        metrics: of its best epoch, whose number is ``best_epoch``; the test split has not been looked at.
    """

    def __init__(self, metrics: Mapping[str, float]) -> None:
        """Takes what had been reached."""
        super().__init__("pruned")
        self.metrics = dict(metrics)


@dataclass(frozen=True)
class Fit:
    """What training leaves behind.

    Attributes:
        metrics: ``val_…`` and ``test_…`` of the best epoch, its number ``best_epoch``, and the last ``train_loss``.
        weights: the model's state after the best epoch, on the CPU.
    """

    metrics: dict[str, float]
    weights: dict[str, Tensor]


def fit(
    workload: Workload,
    trial: Trial,
    data: object,
    device: str,
    checkpoint: Checkpoint | None = None,
    *,
    progress: TrainingState | None = None,
    held_out: bool = True,
    last_epoch: int | None = None,
    prune_asked: Callable[[], bool] = lambda: False,
) -> Generator[EpochReport | Fit, None, None]:
    """Trains one configuration; yields a report as training begins and after every epoch, and at last a ``Fit``.

    The learning rate falls linearly from epoch to epoch, towards 0 after the last.

    The epoch that is best on the validation split is the one that is kept; the test split is looked at once, with
    that epoch's weights, and decides nothing.

    Args:
        workload: what to train.
        trial: its complete configuration, and the seed of weights, batches and dropout. With ``accumulation`` in the
            configuration every step's batch is taken in so many micro-batches.
        data: what ``workload.load_data`` returned.
        device: a torch device, such as "cpu" or "cuda:0".
        checkpoint: where to go on from, if there is something, and to keep what has been reached.
        progress: a new one that is kept up to date for whoever breaks training off; not beside a checkpoint.
        held_out: False where nothing is: nothing is evaluated then, and the last epoch is the one that is kept.
        last_epoch: stop after it, with the learning rates that the whole of the epochs has; None trains them all.
        prune_asked: whether training is to end now; asked after every step.

    Raises:
        Pruned: it was.
        Diverged: an epoch's mean loss is not finite, or ``divergence_factor`` times that of the first step.
        Stopped: the checkpoint was told that the study ends.
        Exception: what the workload or torch raises; ``phase_of`` tells what was being done.
    """
    epochs = trial.epochs
    last = epochs if last_epoch is None else last_epoch
    epoch_data = optional(workload, Curriculum.epoch_data)
    with _phases() as enter:
        model, optimizer, progress = _begin(workload, trial, data, device, checkpoint, progress)
        yield EpochReport(trial.trial_id, progress.epoch, last)
        steps = count(1)
        enter("first step")

        def after_step(phase: Phase) -> None:
            enter(phase)
            if prune_asked():
                raise Pruned(progress.best)

        for epoch in range(progress.epoch + 1, last + 1):
            if checkpoint:
                checkpoint.stop_if_asked(model, optimizer, progress)
            set_learning_rate(optimizer, float(trial.config["lr"]) * (1 - (epoch - 1) / epochs))
            now = epoch_data(model, trial.config, data, epoch) if epoch_data else data
            loss, first = train_epoch(workload, model, optimizer, trial.config, now, device, after_step, steps)
            progress.first_loss = first if progress.first_loss is None else progress.first_loss
            _check(loss, progress.first_loss, epoch, workload.divergence_factor)
            enter("evaluation")
            metrics = {"train_loss": loss, **(evaluate(workload, model, data, "validation") if held_out else {})}
            if not held_out or metrics[workload.metric] < progress.best.get(workload.metric, math.inf):
                weights = snapshot(model)  # first, so that metrics and weights are of one epoch at any moment
                progress.best, progress.weights = {**metrics, "best_epoch": epoch}, weights
            progress.epoch = epoch
            if checkpoint:
                checkpoint.save_if_due(model, optimizer, progress)
            enter("training")
            yield EpochReport(trial.trial_id, epoch, last, metrics)
        enter("evaluation")
        if not progress.weights:
            raise Diverged(_never_finite(workload, model))
        model.load_state_dict(progress.weights)
        tested = evaluate(workload, model, data, "test") if held_out else {}
        yield Fit(progress.best | tested, progress.weights)


def phase_of(error: BaseException) -> Phase:
    """What ``fit`` was doing when it raised this; empty if it was not ``fit`` that did."""
    phase: Phase = getattr(error, "tuner_phase", "")
    return phase


@contextmanager
def _phases() -> Iterator[Callable[[Phase], None]]:
    """A block that says what it is doing, from "start" on; an exception carries the last word out of it."""
    entered: list[Phase] = ["start"]
    try:
        yield entered.append
    except Exception as error:
        error.tuner_phase = entered[-1]  # type: ignore[attr-defined]
        raise


def _begin(
    workload: Workload,
    trial: Trial,
    data: object,
    device: str,
    checkpoint: Checkpoint | None,
    progress: TrainingState | None = None,
) -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
    """The model and its optimizer, new, or as a checkpoint that can be used has them."""
    torch.manual_seed(trial.seed)
    model = place(workload, trial.config, data, device)
    optimizer = build_optimizer(model, trial.config)
    progress = checkpoint.restore(model, optimizer) if checkpoint else progress or TrainingState()
    if progress is None:  # they may be half restored
        del model, optimizer
        return _begin(workload, trial, data, device, None)
    return model, optimizer, progress


def place(workload: Workload, config: Config, data: object, device: str, *, rehearsal: bool = False) -> nn.Module:
    """A new model on its device, ready for its first step.

    Args:
        workload: whose.
        config: a complete configuration.
        data: what ``workload.load_data`` returned.
        device: a torch device.
        rehearsal: only the memory that it takes is asked for.
    """
    model = contract.built(workload, config, data).to(device)
    if uses(config, OFFLOADING) and device != "cpu":
        for module in frozen(workload, model):
            offload(module, device)
    prepare(workload, model, config, data, rehearsal=rehearsal)
    return model


def prepare(workload: Workload, model: nn.Module, config: Config, data: object, *, rehearsal: bool = False) -> None:
    """``prepare`` of a workload that has it, in evaluation mode and without gradients."""
    model.eval()
    if own := optional(workload, Teachers.prepare):
        with torch.no_grad(), asked(workload, "prepare"):
            own(model, config, data, rehearsal=rehearsal)


def _check(loss: float, first: float, epoch: int, divergence_factor: float) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the training loss became {loss} in epoch {epoch}: lower lr")
    if loss > divergence_factor * max(1.0, abs(first)):
        raise Diverged(f"the training loss rose from {first:.3g} to {loss:.3g} in epoch {epoch}: lower lr")


def _never_finite(workload: Workload, model: nn.Module) -> str:
    """Why no epoch was the best, though the training loss was finite after each."""
    metric = workload.metric
    if all(bool(value.isfinite().all()) for value in model.parameters()):
        return f"{metric} was never a finite number, but the training loss and the weights were: look at evaluate"
    return f"{metric} was never a finite number: lower lr"


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
    measurements are made of this.

    Args:
        workload: what is trained.
        model: on its device, with new weights.
        optimizer: of its parameters.
        batches: on the device, from ``representative_batches``.
        data: what ``workload.load_data`` returned.
        config: of it the training loop's options; of more than two micro-batches the second is like all further ones.
        keep: in place of ``snapshot``.
    """
    weights: dict[str, Tensor] = {}
    if shorten := optional(workload, DataDescription.rehearsal):
        with asked(workload, "rehearsal"):
            data = shorten(data)
    amp, checkpointing = uses(config, "amp"), uses(config, CHECKPOINTING)
    for _ in range(2):
        model.train()
        micro_batches = islice(batches, min(int(config.get(ACCUMULATION, 1)), 2))
        float(train_step(workload, model, optimizer, *micro_batches, amp=amp, checkpointing=checkpointing))
        evaluate(workload, model, data, "validation")
        weights = (keep or snapshot)(model)
    model.load_state_dict(weights)
    evaluate(workload, model, data, "test")


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Adam with the configuration's ``lr`` and ``weight_decay``, in its single-kernel form."""
    return Adam(model.parameters(), lr=float(config["lr"]), weight_decay=float(config["weight_decay"]), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def train_epoch(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Config,
    data: object,
    device: str,
    enter: Callable[[Phase], None],
    steps: Iterator[int],
) -> tuple[float, float]:
    """One pass over the training batches.

    Args:
        workload: what is trained.
        model: on its device.
        optimizer: of its parameters.
        config: a complete configuration.
        data: what ``workload.load_data`` returned.
        device: a torch device.
        enter: is told "training" after each step.
        steps: counts the trial's steps from 1.

    Returns:
        The mean loss of its steps and the loss of the first, read from the device once.
    """
    model.train()
    amp, checkpointing = uses(config, "amp"), uses(config, CHECKPOINTING)
    losses = []
    for group in training_steps(workload, config, data):
        loss = train_step(workload, model, optimizer, *group, device=device, amp=amp, checkpointing=checkpointing)
        losses.append(loss)
        enter("training")
        if (every := int(config.get("clear_cache_every_n", 0))) and next(steps) % every == 0 and device != "cpu":
            torch.cuda.empty_cache()
    if not losses:  # training_steps is the workload's own
        contract.refuse_none(workload)
    stacked = torch.stack(losses)
    mean, first = torch.stack([stacked.mean(), stacked[0]]).tolist()
    return mean, first


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
    with asked(workload, "largest_batch"):
        return contract.check_batch(workload, own(config, data), "largest_batch returned")


def train_step(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *batches: Batch,
    device: str | None = None,
    amp: bool = False,
    checkpointing: bool = False,
) -> Tensor:
    """Forward, backward and an optimizer step on one batch, or on one that comes in several micro-batches.

    Args:
        workload: whose loss.
        model: on its device.
        optimizer: of its parameters.
        batches: one, or the micro-batches, whose gradients and losses count by their samples.
        device: where to take each of them first; None where they are there already.
        amp: compute the loss in bfloat16 where autocast does; weights, gradients and the optimizer stay as they are.
        checkpointing: compute the activations of ``workload.checkpointed`` again in backward, to keep fewer.

    Returns:
        The loss, a scalar on the device.
    """
    optimizer.zero_grad(set_to_none=True)
    checkpointed = optional(workload, Checkpointing.checkpointed) if checkpointing else None
    modules = list(checkpointed(model)) if checkpointed else []
    shares = _shares(workload, batches)
    total: Tensor | None = None
    for batch, share in zip(batches, shares, strict=True):
        batch = to_device(batch, device) if device else batch
        with _autocast(model, amp), recomputing(modules), asked(workload, "loss"):
            loss = contract.check_loss(workload, workload.loss(model, batch))
        loss = loss if share == 1 else loss * share
        with asked(workload, "the backward pass of loss"):
            loss.backward()  # type: ignore[no-untyped-call]
        # Only the number is kept: mse_loss keeps a buffer of the batch's size behind its scalar.
        total = loss.detach().clone() if total is None else total + loss.detach()
        del loss
    optimizer.step()
    assert total is not None
    return total


def uses(config: Config, option: str) -> bool:
    """Whether a configuration has this option of the loop switched on."""
    return bool(config.get(option, 0))


def _autocast(model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
    # bfloat16 has float32's range: unlike float16 it needs no scaling of the loss.
    kind = next(model.parameters()).device.type
    return torch.autocast(kind, torch.bfloat16) if enabled else nullcontext()


def _shares(workload: Workload, batches: Sequence[Batch]) -> list[float]:
    """The share that each has of all their samples."""
    if len(batches) == 1:
        return [1.0]
    counts = [sample_count(workload, batch) for batch in batches]
    return [count / sum(counts) for count in counts]


def evaluate(workload: Workload, model: nn.Module, data: object, split: Split) -> dict[str, float]:
    """The workload's metrics on a split, in evaluation mode, without gradients; names get ``val_`` or ``test_``."""
    prefix = {"validation": "val_", "test": "test_"}[split]
    model.eval()
    with torch.inference_mode():
        found = contract.evaluated(workload, model, data, split)
    return {prefix + name: value for name, value in found.items()}


def to_device(batch: Batch, device: str) -> Batch:
    """The batch's tensors on the device; on the CPU they are passed on as they are."""
    return batch if device == "cpu" else tuple(part.to(device, non_blocking=True) for part in batch)


def warm_up(device: str, threads: int | None = None, tasks: Iterable[TrainingTask] = ()) -> None:
    """Takes a few steps, so that what is loaded or started late belongs to a process's base and not to a trial.

    Without a workload's own steps its imports would come under a trial's cap, where they must not fail half-way, and
    lie at the end of the heap that the trial leaves, which could not shrink any more.

    Args:
        device: a torch device.
        threads: for the process's CPU operations, from now on; their stacks count as its memory. None leaves them.
        tasks: the smallest configuration of each is rehearsed too; whatever that raises, its trials will raise.
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


def _is_size(kind: AnyHyperparameter) -> TypeGuard[Hyperparameter]:
    return isinstance(kind, Hyperparameter) and isinstance(kind.default, int)


def _rehearse_smallest(task: TrainingTask, device: str) -> None:
    workload, data = task.workload, task.data
    # Whole numbers are mostly sizes. But the smallest batch would make an epoch of a hundred thousand.
    config = {
        name: kind.low if _is_size(kind) and name != workload.memory_scales_with else kind.default
        for name, kind in workload.hyperparameters.items()
    }
    config |= {CHECKPOINTING: int(task.checkpointing)}
    config = finish_of(workload)(config)
    model = place(workload, config, data, device, rehearsal=True)
    two_epochs = (batch for _ in range(2) for batch in contract.epoch(workload, config, data))
    batches = (to_device(batch, device) for batch in two_epochs)
    rehearse(workload, model, build_optimizer(model, config), batches, data, config=config)
