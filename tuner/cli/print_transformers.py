"""A transformer's footprint as text, under the table of its estimates."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.reporting.plan_text import WATCH_GPU, WATCH_MEMORY
from tuner.sizing.target import imagined_gpu
from tuner.sizing.transformers.formula import Precision, TransformerConfig, parameter_count
from tuner.sizing.transformers.gpu_memory import CARD_SHARE, largest_batches, precision_of
from tuner.trial import GB, MemoryEstimate

# Advice by GB of tensors, from the GPU memory estimation guide: an upper bound, and the text.
BANDS = (
    (4, "reasonable"),
    (8, "moderate: monitor the GPU's memory while it trains"),
    (12, "high: reduce the batch or the sequences"),
)
BEYOND = "very high: it needs a high-end GPU or several"


def transformer_text(config: TransformerConfig, found: Sequence[tuple[str, MemoryEstimate]]) -> str:
    """The model, the savings of narrower precisions, advice, and how to watch a GPU's memory."""
    totals = {name: guess.reserved_bytes / GB for name, guess in found}
    base, *others = totals
    saved = {name: totals[base] - totals[name] for name in others}
    savings = ", ".join(f"{name} {gb:.2f} GB ({gb / totals[base]:.0%})" for name, gb in saved.items())
    asked = precision_of(config)
    early = [name for name, guess in found if not guess.gradient_bytes]
    lines = {
        "model": _model(config),
        "parameters": f"{parameter_count(config) / 1e6:.2f} M",
        "peak": _peak(early),
        "saved": f"against {base}: {savings}",
        "advice": f"{asked} takes {totals[asked]:.2f} GB without the context: {advice(totals[asked])}",
        "cards": _cards(config, asked),
        "watch": WATCH_GPU,
        "": WATCH_MEMORY,
    }
    return "\n".join(f"{head:<10} {text}" for head, text in lines.items() if text)


def _cards(config: TransformerConfig, precision: Precision) -> str:
    """The largest batch on cards of common sizes."""
    found = largest_batches(config, precision, imagined_gpu(0))
    sizes = ", ".join(f"{gb} GB {batch or 'none'}" for gb, batch in found.items())
    return f"largest {precision} batch within {CARD_SHARE:.0%} of a card, context included: {sizes}"


def _peak(early: Sequence[str]) -> str:
    """Why these precisions show no gradients."""
    return f"of {', '.join(early)} at the loss, when no gradient is there yet" if early else ""


def advice(total_gb: float) -> str:
    """Advice for a footprint of this many GB without the context."""
    return next((text for limit, text in BANDS if total_gb < limit), BEYOND)


def _model(config: TransformerConfig) -> str:
    head = "tied" if config.tied else "untied"
    checkpointing = ", checkpointing" if config.checkpointing else ""
    return (
        f"{config.model_layer} x {config.model_embd}, {config.model_head} heads, {config.model_positions} positions, "
        f"vocabulary {config.vocabulary:,} ({head}); batch {config.batch_size} x {config.seq_len} tokens; "
        f"{config.attention} attention{checkpointing}"
    )
