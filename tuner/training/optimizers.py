"""A configuration's optimizer, without the import of torch.compile's machinery, and each epoch's learning rate."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tuner.errors import WorkloadError
from tuner.trial import Config
from tuner.workloads import contract
from tuner.workloads.base import Workload
from tuner.workloads.protocols import OptionalMethods, optional

# By the value of a configuration's ``lr_schedule``: the factor after a part of the training, from 0 to less than 1.
FACTORS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}


class _Uncompiled(Optimizer):
    """torch wraps these methods so that they are not compiled, and the wrapper imports ``torch._dynamo``.

    That is a process of 302 instead of 230 MB, which starts a second later. These classes have the methods, and their
    ``step``, without the wrapper, with the same results; so do not compile a function that calls ``step``. If a
    release of torch wraps other methods, the results stay right, but the import may come back.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class Adam(_Uncompiled, torch.optim.Adam):
    """``torch.optim.Adam``, uncompiled."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(_Uncompiled, torch.optim.AdamW):
    """``torch.optim.AdamW``, uncompiled."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class SGD(_Uncompiled, torch.optim.SGD):
    """``torch.optim.SGD``, uncompiled."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


# By the value of a configuration's ``optimizer``.
OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


def build_optimizer(workload: Workload, model: nn.Module, config: Config) -> Optimizer:
    """The workload's own optimizer; without one the configuration's, with its ``lr`` and ``weight_decay``."""
    if method := optional(workload, OptionalMethods.optimizer):
        return contract.made(workload, "optimizer", Optimizer, lambda: method(model, config))
    name = str(config.get("optimizer", "adam"))
    make = contract.chosen(workload, "optimizer", name, OPTIMIZERS, "optimizer(model, config)")
    options = {"momentum": float(config.get("momentum", 0.0))} if name == "sgd" else {}
    parameters: Iterable[object] = model.parameters()
    if groups := optional(workload, OptionalMethods.parameter_groups):
        with contract.calling(workload, "parameter_groups"):
            parameters = list(groups(model, config))
    return make(parameters, lr=float(config["lr"]), weight_decay=float(config["weight_decay"]), fused=True, **options)


class LearningRates:
    """Sets the learning rates of an optimizer's groups: by the workload's own schedule, or by the configuration's."""

    def __init__(self, workload: Workload, optimizer: Optimizer, config: Config) -> None:
        """Takes the first epoch's rates from a new optimizer, before a checkpoint changes them."""
        self._workload = workload
        self._optimizer = optimizer
        self._epochs = int(config["epochs"])
        make = optional(workload, OptionalMethods.lr_schedule)
        self._own: LRScheduler | None = None
        if make:
            self._own = contract.made(workload, "lr_schedule", LRScheduler, lambda: make(optimizer, config))
        self._first = [group["lr"] for group in optimizer.param_groups]
        name, method = str(config.get("lr_schedule", "linear")), "lr_schedule(optimizer, config)"
        self._factor = None if make else contract.chosen(workload, "lr_schedule", name, FACTORS, method)

    def begin(self, epoch: int) -> None:
        """Sets the rates of an epoch, counted from 1. An own schedule has set them at the end of the one before."""
        if self._factor is not None:
            factor = self._factor((epoch - 1) / self._epochs)
            for group, first in zip(self._optimizer.param_groups, self._first, strict=True):
                group["lr"] = first * factor

    def end(self, metrics: Mapping[str, float]) -> dict[str, object]:
        """Steps an own schedule after an epoch with these metrics, and returns its state; empty without one."""
        if self._own is None:
            return {}
        with contract.calling(self._workload, "the step of lr_schedule"):
            if isinstance(self._own, ReduceLROnPlateau):
                metric = self._workload.metric
                if metric not in metrics:
                    raise WorkloadError(f"ReduceLROnPlateau needs {metric}, and no sample is held out to measure it")
                self._own.step(metrics[metric])
            else:
                self._own.step()
            state: dict[str, object] = self._own.state_dict()
        return state

    def restore(self, state: Mapping[str, object], *, taken_over: bool = False) -> None:
        """Goes on after the epoch whose end returned this state.

        One that is ``taken_over`` from another trial has that trial's rates: each becomes the same part of its own.
        """
        if self._own is None or not state:
            return
        self._own.load_state_dict(dict(state))
        bases = getattr(self._own, "base_lrs", None)
        if taken_over and bases:
            rates = zip(self._optimizer.param_groups, self._first, bases, self._own.get_last_lr(), strict=True)
            for group, first, base, last in rates:
                group["lr"] = first * last / base if base else first
            self._own.base_lrs = list(self._first)
