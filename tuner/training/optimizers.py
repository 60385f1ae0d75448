"""The optimizers that a configuration can choose, without the import of torch.compile's machinery."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tuner.trial import Config
from tuner.workloads import contract
from tuner.workloads.base import Workload
from tuner.workloads.protocols import OwnLoop, optional


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
    if own := optional(workload, OwnLoop.optimizer):
        return contract.made(workload, "optimizer", Optimizer, lambda: own(model, config))
    name = str(config.get("optimizer", "adam"))
    make = contract.chosen(workload, "optimizer", name, OPTIMIZERS, "optimizer(model, config)")
    options = {"momentum": float(config.get("momentum", 0.0))} if name == "sgd" else {}
    parameters: Iterable[Any] = model.parameters()
    if groups := optional(workload, OwnLoop.parameter_groups):
        with contract.calling(workload, "parameter_groups"):
            parameters = list(groups(model, config))
    return make(parameters, lr=float(config["lr"]), weight_decay=float(config["weight_decay"]), fused=True, **options)
