"""A transformer's footprint in three precisions, for functions and commands."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, get_type_hints

from tuner.errors import InputError, did_you_mean, one_line, option
from tuner.estimation.cards import CUBLAS_WORKSPACE_BYTES, cublas_workspace_bytes
from tuner.estimation.estimators import with_context
from tuner.machine.devices import imagined_gpu
from tuner.machine.safe_files import MOST_BYTES, regular
from tuner.sizing.choices import largest_batch
from tuner.sizing.transformers.formula import (
    PRECISIONS,
    Precision,
    TransformerConfig,
    Variant,
    footprint,
    parameter_count,
)
from tuner.trial import GB, Device, MemoryEstimate

CARDS_GB = (8, 12, 16, 24, 40, 80)
CARD_SHARE = 0.85  # the usable share of a card, which is the safety margin of ``tuner optimize``
HANDLES = 2  # of cuBLAS, each with a workspace, as the backward pass has its own thread


def precision_of(config: TransformerConfig) -> Precision:
    """The precision of a configuration."""
    return "amp" if config.mixed_precision else "float32"


def transformer_estimates(config: TransformerConfig, device: Device) -> list[tuple[str, MemoryEstimate]]:
    """The name and footprint of each precision, "float32", "amp" and "half"; the device need not be present."""
    return [(precision, _estimate(config, precision, device)) for precision in PRECISIONS]


def _estimate(config: TransformerConfig, precision: Precision, device: Device) -> MemoryEstimate:
    estimate = footprint(config, precision, device.kind)
    return with_context(replace(estimate, workspace_bytes=HANDLES * cublas_workspace_bytes(device)), device)


def largest_batches(config: TransformerConfig, precision: Precision) -> dict[int, int]:
    """The maximum batch for each of ``CARDS_GB``, or 0; the configuration's own batch is ignored."""
    device = imagined_gpu(0)

    def need(batch: int) -> int:
        return _estimate(replace(config, batch_size=batch), precision, device).total_bytes

    largest = {}
    for size in CARDS_GB:
        limit_bytes = int(CARD_SHARE * size * GB)
        fits = need(1) <= limit_bytes
        largest[size] = largest_batch(need, limit_bytes, at_most=2**20, bound="2**20").batch_size if fits else 0
    return largest


def estimate_gpu_memory_requirements(
    model_positions: int,
    model_embd: int,
    model_layer: int,
    model_head: int,
    batch_size: int,
    seq_len: int,
    dtype_bytes: int = 4,
    include_activations: bool = True,
    include_optimizer: bool = True,
    **variant: Unpack[Variant],
) -> dict[str, float]:
    """The memory of a training step of a GPT-style transformer on a GPU, by the formula of ``footprint``.

    Args:
        model_positions: positions with an embedding.
        model_embd: the width.
        model_layer: blocks.
        model_head: attention heads; they divide the width.
        batch_size: sequences in a micro-batch.
        seq_len: tokens in a sequence.
        dtype_bytes: bytes of every number: 4 for float32, 2 for pure float16 or bfloat16.
        include_activations: whether activations and logits count.
        include_optimizer: whether AdamW's two moments count.
        variant: ``mixed_precision=True`` for autocast over float32 weights, with ``dtype_bytes`` 4;
            ``checkpointing=True`` to compute each block again in the backward pass instead of keeping it;
            ``attention="explicit"``, which keeps the matrix of scores, instead of torch's kernel "sdpa";
            ``vocabulary``, the number of tokens (50257); ``tied=False`` for a head with a weight of its own.

    Returns:
        ``model_parameters``, a count, and in GB (2**30 bytes) ``total_estimated_gb`` and its parts:
        ``model_weights_gb``, ``gradients_gb``, ``optimizer_state_gb``, ``activations_gb``, ``logits_gb``,
        ``io_tensors_gb`` and ``workspace_gb``, which is cuBLAS' scratch memory. They are the live bytes at the peak,
        without the process's CUDA context.

    Raises:
        InputError: sizes do not go together, or ``dtype_bytes`` is neither 4 nor 2.
    """
    if dtype_bytes not in (2, 4):
        raise InputError(f"dtype_bytes {dtype_bytes!r}: give 4 for float32, or 2 for pure half precision")
    if dtype_bytes == 2 and variant.get("mixed_precision"):
        raise InputError("dtype_bytes 2 with mixed_precision: autocast keeps 4-byte weights, so give dtype_bytes 4")
    config = TransformerConfig(model_positions, model_embd, model_layer, model_head, batch_size, seq_len, **variant)
    precision: Precision = "half" if dtype_bytes == 2 else precision_of(config)
    estimate = footprint(
        config, precision, include_activations=include_activations, include_optimizer=include_optimizer
    )
    parts = {
        "model_weights_gb": estimate.parameter_bytes,
        "gradients_gb": estimate.gradient_bytes,
        "optimizer_state_gb": estimate.optimizer_bytes,
        "activations_gb": estimate.activation_bytes,
        "logits_gb": estimate.logits_bytes,
        "io_tensors_gb": estimate.data_bytes,
        "workspace_gb": HANDLES * CUBLAS_WORKSPACE_BYTES,
    }
    sizes = {"total_estimated_gb": sum(parts.values()), **parts}
    return {"model_parameters": parameter_count(config), **{name: size / GB for name, size in sizes.items()}}


