"""The forward pass of a layered model with convolutions, arranged so that its gradient is fast.

Memory is channels-last. A convolution with few output channels leaves most of a vector register
empty, and so does the 2 x 2 pooling after it. Where the two follow each other, pairs of rows are
computed at once: twice the channels, by a kernel one row taller that moves down in steps of two.
The pooling then compares neighbouring columns, and afterwards the two halves of the channels: in
this order, so that of equal maxima the one counts that torch's own pooling takes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from holdout.learning import layers
from holdout.learning.layers import Affine, Step

# A register holds 16 floats: up to half of that, doubling the channels costs next to nothing.
PAIRED_CHANNELS_MAX = 8


def forward(steps: Sequence[Step], parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """The logits, by the parameters of each layer in turn; to be called with autograd on."""
    remaining = iter(parameters)
    h = x.contiguous(memory_format=torch.channels_last) if x.dim() == layers.IMAGE else x
    pooled = False
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not isinstance(step, Affine):
            if not pooled:
                h = h.relu() if isinstance(step.module, nn.ReLU) else step.module(h)
            pooled = False
            continue
        weight = next(remaining)
        bias = None if step.module.bias is None else next(remaining)
        if isinstance(step.module, nn.Linear):
            h = F.linear(h, weight, bias)
        elif _is_halving(following) and _can_pair(step.module, h):
            h = _convolve_and_halve(step.module, h, weight, bias)
            pooled = True
        else:
            h = step.convolve(h, weight.contiguous(memory_format=torch.channels_last), bias)
    return h


class _Larger(torch.autograd.Function):
    """The larger half of (n, 2, width); of equal ones the first gets the slope."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor) -> Tensor:
        first, second = pairs.unbind(1)
        # As numbers: comparing and choosing by them is several times as fast as by booleans.
        is_first = pairs.new_empty(first.shape)
        torch.ge(first, second, out=is_first)
        ctx.save_for_backward(is_first)
        return torch.maximum(first, second)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (is_first,) = ctx.saved_tensors
        slopes = slope.new_empty(len(slope), 2, slope.shape[1])
        first, second = slopes.unbind(1)
        torch.mul(slope, is_first, out=first)
        torch.sub(slope, first, out=second)
        return slopes


def _is_halving(step: Step | None) -> bool:
    return step is not None and isinstance(step.module, nn.MaxPool2d) and layers.halves(step.module)


def _can_pair(conv: nn.Conv2d, h: Tensor) -> bool:
    if conv.out_channels > PAIRED_CHANNELS_MAX or isinstance(conv.padding, str):
        return False
    if conv.stride != (1, 1) or conv.dilation != (1, 1):
        return False
    sides = zip(h.shape[2:], conv.padding, conv.kernel_size, strict=True)
    return all((side + 2 * padding - kernel + 1) % 2 == 0 for side, padding, kernel in sides)


def _convolve_and_halve(conv: nn.Conv2d, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Even rows come in the first half of the channels, odd ones in the second.
    kernels = torch.cat([F.pad(weight, (0, 0, 0, 1)), F.pad(weight, (0, 0, 1, 0))])
    kernels = kernels.contiguous(memory_format=torch.channels_last)
    twice = None if bias is None else torch.cat([bias, bias])
    z = F.conv2d(h, kernels, twice, (2, 1), conv.padding).permute(0, 2, 3, 1)
    n, rows, columns, channels = z.shape
    pairs = _Larger.apply(z.reshape(-1, 2, channels))  # type: ignore[no-untyped-call]
    halved: Tensor = _Larger.apply(pairs.view(-1, 2, channels // 2))  # type: ignore[no-untyped-call]
    return halved.view(n, rows, columns // 2, channels // 2).permute(0, 3, 1, 2)
