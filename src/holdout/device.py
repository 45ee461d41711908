"""The one place that decides the torch device, and where tensors are made.

Every tensor of this package is made by a function below, or from other tensors (`torch.stack`,
`zeros_like`, `new_empty`, arithmetic), which stay where those are. So all of them are where
`DEVICE` says. Noise is drawn on the CPU and then moved: a seed gives the same numbers everywhere.
"""

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

DEVICE = torch.device("cpu")
"""The device on which all tensors of this package are."""


def is_here(tensor: Tensor) -> bool:
    """Whether a tensor from outside is on our device."""
    there = tensor.device
    # Tensors made on "cuda" say that they are on "cuda:0".
    return there.type == DEVICE.type and DEVICE.index in (None, there.index)


def from_numpy(array: npt.NDArray[Any], *, like: Tensor | None = None) -> Tensor:
    """The numbers of an array as a tensor, on our device or on that of another tensor."""
    return torch.from_numpy(array).to(DEVICE if like is None else like.device)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor as an array, without a copy where possible."""
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def generator(seed: int) -> torch.Generator:
    """A generator of noise."""
    return torch.Generator().manual_seed(seed)


def randn(*size: int, generator: torch.Generator | None = None) -> Tensor:
    """Independent normal numbers."""
    return torch.randn(*size, generator=generator).to(DEVICE)


def randperm(count: int, *, generator: torch.Generator) -> Tensor:
    """The numbers below `count` in random order."""
    return torch.randperm(count, generator=generator).to(DEVICE)


def _here(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *values, **options: make(*values, device=DEVICE, **options)


arange = _here(torch.arange)
empty = _here(torch.empty)
eye = _here(torch.eye)
full = _here(torch.full)
ones = _here(torch.ones)
tensor = _here(torch.tensor)
zeros = _here(torch.zeros)
