"""Gradient checkpointing: what backward needs of a module is computed again instead of kept (Chen et al. 2016).

torch's own function imports torch.compile's machinery at its first call, 76 MB and a second: a worker that is to have
such trials makes that call before them, see ``rehearsal.warm_up``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What these modules compute in this block keeps their inputs only; backward, later, runs them once more.

    The modules are as before after it. They must be deterministic but for torch's random numbers, which are drawn the
    same again, and change no buffers in training, as ``nn.BatchNorm1d`` does, since they would be changed twice.
    """
    with ExitStack() as restore:
        for module in dict.fromkeys(modules):
            own = module.__dict__.get("forward")
            restore.callback(_set_forward, module, own)
            _set_forward(module, partial(checkpoint, module.forward, use_reentrant=False))
        yield


def _set_forward(module: nn.Module, forward: Callable[..., object] | None) -> None:
    """Gives the module a ``forward`` of its own, or with None that of its class."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward
