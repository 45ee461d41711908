"""The one place that decides the torch device, and where tensors are made.

Every tensor of this package is made by a function below, or from other tensors (`torch.stack`,
`zeros_like`, `new_empty`, arithmetic), which stay where those are. So all of them are where
`DEVICE` says. Noise is drawn on the CPU and then moved: a seed gives the same numbers everywhere.

Apple's `mps` has no numbers of 64 bits. What is computed in float64 elsewhere is computed in
float32 there.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cpu")
"""The device on which all tensors of this package are."""

T = TypeVar("T")


@contextmanager
def using(name: str) -> Iterator[None]:
    """Within the context, make all tensors on this device, in all threads.

    >>> with using("cpu"):
    ...     zeros(2).device
    device(type='cpu')
    """
    global DEVICE  # noqa: PLW0603  # Nobody else changes it, and nobody keeps a copy.
    before, DEVICE = DEVICE, torch.device(name)
    try:
        with widths():
            yield
    finally:
        DEVICE = before


def widths() -> AbstractContextManager[object]:
    """Use only the widths of numbers that the device has; each thread must enter this itself."""
    return _Single() if DEVICE.type == "mps" else nullcontext()


def fault(name: str) -> str | None:
    """Why this machine cannot compute on a device; None if it can.

    >>> fault("cpu") is None
    True
    """
    kind, _, number = name.partition(":")
    if kind == "cuda":
        if not torch.cuda.is_available():
            return "torch finds no CUDA device here"
        count = torch.cuda.device_count()
        if int(number or 0) >= count:
            return f"torch finds {count} CUDA device{'s' * (count != 1)} here, counted from 0"
    if kind == "mps" and not torch.backends.mps.is_available():
        return "torch finds no MPS device here"
    return None


class _Single(TorchFunctionMode):
    """Wherever float64 is asked for, float32 is given."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.double:
            func = Tensor.float
        given = {key: _narrow(value) for key, value in (kwargs or {}).items()}
        return func(*(_narrow(value) for value in args), **given)


def _narrow(value: T) -> T | torch.dtype:
    return torch.float32 if value is torch.float64 else value


def move(tensor: Tensor) -> Tensor:
    """The tensor on our device, itself if it is there."""
    return tensor.to(DEVICE)


def place(model: nn.Module) -> nn.Module:
    """The model with its parameters on our device."""
    return model.to(DEVICE)


def is_here(tensor: Tensor) -> bool:
    """Whether a tensor from outside is on our device."""
    there = tensor.device
    # Tensors made on "cuda" say that they are on "cuda:0".
    return there.type == DEVICE.type and DEVICE.index in (None, there.index)


def from_numpy(array: npt.NDArray[Any], *, like: Tensor | None = None) -> Tensor:
    """The numbers of an array as a tensor, on our device or on that of another tensor."""
    there = DEVICE if like is None else like.device
    if there.type == "mps" and array.dtype == np.float64:
        array = array.astype(np.float32)
    return torch.from_numpy(array).to(there)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor as an array, without a copy where possible."""
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def unfilled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of this shape and type whose numbers are still to be written, in torch's memory.

    numpy asks the system for huge pages, and where memory is in use by others these can take ten
    times as long to find as it takes to fill them.
    """
    return torch.empty_like(torch.from_numpy(array)).numpy()


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
