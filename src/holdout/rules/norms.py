"""How long updates are, and rules that shorten them: centered clipping, the norm-bounded mean.

Lengths are computed block by block of coordinates: nothing is as large as the updates but what is
returned. A row that is not finite, or so long that float64 overflows, has no length:
its norm is infinite.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.errors import MisuseError, UserError
from holdout.parallel import keep_blas_to_one_thread, map_runs
from holdout.rules.context import RuleContext
from holdout.rules.distance import WORTH_A_THREAD, Matrix
from holdout.rules.geometric import combined
from holdout.rules.rule import HONEST_MAJORITY, admit

T = TypeVar("T")

CLIPPING_RADIUS = 10.0
"""Karimireddy, He and Jaggi's τ for worker momenta m = β m + (1 - β) g."""

_BLOCK = 1 << 13
"""Coordinates at a time."""

_SMALL = 1e-20
"""A square below this may have lost products that float32 rounds to zero."""

_SUMMED = 512
"""Products that are summed in float32 where the error must have a bound."""

_TINY = 1e-30
"""A weight below this has lost digits in float32."""


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
    centre: Tensor | None = None  # That is, 0.
    if context is not None and "centre" in context.state:
        centre = context.state["centre"].to(updates.dtype)
    for _ in range(iterations):
        scales = clip_scales(norms(updates, centre), radius)
        centre = weighted_sum(updates, centre, scales / len(updates))
    if centre is None:
        raise MisuseError("centered-clipping made no step")
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
    return weighted_sum(updates, None, scales / np.count_nonzero(finite))


def norms(updates: Tensor, centre: Tensor | None = None) -> Matrix:
    """The norm of every row, or its distance from `centre`; infinite if there is none.

    Products are summed in the type of the updates, some thousand at a time, and these sums in
    float64: good to about 1e-7. Rows whose squares are too large or too small for that are done
    again in float64.
    """
    squares = squared_norms(updates, centre, products=device.to_numpy(updates).dtype)
    with np.errstate(invalid="ignore"):
        again = np.flatnonzero(~((squares > _SMALL) & np.isfinite(squares)))
    if len(again) and updates.dtype == torch.float32:
        squares[again] = squared_norms(updates[again.tolist()], centre)
    return np.sqrt(np.where(np.isnan(squares), np.inf, squares))


def squared_norms(
    updates: Tensor,
    centre: Tensor | None = None,
    *,
    products: npt.DTypeLike = np.float64,
) -> Matrix:
    """The square of every row's norm, or of its distance from `centre`; may be NaN or infinite.

    `products` is the type in which those of one block of coordinates are summed.
    """
    values = device.to_numpy(updates)
    origin = None if centre is None else device.to_numpy(centre)
    n, d = values.shape
    width = min(d, _BLOCK)

    def work(starts: range) -> Matrix:
        is_plain = origin is None and values.dtype == products
        scratch = np.empty((0 if is_plain else n, width), products)
        total = np.zeros(n)
        # Inf - Inf and overflow come from liars; their rows have no norm.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in starts:
                stop = min(start + width, d)
                block = values[:, start:stop]
                if not is_plain:
                    scratch[:, : stop - start] = block
                    block = scratch[:, : stop - start]
                    if origin is not None:
                        block -= origin[start:stop].astype(products)
                # The inner products of all rows in one call: short ones take less than a call each.
                total += np.matmul(block[:, None, :], block[:, :, None])[:, 0, 0]
        return total

    squares = np.zeros(n)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in in_runs(work, d, width):
            squares += part
    return squares


