"""The memory of a training step of a GPT-style transformer, by a closed formula.

The model is that of ``scripts/benchmarks/gpt_model.py``: nanoGPT's with ``bias=False`` and no dropout, trained by
AdamW's fused kernel. A step's peak is at one of a few moments, at which different tensors are alive. The ledger below
adds up each moment, and the largest is the footprint, as in ``torch.cuda.max_memory_allocated``. The optimizer step
is never the peak: its kernel has no temporaries, and the embedding's backward pass takes more.

N = batch_size · seq_len tokens, d the width, L layers, H heads, T = seq_len, V the vocabulary, P positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from tuner.errors import InputError
from tuner.trial import MemoryEstimate

Precision = Literal["float32", "amp", "half"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Attention = Literal["sdpa", "explicit"]
DeviceKind = Literal["cpu", "cuda"]
GPT2_VOCABULARY = 50_257
SIZES = ("model_positions", "model_embd", "model_layer", "model_head", "batch_size", "seq_len", "vocabulary")


class Variant(TypedDict, total=False):
    """The optional fields of ``TransformerConfig``."""

    mixed_precision: bool
    checkpointing: bool
    attention: Attention
    vocabulary: int
    tied: bool


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a model and of its batch."""

    model_positions: int  # positions with an embedding
    model_embd: int  # the width
    model_layer: int  # blocks
    model_head: int  # attention heads; they divide the width
    batch_size: int  # sequences in a micro-batch
    seq_len: int  # tokens in a sequence
    mixed_precision: bool = False  # train under autocast; the formula uses its ``precision`` instead
    checkpointing: bool = False  # recompute each block in the backward pass
    attention: Attention = "sdpa"  # torch's kernel "sdpa", or "explicit", which keeps the matrix of scores
    vocabulary: int = GPT2_VOCABULARY  # the number of tokens
    tied: bool = True  # the head shares the token embedding's weight

    def __post_init__(self) -> None:
        """Rejects sizes that no model can have."""
        for name in SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**40:
                raise InputError(f"{name} {value!r:.40}: give a whole number from 1 on, at most 2**40")
        if self.attention not in get_args(Attention):
            raise InputError(f"attention {self.attention!r}: choose sdpa or explicit")
        if self.model_embd % self.model_head:
            raise InputError(
                f"model_head {self.model_head} does not divide model_embd {self.model_embd}: choose one that does"
            )
        if self.seq_len > self.model_positions:
            raise InputError(
                f"seq_len {self.seq_len} is more than model_positions {self.model_positions}: shorten the sequences, "
                "or give the model more positions"
            )


def parameter_count(config: TransformerConfig) -> int:
    """12·L·d² + P·d + V·d + d·(2L + 1); the last term is layer norms without bias. An untied head adds V·d."""
    width, layers = config.model_embd, config.model_layer
    tables = config.model_positions + config.vocabulary * (1 if config.tied else 2)
    return 12 * layers * width**2 + tables * width + width * (2 * layers + 1)


@dataclass(frozen=True)
class _Moment:
    """The live bytes at a moment beside weights, optimizer state and batch."""

    gradient_bytes: int
    activation_bytes: int
    logits_bytes: int = 0


