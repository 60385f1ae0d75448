"""A model on its device: its preparation, a training step and its evaluation.

Activations can be recomputed in backward instead of kept. Modules that are never trained, such as a teacher, can be
in the host's memory between their uses on a GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tuner.training.exchange import Ranks
from tuner.trial import CHECKPOINTING, EVALUATION_PARTS, OFFLOADING, Config
from tuner.workloads import contract
from tuner.workloads.base import Batch, Split, Workload
from tuner.workloads.batches import changed
from tuner.workloads.contract import calling
from tuner.workloads.micro_batches import sample_count
from tuner.workloads.protocols import OptionalMethods, call


def place(workload: Workload, config: Config, data: object, device: str, *, rehearsal: bool = False) -> nn.Module:
    """A new model on its device, ready for its first step. With ``rehearsal`` only its memory matters."""
    model = contract.built(workload, config, data).to(device)
    if uses(config, OFFLOADING) and device != "cpu":
        for module in call(workload, OptionalMethods.frozen, (), model):
            offload(module, device)
    prepare(workload, model, config, data, rehearsal=rehearsal)
    return model


def prepare(workload: Workload, model: nn.Module, config: Config, data: object, *, rehearsal: bool = False) -> None:
    """Calls the workload's ``prepare``, if it has one, in evaluation mode and without gradients."""
    model.eval()
    with torch.no_grad(), calling(workload, "prepare"):
        call(workload, OptionalMethods.prepare, None, model, config, data, rehearsal=rehearsal)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def constants(workload: Workload, model: nn.Module) -> dict[str, Tensor]:
    """The workload's constants, not copied, on the CPU; empty if it has none."""
    return {name: value.cpu() for name, value in call(workload, OptionalMethods.constants, {}, model).items()}


@dataclass(eq=False)
class Steps:
    """Runs the training steps of a trial."""

    warm_up: ClassVar[int] = 1  # steps after which all further ones take the same time and memory
    workload: Workload
    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: Config
    device: str | None = None  # where batches are moved; None if they are there
    notes: list[str] = field(default_factory=list)  # gets what the user should know
    ranks: Ranks | None = None

    def __call__(self, *batches: Batch) -> Tensor:
        """Forward, backward and an optimizer step on one batch or its micro-batches; returns the loss, a scalar.

        Gradients and losses of micro-batches are weighted by their numbers of samples. Of several ranks each takes
        its own micro-batches, and then all have the sums. With ``amp`` in the configuration the loss is computed in
        bfloat16 where autocast supports it; weights, gradients and optimizer keep their types.
        """
        workload, config, ranks = self.workload, self.config, self.ranks
        self.optimizer.zero_grad(set_to_none=True)
        recomputes = uses(config, CHECKPOINTING)
        modules = list(call(workload, OptionalMethods.checkpointed, (), self.model)) if recomputes else []
        shares = _shares(workload, batches)
        kind = next(self.model.parameters()).device.type
        total: Tensor | None = None
        with ranks.own_randomness() if ranks else nullcontext():
            for batch, share in list(zip(batches, shares, strict=True))[ranks.own if ranks else slice(None)]:
                batch = to_device(batch, self.device) if self.device else batch
                # bfloat16 has float32's range: unlike float16 it needs no scaling of the loss.
                autocast = torch.autocast(kind, torch.bfloat16) if uses(config, "amp") else nullcontext()
                with autocast, recomputing(modules), calling(workload, "loss"):
                    loss = contract.check_loss(workload, workload.loss(self.model, batch))
                loss = loss if share == 1 else loss * share
                with calling(workload, "the backward pass of loss"):
                    loss.backward()  # type: ignore[no-untyped-call]
                # A copy, since the scalar of mse_loss may share a buffer of the batch's size.
                total = loss.detach().clone() if total is None else total + loss.detach()
                del loss
        if ranks:
            total = ranks.add_up(self.optimizer, total, len(batches))
        with calling(workload, "the step of optimizer"):
            self.optimizer.step()
        assert total is not None
        return total

    def begin_epoch(self) -> None:
        """An epoch begins, and its learning rates are set."""

    def end(self) -> None:
        """The training has ended."""


def _shares(workload: Workload, batches: Sequence[Batch]) -> list[float]:
    """Each micro-batch's share of all their samples."""
    if len(batches) == 1:
        return [1.0]
    counts = [sample_count(workload, batch) for batch in batches]
    return [count / sum(counts) for count in counts]


def evaluate(
    workload: Workload,
    model: nn.Module,
    data: object,
    split: Split,
    compared_by: str = "",
    *,
    config: Config = MappingProxyType({}),
) -> dict[str, float]:
    """The workload's metrics on a split, with the prefix ``val_`` or ``test_``. No gradients are computed.

    ``compared_by`` is the metric that must be among those on the validation split, if it is not the workload's own.
    With ``evaluation_parts`` in the configuration it is computed in smaller chunks.
    """
    model.eval()
    with torch.inference_mode():
        return contract.evaluated(workload, model, data, split, compared_by, int(config.get(EVALUATION_PARTS, 1)))


def uses(config: Config, option: str) -> bool:
    """Whether a configuration switches on this option of the training loop."""
    return bool(config.get(option, 0))


def to_device(batch: Batch, device: str) -> Batch:
    """The batch with its tensors on the device."""
    return batch if device == "cpu" else changed(batch, lambda part: part.to(device, non_blocking=True))


@contextmanager
def recomputing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """In the block, forward keeps only the inputs of these modules. Backward runs them again (Chen et al. 2016).

    torch's function imports torch.compile's machinery at its first call, which takes 76 MB and a second. A worker
    with such trials makes that call before them, in ``rehearsal.warm_up``.

    The modules must be deterministic except for torch's random numbers, which are drawn again with the same values.
    They must not change buffers in training, as ``nn.BatchNorm1d`` does: the change would happen twice.
    """
    with ExitStack() as restore:
        for module in dict.fromkeys(modules):
            before = module.__dict__.get("forward")
            restore.callback(_set_forward, module, before)
            _set_forward(module, partial(checkpoint, module.forward, use_reentrant=False))
        yield


def _set_forward(module: nn.Module, forward: Callable[..., object] | None) -> None:
    """Sets the module's ``forward``; None restores the one of its class."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


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
