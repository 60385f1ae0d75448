"""The temporaries of convolutions on CUDA, with cuDNN and without it.

cuDNN decides for itself which algorithm and which workspace it takes. What stands here is a guess: copies of the
input, the weight and the result in cuDNN's own layout. An estimate with it has a wider margin (``Trace.has_guess``).
Without cuDNN, a sample's patches are the columns of a matrix (ConvolutionMM2d.cu, NaiveConvolutionTranspose2d.cu,
NaiveDilatedConvolution.cu), a group at a time (``_convolution`` in Convolution.cpp).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tuner.estimation.tracing.corrections.temporaries import RESULTS, Steps, bytes_of, copy_if_strided


def forward(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Steps:
    """Of ``aten.convolution``."""
    stride, padding, _dilation, transposed, _output_padding, groups = arguments
    if torch.backends.cudnn.enabled:
        return [RESULTS, bytes_of(input) + bytes_of(weight) + bytes_of(out)]
    if _is_depthwise(input, weight, transposed, groups):
        return ()
    plain = weight.dim() < 5 and math.prod(weight.shape[2:]) == 1 and set(stride) == {1} and not any(padding)
    columns = 0 if plain and not transposed else _columns(input, weight, out, transposed)
    ones = math.prod(out.shape[2:]) * out.element_size() if transposed and bias is not None else 0
    if groups == 1:
        return [RESULTS, columns, ones]
    steps: list[int | None] = []
    for _ in range(groups):
        steps += [bytes_of(input) // groups, bytes_of(out) // groups, columns]
        steps += [-len(steps), 2 - len(steps)]
    return [*steps, RESULTS]


def backward(_out: object, gradient: Tensor, input: Tensor, weight: Tensor, *arguments: Any) -> Steps:
    """Of ``aten.convolution_backward``."""
    *_, transposed, _output_padding, groups, wanted = arguments
    if torch.backends.cudnn.enabled:
        return [RESULTS, bytes_of(input) + bytes_of(weight) + bytes_of(gradient)]
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


def _columns(input: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    """The patches of one sample: as many as the result has places, or the input of a transposed convolution."""
    patch = math.prod(weight.shape[1:])
    places = math.prod((input if transposed else out).shape[2:])
    return patch * places * input.element_size()


def _is_depthwise(input: Tensor, weight: Tensor, transposed: bool, groups: int) -> bool:
    """Whether each channel is a group, which has a kernel of its own (``is_depthwise``)."""
    return not transposed and groups > 1 and input.shape[1] == groups and weight.shape[0] % groups == 0