# The keys of a file, which are the options' names, with their types.
KEYS = {name: kind if kind in (int, bool) else str for name, kind in get_type_hints(TransformerConfig).items()}
REQUIRED = ("model_embd", "model_layer", "batch_size")
TABLES = ("model", "training")
WANTED = {int: "a whole number", bool: "true or false", str: "a text"}
HEAD_WIDTH = 64
POSITIONS = 512


def transformer_config(path: str | None, given: Mapping[str, object]) -> TransformerConfig:
    """The sizes from a TOML file, if any, and from options that are not None, which take precedence.

    By default heads are 64 wide, sequences fill the model's positions, and these are ``seq_len`` or 512. A wrong
    file, or missing or contradictory sizes, raise ``InputError``.
    """
    values: dict[str, Any] = _read_sizes(path) if path is not None else {}  # ``TransformerConfig`` checks them
    values |= {key: value for key, value in given.items() if value is not None}
    missing = [key for key in REQUIRED if key not in values]
    if missing:
        where = f"{path}: " if path is not None else ""
        verb = "is" if len(missing) == 1 else "are"
        options = " ".join(map(option, missing))
        raise InputError(f"{where}{', '.join(missing)} {verb} missing: give {options}, or a TOML file that has it")
    values.setdefault("model_positions", values.get("seq_len", POSITIONS))
    values.setdefault("seq_len", values["model_positions"])
    if "model_head" not in values:
        width = values["model_embd"] if isinstance(values["model_embd"], int) else 0
        if width > 0 and width % HEAD_WIDTH:
            raise InputError(
                f"model_embd {width} has no whole number of heads of {HEAD_WIDTH}: give {option('model_head')}"
            )
        values["model_head"] = max(1, width // HEAD_WIDTH)
    try:
        return TransformerConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error.text}" if path is not None else error.text) from error


def _read_sizes(path: str) -> dict[str, object]:
    """The sizes in a TOML file, at its top level or under [model] and [training]; other keys are ignored."""
    try:
        content = tomllib.loads(regular(Path(path), MOST_BYTES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # tomllib's and the decoder's errors are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else f"not TOML: {one_line(error)}"
        raise InputError(
            f"{path}: {reason}: give a TOML file with the model's sizes, or configurations by {option('config')}"
        ) from error
    tables = [content, *(content[name] for name in TABLES if isinstance(content.get(name), dict))]
    sizes: dict[str, object] = {}
    for written, value in [item for table in tables for item in table.items()]:
        key = written.replace("-", "_")
        if key not in KEYS:
            # If a misspelled key were ignored, the default would be used silently.
            if hint := did_you_mean(key, KEYS, cutoff=0.9):
                raise InputError(f"{path}: unknown key {written!r}: {hint}")
            continue
        if key in sizes or type(value) is not KEYS[key]:
            rule = "occurs twice: leave one of them out" if key in sizes else f"give {WANTED[KEYS[key]]}"
            raise InputError(f"{path}: {written} {value!r}: {rule}")
        sizes[key] = value
    if not sizes:
        raise InputError(f"{path}: no size is in it: write {', '.join(REQUIRED)} at the top level or under [model]")
    return sizes
