"""Gradient checkpointing: what backward needs of a module is computed again instead of kept (Chen et al. 2016).

The same as ``torch.utils.checkpoint.checkpoint(use_reentrant=False)``, by the same means, for one backward of first
order. That function imports torch.compile's machinery at its first call, 76 MB and a second, which a trial would meet
under its cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

DEVICE_KINDS = ("cpu", "cuda")


class _Done(Exception):
    """All that is needed has been computed again."""


@contextmanager
def recomputing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What these modules compute in this block keeps their inputs only; backward, later, runs them once more.

    The modules are as before after it: names, parameters and weights do not change.

    Args:
        modules: deterministic but for torch's random numbers, which are drawn the same again; they must not change
            buffers in training, as ``nn.BatchNorm1d`` does, since they would be changed twice.
    """
    with ExitStack() as restore:
        for module in dict.fromkeys(modules):
            own = module.__dict__.get("forward")
            restore.callback(_set_forward, module, own)
            _set_forward(module, partial(recomputed, module.forward))
        yield


def recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``forward(*args, **kwargs)``, of which autograd keeps the arguments only."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    region = _Region(partial(forward, *args, **kwargs))
    with saved_tensors_hooks(region.pack, region.unpack):
        return forward(*args, **kwargs)


def _set_forward(module: nn.Module, forward: Any) -> None:
    """Gives the module a ``forward`` of its own, or with None that of its class."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


class _Region:
    """One call of which nothing is kept but how to repeat it: arguments, random numbers' state, autocast."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._packed: list[tuple[torch.Size, torch.dtype]] = []
        self._values: dict[int, Tensor] = {}
        self._cuda = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._random = torch.get_rng_state()
        self._cuda_random = [torch.cuda.get_rng_state(device) for device in self._cuda]
        self._autocast = {
            kind: torch.get_autocast_dtype(kind) for kind in DEVICE_KINDS if torch.is_autocast_enabled(kind)
        }

    def pack(self, tensor: Tensor) -> int:
        """Autograd wants to keep this: it gets a number instead."""
        self._packed.append((tensor.shape, tensor.dtype))
        return len(self._packed) - 1

    def unpack(self, place: int) -> Tensor:
        """Backward wants it back, each once."""
        if place not in self._values:
            self._values = dict(enumerate(self._recompute()))
        return self._values.pop(place)

    def _recompute(self) -> list[Tensor]:
        """What was packed, in that order; stops at the last of them."""
        values: list[Tensor] = []

        def collect(tensor: Tensor) -> int:
            values.append(tensor.detach())
            if len(values) == len(self._packed):
                raise _Done
            return len(values) - 1

        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=self._cuda))
            torch.set_rng_state(self._random)
            for device, state in zip(self._cuda, self._cuda_random, strict=True):
                torch.cuda.set_rng_state(state, device)
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(suppress(_Done))
            stack.enter_context(saved_tensors_hooks(collect, _never))
            self._run()
        if [(value.shape, value.dtype) for value in values] != self._packed:
            raise RuntimeError("gradient_checkpointing: a module computed something else when it ran once more")
        return values


def _never(place: Any) -> Tensor:
    raise RuntimeError("gradient_checkpointing: backward of a module that runs once more")
