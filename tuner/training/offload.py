"""Keeps modules that are never trained, such as a teacher, in the host's memory between their uses on a GPU."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


def offload(module: nn.Module, device: str) -> None:
    """Moves the module to the CPU. Each call copies it to the device and drops the copies afterwards.

    Nothing is copied back, so neither parameters nor buffers may change: keep the module in evaluation mode. Call the
    module itself, not its ``forward``.
    """
    module.to("cpu")
    kept = values(module)

    def bring(*_: object) -> None:
        for owner, name, value in kept:
            owner[name] = value.to(device, copy=True)

    def drop(*_: object) -> None:
        for owner, name, value in kept:
            owner[name] = value

    module.register_forward_pre_hook(bring)
    module.register_forward_hook(drop, always_call=True)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()  # frees the memory that the module had on the GPU


def values(module: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Every parameter and buffer of a module and its submodules: (dict that holds it, its name there, tensor)."""
    owners = [owner for part in module.modules() for owner in (part._parameters, part._buffers)]
    held = cast(list[dict[str, Tensor | None]], owners)
    return [(owner, name, value) for owner in held for name, value in owner.items() if value is not None]
