"""Pre-aggregations: what is done to all updates before a rule sees them.

A row that is not finite stays so: the rule behind the pre-aggregation deals with it.
"""

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.errors import UserError
from holdout.parallel import map_runs
from holdout.rules.distance import squared_distances
from holdout.rules.rule import ANY_NUMBER, HONEST_MAJORITY, admit

CLIPPING_RADIUS = 2.0

_BLOCK = 1 << 15
"""Coordinates mixed at a time."""


def nnm(updates: Tensor, *, f: int) -> Tensor:
    """Nearest-neighbour mixing: each row becomes the mean of the n - f rows nearest to it.

    Allouah et al., 2023. A row is its own nearest; of rows equally near, the lower index is nearer.

    Args:
        updates: The updates, (n, d).
        f: How many of them may be lies.

    Example:
        >>> nnm(torch.tensor([[0.0], [1.0], [3.0], [99.0]]), f=1)
        tensor([[ 1.3333],
                [ 1.3333],
                [ 1.3333],
                [34.3333]])
    """
    updates = admit("nnm", updates, f=f, needs=HONEST_MAJORITY)
    n = len(updates)
    distances = squared_distances(updates)
    np.fill_diagonal(distances, -1.0)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : n - f]
    shares = np.zeros((n, n))
    np.put_along_axis(shares, nearest, 1 / (n - f), axis=1)
    finite = device.to_numpy(updates.isfinite().all(dim=1))
    # Zero times infinity is not zero: rows that are not finite are mixed by hand.
    spoilt = (shares[:, ~finite] > 0).any(axis=1)
    values = device.to_numpy(updates)
    mixed = np.empty_like(values)

    def work(starts: range) -> None:
        for start in starts:
            block = slice(start, start + _BLOCK)
            mixed[:, block] = shares[:, finite] @ values[finite, block].astype(np.float64)

    map_runs(work, values.shape[1], min(values.shape[1], _BLOCK))
    mixed[spoilt] = np.nan
    return device.from_numpy(mixed, like=updates)


def clipping(updates: Tensor, *, f: int, radius: float = CLIPPING_RADIUS) -> Tensor:
    """Each row longer than the radius scaled down to it.

    Args:
        updates: The updates, (n, d).
        f: How many of them may be lies; the radius is the same whatever it is.
        radius: The largest L2 norm that is left alone.

    Example:
        >>> clipping(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), f=0, radius=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    updates = admit("clipping", updates, f=f, needs=ANY_NUMBER)
    if not radius > 0:
        raise UserError(f"clipping needs a radius above 0; got {radius}")
    norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    long = norms.isfinite() & (norms > radius)
    scales = torch.where(long, radius / norms, 1.0)
    return (updates.double() * scales[:, None]).to(updates.dtype)
