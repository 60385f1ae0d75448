"""Scaled dot-product attention by the kernel that a GPU would choose, as its operators and their memory differ.

The choice is that of ``sdp_utils.cpp`` in ATen. cuDNN's kernel, which newer torch prefers on Hopper for 16 bits,
counts as FlashAttention's: it keeps the same tensors.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections.temporaries import (
    FLOAT_BYTES,
    NARROW,
    RESULTS,
    Steps,
    aten,
    bytes_of,
    copy_if_strided,
    up,
)

AMPERE = (8, 0)  # the first with FlashAttention, bfloat16 and TF32
SMALL_SHARED_MEMORY = ((8, 6), (8, 9), (12, 0), (12, 1))  # 100 KiB a multiprocessor, where others have 160 and more
FLASH_HEAD, FLASH_MULTIPLE = 256, 8
MASK_MULTIPLE = 8  # of the keys, to which the efficient kernel pads a mask
TILE_COLUMNS = 64  # of a tile of the query's gradient (MatmulGradQ::ThreadblockShape::kN)
TILE_HEADER_BYTES = 16  # a lock and a counter (GradQTempStorage)


def attention(
    card: CardProperties | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` on a GPU; without a card, on one that has all kernels."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (part.to(dtype) if part.is_floating_point() else part for part in (query, key, value))
        attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    with torch.autocast("cpu", enabled=False):
        has_rows = all(part.dim() > 1 and part.shape[-2] for part in (query, key))
        if has_rows and _flash_fits(card, query, key, value, attn_mask):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if has_rows and _efficient_fits(card, query, key, value, attn_mask) and not enable_gqa:
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        out: Tensor = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return out


def _flash_fits(card: CardProperties | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    return (
        (card is None or card.capability >= AMPERE)
        and torch._C._get_flash_sdp_enabled()
        and mask is None
        and query.dtype in NARROW
        and all(part.dim() == 4 and part.stride(-1) == 1 for part in (query, key, value))
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= FLASH_HEAD
    )


def _efficient_fits(
    card: CardProperties | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> bool:
    """By the types, a head's alignment to 16 bytes (``check_head_dim_size_mem_efficient``), and the mask's layout.

    T5's mask of positions has its heads last in memory (``check_last_dim_stride_equals_1_dense``).
    """
    old = card is not None and card.capability < AMPERE
    if old and query.dtype is torch.bfloat16:
        return False
    alignment = 4 if old and query.dtype is torch.float32 else 16
    return (
        torch._C._get_mem_efficient_sdp_enabled()
        and query.dtype in (torch.float32, *NARROW)
        and all(part.dim() == 4 and part.stride(-1) == 1 for part in (query, key, value))
        and (mask is None or mask.stride(-1) == 1)
        and query.shape[-1] == key.shape[-1]
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and all(part.shape[-1] * part.element_size() % alignment == 0 for part in (query, value))
    )


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """A head is padded to a multiple of 8 (``pad_last_dim`` in transformers/attention.cpp)."""
    head = query.shape[-1]
    missing = -head % FLASH_MULTIPLE
    if missing:
        scale = head**-0.5 if scale is None else scale
        query, key, value = (F.pad(part, (0, missing)) for part in (query, key, value))
    out: Tensor = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, scale=scale)[0]
    return out[..., :head] if missing else out


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    trained = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
    if mask is not None:
        mask = _padded(mask, query)
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    out: Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, trained, dropout, causal, scale=scale
    )[0]
    return out


def _padded(mask: Tensor, query: Tensor) -> Tensor:
    """A mask as floats, with rows padded to a multiple of 8 (``convert_boolean_attn_mask``, ``pad_bias``)."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, query.new_zeros(()), query.new_full((), -torch.inf))
    keys = mask.shape[-1]
    return F.pad(mask, (0, -keys % MASK_MULTIPLE))[..., :keys] if keys % MASK_MULTIPLE else mask


def efficient_backward(
    card: CardProperties | None, _out: object, gradient: Tensor, query: Tensor, *_: object
) -> Steps:
    """A contiguous gradient, sums of output times gradient, and tiles of the query's gradient (kernel_backward.h).

    In float32, the product is computed beforehand. A tile has 64 rows, and 128 where a head is larger than 64 and a
    multiprocessor has the shared memory for it.
    """
    length, head = query.shape[-2:]
    heads = query.numel() // (length * head)
    sums = heads * length * FLOAT_BYTES
    small = card is not None and (card.capability < AMPERE or card.capability in SMALL_SHARED_MEMORY)
    rows = 64 if head <= 64 or small else 128
    tiles = heads * up(length, rows) * up(head, TILE_COLUMNS)
    workspace = tiles * (rows * TILE_COLUMNS * FLOAT_BYTES + TILE_HEADER_BYTES)
    copy = copy_if_strided(gradient.transpose(1, 2))
    if query.dtype in NARROW:
        return [copy, RESULTS, sums, workspace, -3]
    return [copy, RESULTS, bytes_of(query), sums, sums, -4, -3, workspace, -5]


def flash_forward(card: CardProperties, _out: object, query: Tensor, key: Tensor, *options: object) -> Steps:
    """The results of each split of the keys (``set_params_splitkv`` in flash_attn/flash_api.cpp)."""
    batch, heads, length, head = query.shape
    dropout = options[1] if len(options) > 1 else 0.0
    if dropout:
        return ()
    columns = 256 if head <= 64 else 128 if head <= 128 else 64
    splits = _splits(batch * heads * up(length, 64), 2 * card.multiprocessors, up(key.shape[-2], columns))
    sums = splits * batch * heads * length * FLOAT_BYTES
    return [RESULTS, sums, sums * up(head, 32) * 32] if splits > 1 else ()


def _splits(blocks: int, places: int, most: int) -> int:
    """``num_splits_heuristic``: the fewest splits of the keys that use the places nearly as well as any."""
    if blocks >= 0.8 * places:
        return 1
    fewer = range(2, min(128, places, most) + 1)
    eligible = [1, *(splits for splits in fewer if up(most, splits) != up(most, splits - 1))]
    waves = {splits: blocks * splits / places for splits in eligible}
    used = {splits: wave / math.ceil(wave) for splits, wave in waves.items()}
    return next(splits for splits in eligible if used[splits] >= 0.85 * max(used.values()))


def flash_backward(
    _out: object, gradient: Tensor, query: Tensor, key: Tensor, _value: Tensor, output: Tensor, *_: object
) -> Steps:
    """Contiguous arguments, sums for each query, and its gradient in float32 (``mha_bwd`` in flash_api.cpp).

    If several heads share a key, the gradients of key and value are first those of each head.
    """
    length, head = query.shape[-2:]
    rows = query.numel() // (length * head) * up(length, 128) * 128
    copies = [copy_if_strided(part.transpose(1, 2)) for part in (gradient, output)]
    expanded = bytes_of(key) // key.shape[1] * query.shape[1] if key.shape[1] != query.shape[1] else 0
    return [*copies, RESULTS, rows * FLOAT_BYTES, rows * up(head, 32) * 32 * FLOAT_BYTES, expanded, expanded]
