"""What training takes by counting, without running it: exact for what a model holds, above it for activations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tuner.errors import InputError
from tuner.estimation.tracing.trace import DeviceKind
from tuner.estimation.tracing.tracer import Parts, Untraceable, trace_step
from tuner.sizing.batch_size_finder.samples import Extent
from tuner.sizing.batch_size_finder.training_step import TrainingStep

FLOAT_BYTES = 4  # activations are counted in single precision
# Of a layer's output are kept at most: itself, an activation function's of it, and dropout's with its mask. By
# tracing, an MLP with ReLU keeps one, a deep one with GELU and dropout 3.1 on the CPU and 2.3 on CUDA.
KEPT_COPIES = 3
# Of messages: what was gathered, and what it was multiplied with or made to. By tracing GCN keeps 0, GATv2 2.
MESSAGE_COPIES = 2
# Of each edge and head attention keeps two terms, their sum, its leaky ReLU, and the softmax's five values.
ATTENTION_VALUES = 9
# These multiply with their weights before they pass messages; others are taken to pass what they are given as well.
WEIGHTS_FIRST = ("GCNConv", "GATConv", "GATv2Conv", "TransformerConv")


@dataclass(frozen=True)
class Counted:
    """Bytes of what lives as long as the training: of each its own kind, a shared parameter once."""

    parameters: int
    embeddings: int
    gradients: int
    teacher: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.parameters + self.embeddings + self.gradients + self.teacher


def count(step: TrainingStep) -> Counted:
    """The bytes that can be read off the modules."""
    embeddings = {
        parameter
        for module in step.model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        for parameter in module.parameters(recurse=False)
    }
    embedding_bytes = sum(parameter.nbytes for parameter in embeddings)
    return Counted(
        parameters=_held_bytes(step.model) - embedding_bytes,
        embeddings=embedding_bytes,
        gradients=sum(p.nbytes for p in step.model.parameters() if p.requires_grad),
        teacher=0 if step.teacher is None else _held_bytes(step.teacher),
    )


def optimizer_bytes(step: TrainingStep, device_kind: DeviceKind) -> tuple[int, int]:
    """The bytes of the optimizer's state, and all of a step's but activations: with the optimizer's temporaries.

    Found by tracing the optimizer alone, on gradients without content.

    Raises:
        InputError: the optimizer cannot be traced.
    """

    def make() -> Parts:
        trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]

        def loss() -> Tensor:
            return torch.stack([parameter.sum() for parameter in trained]).sum()

        return step.model, step.optimizer(), loss

    try:
        trace = trace_step(make, device_kind=device_kind)
    except Untraceable as error:
        raise InputError(f'optimizer: its state cannot be counted: {error}; use mode="measured"') from error
    return trace.parts_at_peak()["optimizer"], trace.peak_bytes()


def _held_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def activation_bytes(model: nn.Module, extent: Extent) -> int:
    """What a sample's activations take at most, by the shapes of the weights alone.

    Each layer with weights keeps ``KEPT_COPIES`` of its output, rows · width; a message-passing layer of PyTorch
    Geometric keeps ``MESSAGE_COPIES`` of messages · (width · heads) and what attention computes for a message and
    head. The largest of all counts twice more, for the gradients at both its ends.
    """
    layers = [*_layers(model, extent)]
    sizes = [copies * values for copies, values in layers]
    return FLOAT_BYTES * (sum(sizes) + 2 * max((values for _, values in layers), default=0))


def _layers(model: nn.Module, extent: Extent) -> Iterator[tuple[int, int]]:
    """Of each layer the copies that are kept, and the values in one."""
    widest = max([extent.features, *(_width(module) for module in model.modules())])
    on_messages: set[nn.Module] = set()
    for module in model.modules():
        if _passes_messages(module):
            heads = getattr(module, "heads", 0)
            given = 0 if type(module).__name__ in WEIGHTS_FIRST else _channels(module, "in_channels")
            width = max(given, _channels(module, "out_channels") * max(1, heads)) or widest
            yield MESSAGE_COPIES, extent.messages * width
            yield 1, extent.messages * heads * ATTENTION_VALUES
            on_messages |= set(_message_layers(module))
        if width := _width(module):
            yield KEPT_COPIES, (extent.messages if module in on_messages else extent.rows) * width


def _passes_messages(module: nn.Module) -> bool:
    passing = sys.modules.get("torch_geometric.nn.conv.message_passing")
    return passing is not None and isinstance(module, passing.MessagePassing)


def _message_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers inside of a message-passing one that may work on messages: all but those it calls lin for nodes."""
    for name, child in module.named_children():
        if not name.startswith("lin") or "edge" in name:
            yield from child.modules()


def _channels(module: nn.Module, name: str) -> int:
    """The widest of a layer's channels of this name, which may be one number, one for each end, or not there."""
    channels = getattr(module, name, 0)
    return max(channels) if isinstance(channels, tuple) else int(channels)


def _width(module: nn.Module) -> int:
    """Values that a layer with weights of its own computes for a row; 0 without any."""
    for name in ("out_features", "out_channels", "embedding_dim", "num_features"):
        if isinstance(getattr(module, name, None), int) and not _passes_messages(module):
            return int(getattr(module, name))
    own = [*module.parameters(recurse=False)]
    matrices = sum(max(parameter.shape) for parameter in own if parameter.dim() > 1)
    return matrices or max((parameter.numel() for parameter in own), default=0)
