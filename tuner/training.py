"""The one training loop: every workload's trials, traces and measurements run in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from tuner.errors import TunerError
from tuner.trial import EpochReport, Trial
from tuner.workloads.base import Batch, Config, Workload


class Diverged(TunerError):
    """The training loss is no longer a finite number."""


@dataclass(frozen=True)
class Fit:
    """What training leaves behind.

    Attributes:
        metrics: ``val_…`` and ``test_…`` of the best epoch, its number ``best_epoch``, and the last ``train_loss``.
        weights: the model's state after the best epoch, on the CPU.
    """

    metrics: dict[str, float]
    weights: dict[str, Tensor]


def fit(workload: Workload, trial: Trial, data: Any, device: str) -> Iterator[EpochReport | Fit]:
    """Trains one configuration; yields a report as training begins and after every epoch, and at last a ``Fit``.

    The learning rate falls linearly from epoch to epoch, towards 0 after the last.

    The epoch that is best on the validation split is the one that is kept; the test split is looked at once, with
    that epoch's weights, and decides nothing.

    Args:
        workload: what to train.
        trial: its complete configuration, and the seed of weights, batches and dropout.
        data: what ``workload.load_data`` returned.
        device: a torch device, such as "cpu" or "cuda:0".

    Raises:
        Diverged: an epoch's mean loss is not finite.
    """
    torch.manual_seed(trial.seed)
    model = workload.build_model(trial.config, data).to(device)
    optimizer = build_optimizer(model, trial.config)
    epochs = trial.config["epochs"]
    best: dict[str, float] = {workload.metric: math.inf}
    weights: dict[str, Tensor] = {}
    yield EpochReport(trial.trial_id, 0, epochs)
    for epoch in range(1, epochs + 1):
        set_learning_rate(optimizer, trial.config["lr"] * (1 - (epoch - 1) / epochs))
        loss = train_epoch(workload, model, optimizer, trial.config, data, device)
        if not math.isfinite(loss):
            raise Diverged(f"the training loss became {loss} in epoch {epoch}: lower lr")
        metrics = {"train_loss": loss, **evaluate(workload, model, data, "validation")}
        if metrics[workload.metric] < best[workload.metric]:
            best = {**metrics, "best_epoch": epoch}
            weights = snapshot(model)
        yield EpochReport(trial.trial_id, epoch, epochs, metrics)
    if not weights:
        raise Diverged(f"{workload.metric} was never a finite number: lower lr")
    model.load_state_dict(weights)
    best |= evaluate(workload, model, data, "test")
    yield Fit(best, weights)


def rehearse(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    data: Any,
    *,
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
        keep: in place of ``snapshot``.
    """
    weights: dict[str, Tensor] = {}
    for batch in islice(batches, 2):
        model.train()
        float(train_step(workload, model, optimizer, batch))
        evaluate(workload, model, data, "validation")
        weights = (keep or snapshot)(model)
    model.load_state_dict(weights)
    evaluate(workload, model, data, "test")


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Adam with the configuration's ``lr`` and ``weight_decay``, in its single-kernel form."""
    return torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"], fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def train_epoch(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Config,
    data: Any,
    device: str,
) -> float:
    """One pass over the training batches; returns the mean loss of its steps, read from the device once."""
    model.train()
    losses = [
        train_step(workload, model, optimizer, to_device(batch, device)) for batch in workload.batches(config, data)
    ]
    return float(torch.stack(losses).mean())


def representative_batches(workload: Workload, config: Config, data: Any) -> Iterator[Batch]:
    """Batches to judge memory by: on and on, as an epoch may be a single one, and the largest of an epoch first.

    Only where a workload says that its batches vary is an epoch drawn to find the largest.
    """
    if workload.batches_vary:
        yield max(workload.batches(config, data), key=lambda batch: sum(part.nbytes for part in batch))
    while True:
        yield from workload.batches(config, data)


def train_step(workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Forward, backward and an optimizer step on one batch; returns the loss, a scalar on the device."""
    optimizer.zero_grad(set_to_none=True)
    loss = workload.loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach().clone()  # mse_loss keeps a buffer of the batch's size behind its scalar


def evaluate(workload: Workload, model: nn.Module, data: Any, split: str) -> dict[str, float]:
    """The workload's metrics on a split, in evaluation mode, without gradients; names get ``val_`` or ``test_``."""
    prefix = {"validation": "val_", "test": "test_"}[split]
    model.eval()
    with torch.inference_mode():
        return {prefix + name: float(value) for name, value in workload.evaluate(model, data, split).items()}  # type: ignore[arg-type]


def to_device(batch: Batch, device: str) -> Batch:
    """The batch's tensors on the device; on the CPU they are passed on as they are."""
    return batch if device == "cpu" else tuple(part.to(device, non_blocking=True) for part in batch)


def warm_up(device: str) -> None:
    """Takes an optimizer step, so that what torch loads late belongs to a process's base and not to a trial."""
    model = nn.Linear(1, 1).to(device)
    optimizer = build_optimizer(model, {"lr": 0.1, "weight_decay": 0.0})
    model(torch.ones(1, 1, device=device)).sum().backward()
    optimizer.step()
