"""How long updates are, and rules that shorten them: centered clipping, the norm-bounded mean.

Lengths are computed in float64, block by block of coordinates: nothing is as large as the updates
but what is returned. A row that is not finite, or so long that float64 overflows, has no length:
its norm is infinite.
"""

import math

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.errors import UserError
from holdout.parallel import map_runs
from holdout.rules.distance import Matrix
from holdout.rules.geometric import combined
from holdout.rules.rule import HONEST_MAJORITY, RuleContext, admit

CLIPPING_RADIUS = 10.0
"""Karimireddy, He and Jaggi's τ for worker momenta m = β m + (1 - β) g."""

_BLOCK = 1 << 13
"""Coordinates at a time: 30 rows of float64 take 2 MB, which a cache holds."""


def centered_clipping(
    updates: Tensor,
    *,
    f: int,
    context: RuleContext | None = None,
    radius: float = CLIPPING_RADIUS,
    iterations: int = 1,
) -> Tensor:
    """The last round's result, moved by the mean of the differences from it, each clipped.

        v_0     = the result of the last round; 0 in the first, or without a context
        v_{l+1} = v_l + (1/n) Σ_i (x_i - v_l) min(1, τ / |x_i - v_l|)
        result  = v_L, kept for the next round

    However far a liar is, it moves the result by at most τ/n in each iteration. A row that is not
    finite, or so far away that float64 overflows, moves nothing.

    Source: Karimireddy, He, Jaggi, 2021, Learning from History for Byzantine Robust Optimization,
    arXiv 2012.10333.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies; only their number's limit, n > 2f, depends on it.
        context: Keeps the result from round to round; without it, v_0 is 0.
        radius: The largest difference that is left alone, τ; more than 0.
        iterations: How often it is done in a round, L; at least 1.

    Example:
        >>> updates = torch.tensor([[3.0, 4.0], [3.0, 4.0], [30.0, 40.0]])
        >>> centered_clipping(updates, f=1, radius=5.0)
        tensor([3., 4.])
    """
    updates = admit("centered-clipping", updates, f=f, needs=HONEST_MAJORITY)
    check_positive("centered-clipping", "radius", radius)
    if iterations < 1:
        raise UserError(f"centered-clipping needs iterations >= 1; got {iterations}")
    centre = updates.new_zeros(updates.shape[1])
    if context is not None and "centre" in context.state:
        centre = context.state["centre"].to(updates.dtype)
    for _ in range(iterations):
        scales = clip_scales(norms(updates, centre), radius)
        centre = combined(updates, centre, scales / len(updates))
    if context is not None:
        context.state["centre"] = centre.clone()
    return centre


def norm_bound_mean(updates: Tensor, *, f: int, radius: float | None = None) -> Tensor:
    """The mean of the updates, each scaled down to a bound on its norm.

        result = (1/n) Σ_i x_i / max(1, |x_i| / M)

    Rows that are not finite, or so long that float64 overflows, are left out.

    Source: Sun, Kairouz, Suresh, McMahan, 2019, Can You Really Backdoor Federated Learning?,
    arXiv 1911.07963. There M is given; the median of the norms as its default is ours.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.
        radius: The largest norm that is left alone, M; without it the median of this round's norms,
            which is never longer than an honest update while n > 2f.

    Example:
        >>> norm_bound_mean(torch.tensor([[3.0, 4.0], [3.0, 4.0], [30.0, -40.0]]), f=1)
        tensor([3.0000, 1.3333])
    """
    updates = admit("norm-bound-mean", updates, f=f, needs=HONEST_MAJORITY)
    if radius is not None:
        check_positive("norm-bound-mean", "radius", radius)
    lengths = norms(updates)
    finite = np.isfinite(lengths)
    if not finite.any():
        return torch.full_like(updates[0], torch.nan)
    bound = float(np.median(lengths)) if radius is None else radius
    scales = clip_scales(lengths, bound)
    origin = updates.new_zeros(1).expand(updates.shape[1])
    return combined(updates, origin, scales / np.count_nonzero(finite))


def norms(updates: Tensor, centre: Tensor | None = None) -> Matrix:
    """The norm of every row, or its distance from `centre`; infinite if there is none."""
    values = device.to_numpy(updates)
    origin = None if centre is None else device.to_numpy(centre)
    n, d = values.shape
    width = min(d, _BLOCK)

    def work(starts: range) -> Matrix:
        scratch, total = np.empty((n, width)), np.zeros(n)
        # Inf - Inf and overflow come from liars; their rows have no norm.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in starts:
                stop = min(start + width, d)
                block = scratch[:, : stop - start]
                block[:] = values[:, start:stop]
                if origin is not None:
                    block -= origin[start:stop]
                total += np.einsum("ij,ij->i", block, block)
        return total

    squares = np.zeros(n)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in map_runs(work, d, width):
            squares += part
    return np.sqrt(np.where(np.isnan(squares), np.inf, squares))


def clip_scales(lengths: Matrix, radius: float) -> Matrix:
    """What shortens each length to the radius: at most 1, and 0 for one that is infinite."""
    scales: Matrix = radius / np.maximum(lengths, radius) if radius > 0 else np.zeros(len(lengths))
    return scales


def scaled(updates: Tensor, scales: Matrix) -> Tensor:
    """Every row times its own number, multiplied in float64."""
    values = device.to_numpy(updates)
    d = values.shape[1]
    result = np.empty_like(values)

    def work(starts: range) -> None:
        for start in starts:
            block = slice(start, start + _BLOCK)
            result[:, block] = values[:, block].astype(np.float64) * scales[:, None]

    map_runs(work, d, min(d, _BLOCK))
    return device.from_numpy(result, like=updates)


def check_positive(rule: str, name: str, value: float) -> None:
    """Refuse what is no length."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{rule} needs {name} > 0; got {value}")
