"""Counts the memory of training without running it: models exactly, activations by an upper bound."""

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
# A layer keeps its output, the activation function's, and dropout's with its mask. In traces, an MLP with ReLU keeps
# one, and a deep one with GELU and dropout 3.1 on the CPU and 2.3 on CUDA.
KEPT_COPIES = 3
MESSAGE_COPIES = 2  # the gathered messages and their product; in traces, GCN keeps 0 and GATv2 2
ATTENTION_VALUES = 9  # per edge and head: two terms, their sum, its leaky ReLU, and the softmax's five values
# These multiply by their weights before they pass messages. Others are assumed to pass their input, too.
WEIGHTS_FIRST = ("GCNConv", "GATConv", "GATv2Conv", "TransformerConv")


@dataclass(frozen=True)
class Counted:
    """The bytes that live as long as the training. A shared parameter counts once."""

    parameters: int
    embeddings: int
    gradients: int
    teacher: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.parameters + self.embeddings + self.gradients + self.teacher


def count(step: TrainingStep) -> Counted:
    """Counts the bytes of the modules."""
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
    """The bytes of the optimizer's state, and of a step without activations, with the optimizer's temporaries.

    The optimizer is traced alone, on fake gradients.

    Raises:
        InputError: the optimizer cannot be traced.
    """

    def make() -> Parts:
        trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]

        def loss() -> Tensor:
            return torch.stack([parameter.sum() for parameter in trained]).sum()

        return step.model, step.make_optimizer(), loss

    try:
        trace = trace_step(make, device_kind=device_kind, remedy='use mode="measured"')
    except Untraceable as error:
        raise InputError(f"optimizer: its state cannot be counted: {error}") from error
    return trace.parts_at_peak()["optimizer"], trace.peak_bytes()


def _held_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def activation_bytes(model: nn.Module, extent: Extent) -> int:
    """An upper bound of a sample's activations, by the shapes of the weights.

    A layer with weights keeps ``KEPT_COPIES`` of its output, rows · width. A message-passing layer of PyTorch
    Geometric keeps ``MESSAGE_COPIES`` of messages · (width · heads), and attention's values per message and head. The
    largest output counts twice more, for the gradients of a layer's input and output.
    """
    layers = [*_layers(model, extent)]
    sizes = [copies * values for copies, values in layers]
    return FLOAT_BYTES * (sum(sizes) + 2 * max((values for _, values in layers), default=0))


def _layers(model: nn.Module, extent: Extent) -> Iterator[tuple[int, int]]:
    """The number of kept copies and the values per copy, for each layer."""
    widest = max([extent.features, *(_width(module) for module in model.modules())])
    on_messages: set[nn.Module] = set()
    for module in model.modules():
        if _passes_messages(module):
            heads = getattr(module, "heads", 0)
            inputs = 0 if type(module).__name__ in WEIGHTS_FIRST else _channels(module, "in_channels")
            width = max(inputs, _channels(module, "out_channels") * max(1, heads)) or widest
            yield MESSAGE_COPIES, extent.messages * width
            yield 1, extent.messages * heads * ATTENTION_VALUES
            on_messages |= set(_message_layers(module))
        if width := _width(module):
            yield KEPT_COPIES, (extent.messages if module in on_messages else extent.rows) * width


def _passes_messages(module: nn.Module) -> bool:
    passing = sys.modules.get("torch_geometric.nn.conv.message_passing")
    return passing is not None and isinstance(module, passing.MessagePassing)


def _message_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The inner layers that may work on messages: all but those named lin, which work on nodes."""
    for name, child in module.named_children():
        if not name.startswith("lin") or "edge" in name:
            yield from child.modules()


def _channels(module: nn.Module, name: str) -> int:
    """A layer's largest number of channels of this name, which may be a number, a tuple or missing (0)."""
    channels = getattr(module, name, 0)
    return max(channels) if isinstance(channels, tuple) else int(channels)


def _width(module: nn.Module) -> int:
    """The values that a layer computes per row; 0 if it has no weights."""
    for name in ("out_features", "out_channels", "embedding_dim", "num_features"):
        if isinstance(getattr(module, name, None), int) and not _passes_messages(module):
            return int(getattr(module, name))
    parameters = [*module.parameters(recurse=False)]
    matrices = sum(max(parameter.shape) for parameter in parameters if parameter.dim() > 1)
    return matrices or max((parameter.numel() for parameter in parameters), default=0)
