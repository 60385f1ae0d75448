"""Gradient checkpointing: activations are recomputed in backward instead of kept (Chen et al. 2016).

torch's function imports torch.compile's machinery at its first call, which takes 76 MB and a second. A worker with
such trials makes that call before them, in ``rehearsal.warm_up``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """In the block, forward keeps only the inputs of these modules. Backward runs them again.

    The modules must be deterministic except for torch's random numbers, which are drawn again with the same values.
    They must not change buffers in training, as ``nn.BatchNorm1d`` does: the change would happen twice.
    """
    with ExitStack() as restore:
        for module in dict.fromkeys(modules):
            own = module.__dict__.get("forward")
            restore.callback(_set_forward, module, own)
            _set_forward(module, partial(checkpoint, module.forward, use_reentrant=False))
        yield


def _set_forward(module: nn.Module, forward: Callable[..., object] | None) -> None:
    """Sets the module's ``forward``; None restores the one of its class."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward
