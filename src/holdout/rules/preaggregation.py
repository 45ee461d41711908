"""Pre-aggregations: what is done to all updates before a rule sees them.

A row that is not finite stays so: the rule behind the pre-aggregation deals with it. Each returns a
new tensor and leaves its input as it is.
"""

import numpy as np
from torch import Tensor

from holdout import device
from holdout.errors import UserError
from holdout.parallel import map_runs
from holdout.rules.context import RuleContext, source_of
from holdout.rules.distance import Matrix, distances_of, squared_distances
from holdout.rules.norms import (
    check_positive,
    clip_scales,
    finite_rows,
    in_runs,
    norms,
    scaled,
)
from holdout.rules.rule import ANY_NUMBER, HONEST_MAJORITY, admit

CLIPPING_RADIUS = 2.0
BUCKET_SIZE = 2

_BLOCK = 1 << 13
"""Coordinates mixed at a time."""

_BUCKET_BLOCK = 1 << 15
"""Coordinates of a bucket averaged at a time: three such rows stay in the cache."""

_TIED = 1e-6
"""Squared distances of an update that differ by less than this share of the larger and of its own
squared norm may change places when updates are rounded."""


def nnm(updates: Tensor, *, f: int) -> Tensor:
    """Nearest-neighbour mixing: each row becomes the mean of the n - f rows nearest to it.

        y_i = 1/(n - f) Σ_{j in N_i} x_j
        N_i = the n - f rows of least |x_j - x_i|, i itself among them

    Of rows equally near, the lower index is nearer.

    Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, 2023, Fixing by Mixing,
    arXiv 2302.01772.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
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
    finite = finite_rows(updates)
    # Zero times infinity is not zero: rows that are not finite are mixed by hand.
    spoilt = (shares[:, ~finite] > 0).any(axis=1)
    values, rows = device.to_numpy(updates), np.flatnonzero(finite)
    d, shares = values.shape[1], np.ascontiguousarray(shares[:, rows])
    mixed = device.unfilled(values)

    def work(starts: range) -> None:
        # Made once: fresh memory for every block would take longer than the products.
        before, after = np.empty((len(rows), _BLOCK)), np.empty((n, _BLOCK))
        for start in starts:
            stop = min(start + _BLOCK, d)
            part, product = before[:, : stop - start], after[:, : stop - start]
            for place, row in enumerate(rows):
                part[place] = values[row, start:stop]
            np.matmul(shares, part, out=product)
            mixed[:, start:stop] = product

    map_runs(work, d, min(d, _BLOCK))
    mixed[spoilt] = np.nan
    return device.from_numpy(mixed, like=updates)


def nnm_mix(gram: Matrix, *, f: int) -> Matrix | None:
    """The shares of the updates in the rows that `nnm` makes, unless a near tie decides them."""
    n = len(gram)
    distances = distances_of(gram)
    order = np.argsort(distances - np.eye(n), axis=1, kind="stable")
    ranked = np.take_along_axis(distances, order, axis=1)
    for near, row, square in zip(order, ranked, gram.diagonal(), strict=True):
        within = _TIED * (square + row[n - f - 1])
        tied = near[np.abs(row - row[n - f - 1]) <= within]
        # Which of several twins is kept makes no difference.
        if f and row[n - f] - row[n - f - 1] <= within and distances[np.ix_(tied, tied)].any():
            return None
    shares = np.zeros((n, n))
    np.put_along_axis(shares, order[:, : n - f], 1 / (n - f), axis=1)
    return shares


def bucketing(
    updates: Tensor, *, f: int, context: RuleContext | None = None, size: int = BUCKET_SIZE
) -> Tensor:
    """The means of random groups of s updates.

        π   = a random order of the n updates
        y_i = the mean of x_π(j) for j from (i - 1) s + 1 to min(n, i s),  i = 1 .. ceil(n / s)

    A liar spoils the group that it is in, so the rule behind still has to withstand f of only
    ceil(n / s) rows. A group with a row that is not finite is not finite.

    Source: Karimireddy, He, Jaggi, 2022, Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing, arXiv 2006.09365.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies; the groups are the same whatever it is.
        context: Where the order is drawn from; without it, it is always the same order.
        size: How many updates make a group, s; at least 1. The last group may be smaller.

    Example:
        >>> import torch
        >>> bucketing(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]), f=1).shape
        torch.Size([3, 1])
    """
    updates = admit("bucketing", updates, f=f, needs=ANY_NUMBER)
    n = len(updates)
    count = bucket_count(n, size=size)
    order = source_of(context).sample(range(n), n)
    groups = [order[i * size : (i + 1) * size] for i in range(count)]
    values = device.to_numpy(updates)
    means = device.unfilled(values[:count])

    def work(starts: range) -> None:
        scratch = np.empty(_BUCKET_BLOCK, values.dtype)
        # Inf - Inf comes from liars.
        with np.errstate(invalid="ignore"):
            for start in starts:
                block = slice(start, start + _BUCKET_BLOCK)
                for i, group in enumerate(groups):
                    # Shares, so that two huge numbers do not overflow before they are halved.
                    mean, share = means[i, block], values.dtype.type(1 / len(group))
                    np.multiply(values[group[0], block], share, out=mean)
                    part = scratch[: len(mean)]
                    for j in group[1:]:
                        np.multiply(values[j, block], share, out=part)
                        mean += part

    in_runs(work, values.shape[1], _BUCKET_BLOCK)
    return device.from_numpy(means, like=updates)


def bucket_count(n: int, size: int = BUCKET_SIZE) -> int:
    """How many rows `bucketing` makes of n."""
    if size < 1:
        raise UserError(f"bucketing needs size >= 1; got {size}")
    return -(-n // size)


def clipping(updates: Tensor, *, f: int, radius: float = CLIPPING_RADIUS) -> Tensor:
    """Each row longer than the radius scaled down to it.

        y_i = x_i min(1, c / |x_i|)

    Source: static clipping as in Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan, 2024, Adaptive
    Gradient Clipping for Robust Federated Learning, arXiv 2405.14432.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies; the radius is the same whatever it is.
        radius: The largest L2 norm that is left alone, c; more than 0.

    Example:
        >>> import torch
        >>> clipping(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), f=0, radius=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    updates = admit("clipping", updates, f=f, needs=ANY_NUMBER)
    check_positive("clipping", "radius", radius)
    lengths = norms(updates)
    # What is not finite, or has no length in float64, stays as it is.
    scales = np.where(np.isfinite(lengths), clip_scales(lengths, radius), 1.0)
    return scaled(updates, scales)


def clipping_mix(gram: Matrix, *, f: int, radius: float = CLIPPING_RADIUS) -> Matrix:
    """The shares of the updates in the rows that `clipping` makes."""
    del f
    return np.diag(clip_scales(np.sqrt(gram.diagonal()), radius))


def arc(updates: Tensor, *, f: int) -> Tensor:
    """The longest updates scaled down to the norm of the longest of the others.

        k   = floor(2 (f / n) (n - f))
        C   = the (k + 1)-th largest of the norms |x_1|, ..., |x_n|
        y_i = x_i min(1, C / |x_i|)

    A row that is not finite counts as one of the longest, and stays as it is.

    Source: Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan, 2024, Adaptive Gradient Clipping for
    Robust Federated Learning, arXiv 2405.14432.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
        >>> arc(torch.tensor([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]]), f=1)
        tensor([[3.0000, 4.0000],
                [0.3000, 0.4000],
                [3.0000, 4.0000]])
    """
    updates = admit("arc", updates, f=f, needs=HONEST_MAJORITY)
    n = len(updates)
    lengths = norms(updates)
    radius = _arc_radius(lengths, f)
    scales = clip_scales(lengths, radius) if np.isfinite(radius) else np.ones(n)
    if not np.isfinite(lengths).all():
        # Where float64 only overflowed, what is cut to the radius is nothing.
        scales[~finite_rows(updates)] = 1.0
    return scaled(updates, scales)


def arc_mix(gram: Matrix, *, f: int) -> Matrix:
    """The shares of the updates in the rows that `arc` makes."""
    lengths = np.sqrt(gram.diagonal())
    return np.diag(clip_scales(lengths, _arc_radius(lengths, f)))


def _arc_radius(lengths: Matrix, f: int) -> float:
    n = len(lengths)
    return float(np.sort(lengths)[n - 1 - 2 * f * (n - f) // n])
