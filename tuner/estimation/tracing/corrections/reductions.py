"""The staging memory of CUDA's reductions, after ``setReduceConfig`` and ``global_memory_size`` in ATen's Reduce.cuh.

A reduction that is long enough, and has few enough results, is divided among thread blocks. Each of them leaves its
part in global memory, as accumulators, and the last one combines them. So the bytes depend on the shape, the strides,
the size of an accumulator, and on how many threads a card has. Names in brackets are those of Reduce.cuh.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections.temporaries import up

WARP = 32
MOST_THREADS = 512  # of a block (MAX_NUM_THREADS)
OUTPUT_VECTOR = 4  # results that a thread computes beside each other (vt0)
LEAST_VALUES, MOST_VALUES = 16, 256  # of a thread (min_values_per_thread, max_values_per_thread)
SEMAPHORE_BYTES = 4


class Dimension(NamedTuple):
    """A dimension of the reduced tensor; strides in elements."""

    stride: int
    size: int


def staging(
    input: Tensor, dims: Sequence[int] | None, accumulator_bytes: int, card: CardProperties, input_vector: int = 4
) -> list[int]:
    """The bytes of staging memory and of its semaphores; empty if the reduction needs none.

    ``dims`` are the reduced dimensions; None or an empty list stands for all. ``input_vector`` is how many values a
    thread loads at once.
    """
    reduced, kept = _dimensions(input, dims)
    values = math.prod(dimension.size for dimension in reduced)
    outputs = math.prod(dimension.size for dimension in kept)
    if values <= 1 or outputs == 0:
        return []
    reduced, kept = _coalesced(reduced), _coalesced(kept)
    along = not kept or reduced[0].stride < kept[0].stride  # reduction_on_fastest_striding_dimension
    vector = 1
    width, height = (values, outputs) if along else (outputs, values)
    if (reduced if along else kept)[0].stride == 1:
        if along and width >= 128 and len(reduced) == 1:
            width //= input_vector
        elif not along:
            vector = _output_vector(reduced, kept)
            width //= vector
    block_width, block_height = _block(width, height, MOST_THREADS // vector)
    step_input, step_output = (block_width, 1) if along else (1, block_width)
    if up(values, step_input) < min(block_height * LEAST_VALUES, MOST_VALUES):
        return []  # one warp computes a result, so no block does
    step_input *= block_height
    grid = up(outputs // vector, step_output)
    blocks = card.multiprocessors * (card.threads // (block_width * block_height))
    per_thread = up(values, step_input)
    if per_thread < MOST_VALUES or grid > blocks:
        return []
    parts = max(min(up(blocks, grid), up(per_thread, LEAST_VALUES)), up(per_thread, MOST_VALUES))  # ctas_per_output
    if parts <= 1:
        return []
    size = accumulator_bytes * outputs * parts
    return [size if along else size * block_width * vector, SEMAPHORE_BYTES * grid]


def staging_of_mean(number: int, card: CardProperties) -> list[int]:
    """The staging memory for the mean of this many adjacent float32 numbers."""
    return staging(torch.empty(number, device="meta"), None, 4, card) if number else []


def _dimensions(input: Tensor, dims: Sequence[int] | None) -> tuple[list[Dimension], list[Dimension]]:
    """The reduced dimensions by the input's strides and the others by the result's, as TensorIterator has them."""
    chosen = {dim % input.dim() for dim in dims} if dims and input.dim() else set(range(input.dim()))
    sides: tuple[list[Dimension], list[Dimension]] = [], []
    for dim in reversed(range(input.dim())):
        if input.shape[dim] != 1:
            sides[dim not in chosen].append(Dimension(input.stride(dim), input.shape[dim]))
    reduced, kept = sides
    return sorted(reduced), kept


def _coalesced(dimensions: Sequence[Dimension]) -> list[Dimension]:
    """Neighbours that are one dimension in memory as one (``coalesce_dimensions`` in TensorIterator.cpp)."""
    merged: list[Dimension] = []
    for dimension in dimensions:
        if merged and merged[-1].stride * merged[-1].size == dimension.stride:
            merged[-1] = Dimension(merged[-1].stride, merged[-1].size * dimension.size)
        else:
            merged.append(dimension)
    return merged


def _output_vector(reduced: Sequence[Dimension], kept: Sequence[Dimension]) -> int:
    """``get_output_vec_size``: the largest vector that divides the first kept dimension and every other stride."""
    vector = OUTPUT_VECTOR
    for number in (kept[0].size, *(dimension.stride for dimension in (*reduced, *kept[1:]))):
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """``set_block_dimension``: the threads of a block in both directions."""
    across, down = (power_below(min(size, most)) for size in (width, height))
    block_height = min(down, most // min(across, WARP))
    return min(across, most // block_height), block_height


def power_below(number: int) -> int:
    """The largest power of two that is not above a number, and at least 1 (``last_pow2``)."""
    return 1 << max(number.bit_length() - 1, 0)
