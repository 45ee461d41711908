"""A model's weights as one flat vector, in the order of `named_parameters`.

Everything that travels (updates, candidates, the weights themselves) is such a vector; the module
only says how its numbers are used.
"""

import math
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdout import device
from holdout.custom_code import guard
from holdout.errors import MisuseError

_SHORT = 1 << 20
"""Vectors up to this length are summed on one thread."""

_COLUMNS = 1 << 13
"""Columns of which the deviation is computed at a time."""


class ProposalFault(StrEnum):
    """Why something that a worker sent is not an update."""

    MISSING = "missing"
    MISSHAPEN = "misshapen"
    """Not a vector of d floats."""
    NOT_FINITE = "not-finite"


def read_update(sent: object, dimension: int) -> Tensor | ProposalFault:
    """What a worker sent as float32, (d,), or the fault for which it is rejected.

    >>> read_update(torch.tensor([1.0, 2.0], dtype=torch.float64), 2)
    tensor([1., 2.])
    >>> str(read_update(torch.tensor([1.0, torch.nan]), 2)), str(read_update(None, 2))
    ('not-finite', 'missing')
    """
    if sent is None:
        return ProposalFault.MISSING
    # Of a sparse tensor, or one without values (device `meta`), not even the numbers can be read.
    plain = isinstance(sent, Tensor) and sent.layout is torch.strided
    if not isinstance(sent, Tensor) or not plain or not device.is_here(sent):
        return ProposalFault.MISSHAPEN
    if sent.shape != (dimension,):
        return ProposalFault.MISSHAPEN
    if not sent.is_floating_point():
        return ProposalFault.MISSHAPEN
    # Only then: what float64 holds may be too large for float32.
    numbers = sent.detach().float()
    # The sum is finite only if all are, and quick; finite numbers whose sum is not are rare.
    finite = math.isfinite(_sum(numbers)) or numbers.isfinite().all()
    return numbers if finite else ProposalFault.NOT_FINITE


def _sum(numbers: Tensor) -> float:
    if numbers.device.type != "cpu" or len(numbers) > _SHORT:
        return float(numbers.sum())
    # On one thread: torch's own take longer to wake than a short vector's sum.
    with np.errstate(invalid="ignore", over="ignore"):
        return float(numbers.numpy().sum())


def dimension(model: nn.Module) -> int:
    """The number of weights, d.

    >>> dimension(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in model.parameters())


def flatten(model: nn.Module) -> Tensor:
    """A copy of the model's weights, (d,).

    >>> flatten(nn.Linear(3, 2)).shape
    torch.Size([8])
    """
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def unflatten(model: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Views of the vector, named and shaped as the model's parameters.

    >>> parts = unflatten(nn.Linear(3, 2), torch.ones(8))
    >>> {name: tuple(part.shape) for name, part in parts.items()}
    {'weight': (2, 3), 'bias': (2,)}
    """
    d = dimension(model)
    if vector.shape != (d,):
        raise MisuseError(
            f"the model's weights are a vector of d={d} numbers; got shape {tuple(vector.shape)}"
        )
    parts: dict[str, Tensor] = {}
    start = 0
    for name, parameter in model.named_parameters():
        stop = start + parameter.numel()
        parts[name] = vector[start:stop].view(parameter.shape)
        start = stop
    return parts


def call(model: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """The logits of the model with these parameters; its errors are reported as the model's."""
    logits: Tensor = guard("the model", lambda: functional_call(model, parameters, (x,)))
    return logits


def norm(vector: Tensor) -> float:
    """The L2 norm, in float64: a finite float32 vector never overflows it.

    >>> norm(torch.tensor([3.0, 4.0]))
    5.0
    """
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def deviation(rows: Tensor) -> Tensor:
    """The standard deviation of each column, the population's: what torch computes, in less time.

    >>> deviation(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
    tensor([1., 0.])
    """
    if rows.device.type != "cpu":
        return rows.std(dim=0, correction=0)
    values = rows.detach().numpy()
    found = np.empty_like(values, shape=values.shape[1])
    # Welford's algorithm in float64, as in torch; but on many columns at once, in the cache.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(found), _COLUMNS):
            block = values[:, start : start + _COLUMNS].astype(np.float64)
            mean, squares = np.zeros(block.shape[1]), np.zeros(block.shape[1])
            for count, row in enumerate(block, start=1):
                apart = row - mean
                mean += apart / count
                squares += apart * (row - mean)
            found[start : start + _COLUMNS] = np.sqrt(squares / len(block))
    return device.from_numpy(found, like=rows)


def shrink(vector: Tensor, length: float, radius: float | None) -> Tensor:
    """The vector, of this length, scaled down to the radius; unchanged if it is short enough.

    >>> shrink(torch.tensor([3.0, 4.0]), 5.0, 1.0)
    tensor([0.6000, 0.8000])
    """
    if radius is None or length <= radius:
        return vector
    return (vector.double() * (radius / length)).float()


def of_length(vector: Tensor, length: float) -> Tensor:
    """The vector scaled to this L2 norm; zero stays zero.

    >>> of_length(torch.tensor([3.0, 4.0]), 10.0)
    tensor([6., 8.])
    """
    size = norm(vector)
    return vector * (length / size) if size else vector
