"""The GPT-style transformer of ``tuner/sizing/transformers/formula.py``: what is traced, and what is really run.

As in nanoGPT with ``bias=False`` and no dropout: pre-norm blocks, a GELU of four times the width, learned positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tuner.sizing.transformers.formula import Precision, TransformerConfig

Parts = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]

Built = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]
"""A model, a batch, and the loss: called with both."""


class Attention(nn.Module):
    """Causal self-attention by torch's own kernel, or with the matrix of scores written out."""

    causal: Tensor | None  # (positions, positions), what a place may look at; written out only

    def __init__(self, width: int, heads: int, positions: int, explicit: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.register_buffer("causal", torch.ones(positions, positions).tril().bool() if explicit else None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).split(x.shape[2], dim=2)
        )
        if self.causal is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = _explicit(q, k, v, self.causal[: x.shape[1], : x.shape[1]])
        out: Tensor = self.out(mixed.transpose(1, 2).contiguous().flatten(2))
        return out


def _explicit(q: Tensor, k: Tensor, v: Tensor, causal: Tensor) -> Tensor:
    """Three of (B, H, T, width / H), and (T, T) → one like them."""
    scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(q.shape[3]))
    scores = scores.masked_fill(~causal, -math.inf)
    return F.softmax(scores, dim=-1) @ v


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.model_embd
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, config.model_head, config.model_positions, config.attention == "explicit")
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return out


class GPT(nn.Module):
    """Embeddings, blocks, and a head that may share the token embedding's weight."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing
        self.tokens = nn.Embedding(config.vocabulary, config.model_embd)
        self.positions = nn.Embedding(config.model_positions, config.model_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.model_layer))
        self.norm = nn.LayerNorm(config.model_embd, bias=False)
        self.head = nn.Linear(config.model_embd, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Token numbers and those that follow them, both (B, T) → the mean cross-entropy, a scalar."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def training_step(config: TransformerConfig, precision: Precision, device: str = "cpu") -> Parts:
    """The model on its device, AdamW, and the loss of one batch, as ``trace_step`` takes them.

    Args:
        config: the sizes.
        precision: "float32"; "amp", in which weights stay float32 and autocast computes in bfloat16; or "half", in
            which everything is bfloat16.
        device: a torch device, such as "cpu" or "cuda:0".
    """
    model, batch, loss = build(config, precision)
    model = model.to(device)
    on_device = tuple(part.to(device) for part in batch)
    return model, torch.optim.AdamW(model.parameters(), fused=True), lambda: loss(model, *on_device)


def build(config: TransformerConfig, precision: Precision) -> Built:
    """The model and one batch on the CPU, and the loss of both, for a precision as in ``training_step``."""
    model = GPT(config)
    if precision == "half":
        model = model.to(torch.bfloat16)
    shape = config.batch_size, config.seq_len
    batch = torch.randint(config.vocabulary, shape), torch.randint(config.vocabulary, shape)

    def loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16) if precision == "amp" else nullcontext():
            value: Tensor = model(tokens, targets)
        return value

    return model, batch, loss