def distance_bounds(updates: Tensor, centre: Tensor) -> tuple[Matrix, Matrix]:
    """The least and the most that every row's squared distance from `centre` can be, by float32.

    They hold in whatever order a few hundred products are summed; these sums are added in float64.
    What float32 cannot tell is between 0 and infinity.
    """
    values, origin = device.to_numpy(updates), device.to_numpy(centre)
    n, d = values.shape

    def work(starts: range) -> Matrix:
        scratch = np.zeros((n, _BLOCK), np.float32)
        pieces, total = scratch.reshape(n, -1, _SUMMED), np.zeros(n)
        with np.errstate(invalid="ignore", over="ignore"):
            for start in starts:
                stop = min(start + _BLOCK, d)
                block = scratch[:, : stop - start]
                np.subtract(values[:, start:stop], origin[start:stop], out=block)
                scratch[:, stop - start :] = 0.0
                sums = np.matmul(pieces[:, :, None, :], pieces[:, :, :, None])
                total += sums[:, :, 0, 0].sum(axis=1, dtype=np.float64)
        return total

    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.sum(in_runs(work, d, _BLOCK), axis=0)
        # A rounding for each of the products, two for each difference, and some in float64.
        share = 2.0**-24 * (_SUMMED + 8)
        is_told = (squares > _SMALL) & np.isfinite(squares)
        low = np.where(is_told, squares * (1 - share), 0.0)
        return low, np.where(is_told, squares * (1 + share), np.inf)


def in_runs(work: Callable[[range], T], d: int, width: int) -> list[T]:
    """`map_runs`, or one run where waking a thread would take longer than it saves."""
    if d >= WORTH_A_THREAD:
        return map_runs(work, d, width)
    with keep_blas_to_one_thread():
        return [work(range(0, d, width))]


def weighted_sum(updates: Tensor, centre: Tensor | None, weights: Matrix) -> Tensor:
    """Return `centre + Σ weights[i] (updates[i] - centre)`, for weights that sum to at most 1.

    Summed in the type of the updates, which is good enough where nothing cancels. Rows of weight 0
    are not looked at: they may hold anything.
    """
    values = device.to_numpy(updates)
    d = values.shape[1]
    rows = np.flatnonzero(weights)
    if (weights[rows] < _TINY).any():
        # As float32 such a weight has few digits; its row is huge.
        return combined(updates, updates.new_zeros(d) if centre is None else centre, weights)
    origin = None if centre is None else device.to_numpy(centre)
    shares, own = weights[rows].astype(values.dtype), values.dtype.type(1 - weights.sum())
    result = np.empty(d, values.dtype)

    def work(starts: range) -> None:
        for start in starts:
            block = slice(start, min(start + _BLOCK, d))
            part = values[:, block] if len(rows) == len(values) else values[rows, block]
            np.dot(shares, part, out=result[block])
            if origin is not None:
                result[block] += own * origin[block]

    in_runs(work, d, _BLOCK)
    return device.from_numpy(result, like=updates)


def clip_scales(lengths: Matrix, radius: float) -> Matrix:
    """What shortens each length to the radius: at most 1, and 0 for one that is infinite."""
    scales: Matrix = radius / np.maximum(lengths, radius) if radius > 0 else np.zeros(len(lengths))
    return scales


def scaled(updates: Tensor, scales: Matrix) -> Tensor:
    """Every row times its own number, multiplied in the type of the updates."""
    values = device.to_numpy(updates)
    d = values.shape[1]
    result, factors = device.unfilled(values), scales.astype(values.dtype)[:, None]
    tiny = np.flatnonzero(scales < _TINY)

    def work(starts: range) -> None:
        run = slice(starts.start, min(starts[-1] + _BLOCK, d))
        with np.errstate(invalid="ignore"):
            np.multiply(values[:, run], factors, out=result[:, run])
            for start in starts if len(tiny) else ():
                block = slice(start, min(start + _BLOCK, d))
                for i in tiny:
                    result[i, block] = values[i, block].astype(np.float64) * scales[i]

    in_runs(work, d, _BLOCK)
    return device.from_numpy(result, like=updates)


def finite_rows(updates: Tensor) -> npt.NDArray[np.bool_]:
    """Which rows hold finite numbers alone."""
    finite = np.isfinite(norms(updates))
    for i in np.flatnonzero(~finite):
        finite[i] = np.isfinite(device.to_numpy(updates[int(i)])).all()
    return finite


def check_positive(rule: str, name: str, value: float) -> None:
    """Refuse what is no length."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{rule} needs {name} > 0; got {value}")
