"""Modules that are never trained, such as a teacher, wait in the host's memory while a GPU does without them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


def offload(module: nn.Module, device: str) -> None:
    """From now on the module is on the device only while its ``forward`` runs, as copies that are dropped after it.

    It is moved to the CPU. Nothing is copied back, as its values do not change; so its buffers must not either: keep
    it in evaluation mode, and call it, not its ``forward``.
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
        torch.cuda.empty_cache()  # what it took of the GPU until now


def values(module: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Every parameter and buffer of a module and those inside it: what holds it, its name there, itself."""
    held = [
        cast(dict[str, Tensor | None], owner)
        for each in module.modules()
        for owner in (each._parameters, each._buffers)
    ]
    return [(owner, name, value) for owner in held for name, value in owner.items() if value is not None]