class _Ledger:
    """The moments at which a step may peak.

    Bytes per number: ``weight`` for parameters and gradients; ``stream`` for the residual stream, layer norms and the
    loss; ``branch`` for the inputs and outputs of linear layers. Under autocast only branches have 2 bytes.
    """

    def __init__(self, config: TransformerConfig, precision: Precision, device_kind: DeviceKind) -> None:
        self.config, self.precision = config, precision
        self.weight = self.stream = 2 if precision == "half" else 4
        self.branch = 4 if precision == "float32" else 2
        self.tokens = config.batch_size * config.seq_len
        values = self.tokens * config.model_embd
        self.x = self.stream * values  # one tensor (B, T, d) of the residual stream
        self.y = self.branch * values  # one tensor of a branch
        # Autocast casts each weight once and keeps the cast for the linear layer's backward pass.
        self.cast = 2 if precision == "amp" else 0
        self.square = config.model_embd**2
        self.table = config.vocabulary * config.model_embd
        self.statistics = 2 * self.stream * self.tokens  # a layer norm's means and standard deviations
        self.scores = config.batch_size * config.model_head * config.seq_len**2
        # CUDA's autocast computes a softmax in float32, and casts its result for the product with the values. It
        # leaves the loss's softmax in two bytes, and casts it to float32 for the rest of the loss.
        self.on_cuda = device_kind == "cuda"
        self.wide_softmax = precision == "amp" and self.on_cuda

    def moments(self) -> Iterator[_Moment]:
        """Every moment that is the peak for some sizes, in the order of a step."""
        layers = self.config.model_layer
        yield from self._loss()
        for block in {layers, 1}:  # in between, the bytes change linearly
            yield self._mlp(block)
            yield self._attention(block)
        yield self._embedding()

    def kept_by_attention(self) -> int:
        """The kernel's log-sum per row, or the softmax's result per pair of positions and the mask."""
        if self.config.attention == "sdpa":
            return 4 * self.tokens * self.config.model_head
        return self.scores * (4 + 2 if self.wide_softmax else self.branch) + self.config.seq_len**2

    def kept_by_block(self) -> int:
        """The bytes that a block keeps for its backward pass.

        Stream: the inputs of both norms. Branches: the input of qkv (1), queries, keys and values (3), the input of
        the projection (1), the MLP's first layer's input (1) and output (4), and its second layer's input (4).
        """
        return 2 * self.x + 14 * self.y + 2 * self.statistics + self.kept_by_attention()

    def kept_by_earlier(self, blocks: int) -> int:
        """The bytes that this number of blocks keep while a later one is computed."""
        if self.config.checkpointing:
            return blocks * self.x  # each block's input
        return blocks * (self.kept_by_block() + 12 * self.square * self.cast)

    def _loss(self) -> Iterator[_Moment]:
        """The head and the loss, beside the kept bytes of all blocks, and the last norm's input and output."""
        logits = self.tokens * self.config.vocabulary
        kept = self.kept_by_earlier(self.config.model_layer) + self.x + self.y + self.statistics
        kept += self.cast * self.table
        if self.precision == "amp" and self.config.checkpointing:
            # Under autocast, whose cache has every weight's cast: the logits, their cast, and log_softmax's result.
            casts = 12 * self.config.model_layer * self.square * self.cast
            yield _Moment(0, kept + casts, logits * (2 + 2 + 4 if self.on_cuda else 2 + 4 + 4))
        if self.wide_softmax:  # NllLossBackward: log_softmax's result, its cast, and the cast's gradient
            yield _Moment(0, kept, logits * (2 + 4 + 4))
        else:  # LogSoftmaxBackward: its saved result, that result's gradient, and the gradient of the logits
            yield _Moment(0, kept, 3 * self.stream * logits)
        # The head's MmBackward: the gradients of the logits, the weight, and the head's input.
        yield _Moment(self.branch * self.table, kept + self.y, self.branch * logits)
        if self.precision == "amp":  # the weight's gradient is cast back
            yield _Moment((2 + 4) * self.table, kept - self.cast * self.table, 0)

    def _gradients_above(self, block: int) -> int:
        """The gradients of the head, the last norm, and the blocks above this one; the first block is 1."""
        width = self.config.model_embd
        blocks = (self.config.model_layer - block) * (12 * self.square + 2 * width)
        return self.weight * (self.table + width + blocks)

    def _mlp(self, block: int) -> _Moment:
        """MmBackward of the MLP's second layer, before any release in this block.

        It has the gradients of the stream (under autocast also cast to a branch's type), of the layer's input, which
        is four times as wide, and of its weight.
        """
        alive = self.kept_by_earlier(block - 1) + self.kept_by_block() + 12 * self.square * self.cast
        alive += self.x + 4 * self.y + (self.y if self.precision == "amp" else 0)
        return _Moment(self._gradients_above(block) + 4 * self.square * self.branch, alive)

    def _attention(self, block: int) -> _Moment:
        """Attention's backward pass. The MLP's tensors are released; weight gradients of MLP and projection exist.

        Stream: the block's input and its gradient. Branches: the input of qkv (1), queries, keys and values (3) and
        their gradients (3), the result and its gradient (2). With explicit attention fewer of them are alive at once,
        and SoftmaxBackward has its saved result, that result's gradient, its own result and, on CUDA, their product.
        """
        alive = self.kept_by_earlier(block - 1) + 2 * self.x + 3 * self.square * self.cast
        if self.config.attention == "sdpa":
            alive += 9 * self.y + self.kept_by_attention()
        else:
            alive += 4 * self.y + self.config.seq_len**2
            alive += (4 if self.on_cuda else 3) * self.scores * (4 if self.wide_softmax else self.branch)
        return _Moment(self._gradients_above(block) + 9 * self.square * self.weight, alive)

    def _embedding(self) -> _Moment:
        """The token embedding's backward pass, beside all gradients and the stream's.

        With a tied head, the engine adds its gradient to the embedding's: in place if the engine owns it, as with the
        cast of autocast's backward pass. A transposed view is not owned, so the sum is a third table.
        """
        tables = 0 if not self.config.tied else 1 if self.precision == "amp" else 2
        return _Moment(self.weight * (parameter_count(self.config) + tables * self.table), self.x)


def footprint(
    config: TransformerConfig,
    precision: Precision,
    device_kind: DeviceKind = "cuda",
    *,
    include_activations: bool = True,
    include_optimizer: bool = True,
) -> MemoryEstimate:
    """The peak of a training step's tensors from the second step on, without context, workspaces and fragmentation.

    Precisions are "float32"; "amp", float32 weights under autocast to a 2-byte type; and "half", 2 bytes everywhere.
    Autocast's softmax depends on the device. ``include_activations`` includes the logits, and ``include_optimizer``
    AdamW's two moments.
    """
    ledger = _Ledger(config, precision, device_kind)
    moments = list(ledger.moments())
    if not include_activations:
        moments = [_Moment(ledger.weight * parameter_count(config), 0)]
    peak = max(moments, key=lambda moment: moment.gradient_bytes + moment.activation_bytes + moment.logits_bytes)
    parameters = ledger.weight * parameter_count(config)
    return MemoryEstimate(
        method="formula",
        parameter_bytes=parameters,
        gradient_bytes=peak.gradient_bytes,
        optimizer_bytes=2 * parameters if include_optimizer else 0,
        activation_bytes=peak.activation_bytes,
        logits_bytes=peak.logits_bytes,
        data_bytes=_data_bytes(config),
    )


def _data_bytes(config: TransformerConfig) -> int:
    """Tokens, targets and positions as 8-byte integers, and explicit attention's mask in each block."""
    masks = config.model_layer * config.model_positions**2 if config.attention == "explicit" else 0
    return 8 * (2 * config.batch_size * config.seq_len + config.seq_len) + masks
