"""The temporaries of convolutions on CUDA, with cuDNN and without it.

cuDNN decides for itself which algorithm and which workspace it takes. The rules of ``_cudnn`` were found on an H200
(cuDNN 9.19) and are a guess elsewhere, so that an estimate with them has a wider margin (``Trace.has_guess``).
Without cuDNN, a sample's patches are the columns of a matrix (ConvolutionMM2d.cu, NaiveConvolutionTranspose2d.cu,
NaiveDilatedConvolution.cu), a group at a time (``_convolution`` in Convolution.cpp).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections.temporaries import (
    FLOAT_BYTES,
    RESULTS,
    Steps,
    bytes_of,
    copy_if_strided,
    up,
)

# What cuDNN chose by, as far as 562 workspaces show it (tests/data/cudnn_workspaces.csv).
SMALL_PATCH = 64  # numbers under a kernel that needs no workspace
TILE = 128  # rows and columns of the weight's gradient that a multiprocessor sums
ALIGNED, WEIGHT_ALIGNED = 8, 16  # bytes at which a channel begins: else it is copied, and for the weight's gradient
FEW_CHANNELS, LARGE_POINT = 64, 2**18  # of a point: these inputs, and numbers of weights, are copied for its gradient


def forward(
    card: CardProperties, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any
) -> Steps:
    """Of ``aten.convolution``."""
    stride, padding, _dilation, transposed, _output_padding, groups = arguments
    if torch.backends.cudnn.enabled:
        to_input, _ = _cudnn(card, input, weight, out, stride, groups)
        patches = list(stride) == list(weight.shape[2:]) or math.prod(weight.shape[1:]) < SMALL_PATCH
        alone = patches and groups == 1 and not transposed and not _is_point(weight)
        return [RESULTS, 0 if alone else to_input]
    if _is_depthwise(input, weight, transposed, groups):
        return ()
    plain = weight.dim() < 5 and _is_point(weight) and set(stride) == {1} and not any(padding)
    columns = 0 if plain and not transposed else _columns(input, weight, out, transposed)
    ones = math.prod(out.shape[2:]) * out.element_size() if transposed and bias is not None else 0
    if groups == 1:
        return [RESULTS, columns, ones]
    steps: list[int | None] = []
    for _ in range(groups):
        steps += [bytes_of(input) // groups, bytes_of(out) // groups, columns]
        steps += [-len(steps), 2 - len(steps)]
    return [*steps, RESULTS]


def backward(
    card: CardProperties, _out: object, gradient: Tensor, input: Tensor, weight: Tensor, *arguments: Any
) -> Steps:
    """Of ``aten.convolution_backward``."""
    _sizes, stride, *_, transposed, _output_padding, groups, wanted = arguments
    if torch.backends.cudnn.enabled:
        to_input, to_weight = _cudnn(card, input, weight, gradient, stride, groups)
        return [RESULTS, to_input * wanted[0], -2, to_weight * wanted[1]]
    if _is_depthwise(input, weight, transposed, groups):
        return ()
    columns = _columns(input, weight, gradient, transposed)
    copy = copy_if_strided(gradient)
    if groups == 1:
        return [copy, RESULTS, columns]
    steps: list[int | None] = []
    for _group in range(groups):
        parts = [bytes_of(tensor) // groups for tensor in (gradient, input, *[input] * wanted[0], weight)]
        steps += [*parts, columns]
        last = len(steps)
        steps += [-last, -(last - len(parts) + 1), -(last - len(parts))]
    return [*steps, RESULTS]


def _cudnn(
    card: CardProperties, input: Tensor, weight: Tensor, out: Tensor, stride: Sequence[int], groups: int
) -> tuple[int, int]:
    """The bytes of cuDNN's workspace for the result or the input's gradient, and for the weight's gradient.

    Its kernels want channels last. What lies otherwise is copied, unless the kernel is a point or each channel a
    group. The gradient of the weight is summed in parts, of which there are enough for all multiprocessors.
    """
    parts = up(card.multiprocessors, up(weight.shape[0], TILE) * up(math.prod(weight.shape[1:]), TILE))
    sums = parts * weight.numel() * FLOAT_BYTES
    if groups > 1 and weight.shape[1] == 1:
        return 0, 0
    if _channels_last(input) or _channels_last(weight):
        return 0, sums
    copies = bytes_of(input) + bytes_of(out)
    if not _is_point(weight):
        return copies + bytes_of(weight), copies + sums
    if any(step > 1 for step in stride):
        return copies, copies + sums
    row = math.prod(out.shape[2:]) * weight.element_size()  # a sample's channel, whose alignment decides
    by_sample = input.shape[0] * weight.numel() * FLOAT_BYTES
    copied = weight.shape[1] < FEW_CHANNELS or (row % WEIGHT_ALIGNED and weight.numel() > LARGE_POINT)
    return copies if row % ALIGNED else 0, copies + sums if copied else by_sample


def _is_point(weight: Tensor) -> bool:
    return math.prod(weight.shape[2:]) == 1


def _channels_last(tensor: Tensor) -> bool:
    """Whether cuDNN is given this layout (``cudnn_conv_suggest_memory_format``)."""
    wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return wanted is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=wanted)


def _columns(input: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    """The patches of one sample: as many as the result has places, or the input of a transposed convolution."""
    patch = math.prod(weight.shape[1:])
    places = math.prod((input if transposed else out).shape[2:])
    return patch * places * input.element_size()


def _is_depthwise(input: Tensor, weight: Tensor, transposed: bool, groups: int) -> bool:
    """Whether each channel is a group, which has a kernel of its own (``is_depthwise``)."""
    return not transposed and groups > 1 and input.shape[1] == groups and weight.shape[0] % groups == 0
