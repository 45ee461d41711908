"""Reading a model as a row of known layers, which training and scoring can then run in bulk.

`steps` gives that row, or None where the model is anything more than the sum of its layers (an own
`forward`, a hook, a layer it does not know, tied weights): such a model is simply called.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity)
FLAT, IMAGE = 2, 4
"""Dimensions of a batch of vectors, and of images."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A layer that is linear in its weights, and where they are in the flat vector."""

    module: nn.Linear | nn.Conv2d
    start: int
    width: int
    """How many numbers it puts out for one sample."""

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
    h = torch.zeros(1, *shape)
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
