"""Reading a model as a row of known layers, which training and scoring can then run in bulk.

`steps` gives that row, or None where the model is anything more than the sum of its layers (a
`forward` of its own, a hook, an unknown layer, tied weights): such a model is simply called.

`forward` runs a row that has convolutions, so that its gradient is fast. Memory is channels-last. A
convolution with few output channels leaves most of a vector register empty, and so does the 2 x 2
pooling after it. Where the two follow each other, pairs of rows are computed at once: twice the
channels, by a kernel one row taller that moves down in steps of two. The pooling then compares
neighbouring columns, and afterwards the two halves of the channels: in this order, so that of equal
maxima the one that torch's own pooling would take gets the slope.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from holdout import device

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity)
FLAT, IMAGE = 2, 4
"""Dimensions of a batch of vectors, and of images."""

# A register holds 16 floats: up to half of that, doubling the channels costs next to nothing.
PAIRED_CHANNELS_MAX = 8


@dataclass(frozen=True, slots=True)
class Affine:
    """A layer that is linear in its weights, and where those are in the flat vector."""

    module: nn.Linear | nn.Conv2d
    start: int
    width: int
    """How many numbers it outputs for one sample."""

    @property
    def middle(self) -> int:
        """Where the bias begins, if there is one."""
        return self.start + self.module.weight.numel()

    @property
    def stop(self) -> int:
        """Where the next layer's weights begin."""
        return self.middle + (0 if self.module.bias is None else self.module.bias.numel())

    def weight(self, vectors: Tensor) -> Tensor:
        """The layer's weight in each of the vectors (n, d): a view (n, outputs, inputs, ...)."""
        part = vectors[:, self.start : self.middle]
        return part.reshape(len(vectors), *self.module.weight.shape)

    def bias(self, vectors: Tensor) -> Tensor | None:
        """The layer's bias in each of the vectors (n, d): a view (n, outputs)."""
        return None if self.module.bias is None else vectors[:, self.middle : self.stop]

    def spans(self) -> list[tuple[slice, torch.Size]]:
        """Where each of the layer's parameters is in the vector, and its shape."""
        spans = [(slice(self.start, self.middle), self.module.weight.shape)]
        if self.module.bias is not None:
            spans.append((slice(self.middle, self.stop), self.module.bias.shape))
        return spans

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
        """This layer's convolution with other weights."""
        conv = self.module
        assert isinstance(conv, nn.Conv2d)  # noqa: S101
        return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, groups)


@dataclass(frozen=True, slots=True)
class Plain:
    """A layer without weights."""

    module: nn.Module


Step = Affine | Plain


def steps(model: nn.Module, shape: tuple[int, ...]) -> tuple[Step, ...] | None:
    """The model's layers for samples of this shape, or None if it must be called as a whole."""
    modules = _layers(model)
    if modules is None:
        return None
    h = device.zeros(1, *shape)
    row: list[Step] = []
    start = 0
    with torch.no_grad():
        for module in modules:
            # A linear layer also takes images, row by row, and a convolution takes one image
            # without a batch: rare, and not what the fast paths compute.
            wanted = _dimensions(module)
            if wanted is not None and h.dim() != wanted:
                return None
            h = module(h)
            if isinstance(module, nn.Linear | nn.Conv2d):
                step = Affine(module, start, h.numel())
                start = step.stop
                row.append(step)
            else:
                row.append(Plain(module))
    # Tied or foreign parameters would be elsewhere in the vector than the layers say.
    own = [part for step in row if isinstance(step, Affine) for part in step.module.parameters()]
    if not own or [id(part) for part in own] != [id(part) for part in model.parameters()]:
        return None
    return _pool_first(row) if h.dim() == FLAT else None


def apply(module: nn.Module, h: Tensor, *, in_place: bool = False) -> Tensor:
    """What a layer without weights gives for h, which is overwritten only on request."""
    match module:
        case nn.ReLU():
            return h.relu_() if in_place else h.relu()
        case nn.MaxPool2d() if halves(module):
            return _halve(h)
        case _:
            result: Tensor = module(h)
            return result


def forward(row: Sequence[Step], parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """The logits, by the parameters of each layer in turn; to be called with autograd on."""
    remaining = iter(parameters)
    h = x.contiguous(memory_format=torch.channels_last) if x.dim() == IMAGE else x
    pooled = False
    for step, following in zip(row, [*row[1:], None], strict=True):
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


def halves(pool: nn.MaxPool2d) -> bool:
    """Whether the pooling is the common one: 2 x 2, no overlap, an odd last row left out."""
    return (
        pool.kernel_size in {2, (2, 2)}
        and pool.stride in {2, (2, 2)}
        and pool.padding in {0, (0, 0)}
        and pool.dilation in {1, (1, 1)}
        and not pool.ceil_mode
    )


def _halve(h: Tensor) -> Tensor:
    # Two maxima run faster than torch's pooling, which also notes where each maximum was.
    height, width = h.shape[2] // 2 * 2, h.shape[3] // 2 * 2
    h = torch.maximum(h[:, :, 0:height:2], h[:, :, 1:height:2])
    return torch.maximum(h[:, :, :, 0:width:2], h[:, :, :, 1:width:2])


def _pool_first(row: list[Step]) -> tuple[Step, ...]:
    """ReLU before a maximum equals ReLU after it, to the bit, and then has less to do."""
    row = list(row)
    for i in range(len(row) - 1):
        if isinstance(row[i], Plain) and isinstance(row[i + 1], Plain):
            first, second = row[i].module, row[i + 1].module
            if isinstance(first, nn.ReLU) and isinstance(second, nn.MaxPool2d):
                row[i], row[i + 1] = row[i + 1], row[i]
    return tuple(row)


def _layers(module: nn.Module) -> list[nn.Module] | None:
    if _is_altered(module):
        return None
    if type(module) is nn.Sequential:
        layers: list[nn.Module] = []
        for child in module:
            inner = _layers(child)
            if inner is None:
                return None
            layers += inner
        return layers
    return [module] if _is_known(module) else None


def _is_altered(module: nn.Module) -> bool:
    """Whether calling the module does more than its class's `forward`."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, hook) for hook in hooks)


def _is_known(module: nn.Module) -> bool:
    # The exact type, not isinstance: a subclass may compute anything.
    kind = type(module)
    match module:
        case nn.Conv2d():
            return kind is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"
        case nn.MaxPool2d():
            return kind is nn.MaxPool2d and not module.return_indices
        case nn.Flatten():
            return kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        case _:
            return kind in {nn.Linear, nn.AvgPool2d, *ELEMENTWISE}


def _dimensions(module: nn.Module) -> int | None:
    match module:
        case nn.Linear():
            return FLAT
        case nn.Conv2d() | nn.MaxPool2d() | nn.AvgPool2d():
            return IMAGE
        case _:
            return None


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
    return step is not None and isinstance(step.module, nn.MaxPool2d) and halves(step.module)


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
