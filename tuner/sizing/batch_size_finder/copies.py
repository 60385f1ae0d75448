"""Copies of a training step's modules, so that what was given stays as it is."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tuner.errors import InputError
from tuner.machine.caps import is_out_of_memory
from tuner.sizing.batch_size_finder.training_step import TrainingStep


def copied(step: TrainingStep, device: torch.device) -> TrainingStep:
    """The same step with copies of its model and teacher on a device.

    Raises:
        InputError: they cannot be copied.
    """
    own = _copied(step, {})
    own.model.zero_grad(set_to_none=True)
    for module in own.models():
        module.to(device)
    return own


def sharing(step: TrainingStep) -> TrainingStep:
    """The same step with copies that use the memory of its floating parameters and buffers, for a trace.

    A trace changes no floating value, but modules may keep what they compute, which then has no content: in a copy
    that does no harm.

    Raises:
        InputError: they cannot be copied.
    """
    shared: dict[int, Any] = {}
    for module in step.models():
        for tensor in (*module.parameters(), *module.buffers()):
            if not tensor.is_floating_point():  # integers are computed in a trace
                continue
            if type(tensor) is nn.Parameter:
                shared[id(tensor)] = nn.Parameter(tensor.detach(), tensor.requires_grad)
            elif type(tensor) is Tensor:
                shared[id(tensor)] = tensor.detach()
    return _copied(step, shared)


def _copied(step: TrainingStep, memo: dict[int, Any]) -> TrainingStep:
    """Deep copies, where ``memo`` says by its id what stands for an object."""
    for model in step.models():
        memo |= {id(tensor): tensor.detach().clone() for tensor in _computed(model)}
    try:
        model, teacher = copy.deepcopy((step.model, step.teacher), memo)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model cannot be copied to be run: {type(error).__name__}: {reason}") from error
    return replace(step, model=model, teacher=teacher)


def _computed(model: nn.Module) -> list[Tensor]:
    """Attributes that torch refuses to copy, as they were computed from parameters: weight normalisation has them."""
    values = (value for module in model.modules() for value in vars(module).values())
    return [value for value in values if isinstance(value, Tensor) and not value.is_leaf]
