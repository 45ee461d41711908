"""The geometric median: the point of least summed distance to all updates.

It lies in the span of the updates, so Weiszfeld's iteration need not touch the d coordinates: a
point is `centre + Σ weights[i] (updates[i] - centre)`, and its distances follow from the n x n
inner products. The centre is an update that is near most others: seen from there the honest rows
are short vectors, and a huge one, whose weight is tiny, cancels nothing.

The iteration divides by distances, which fails on an update itself. So the updates are tested
first: one is the answer exactly if the others pull at it, each with unit force, no harder than it
and its twins can hold (Vardi and Zhang, 2000). Otherwise, an iterate that lands on an update leaves
it by their modified step.
"""

import math

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.parallel import even_width, keep_blas_to_one_thread, map_runs
from holdout.rules.distance import (
    ROUGH_LEAST,
    Matrix,
    central_row,
    centred_gram,
    distances_from_gram,
    distances_of,
    product_share,
)
from holdout.rules.rule import HONEST_MAJORITY, admit

TOLERANCE = 1e-8
"""Iterate until the n unit forces leave less than n times this. The summed distance is then within
twice this share of the least: its slope times the way to the minimum bounds the excess."""

STEPS_MAX = 1000
"""Iterations, each of some n² operations, after which the point is taken as it is."""

_LANDED = 1e-12
"""A squared distance below this share of what it was computed from is rounding, not distance."""

_SHORT = 1e-20
"""A squared distance below this may have lost products that float32 rounds to zero."""

_TRIES = 2
"""Points made by float32: the second knows how far the distances of the first were off."""

_CLEARLY = 100.0
"""How often more than all forces, which need 4, the summed distance must grow to any update."""

_BLOCK = 1 << 13


def geometric_median(updates: Tensor, *, f: int) -> Tensor:
    """The point of least summed distance to the updates, by Weiszfeld's iteration.

        result = the z of least Σ_i |x_i - z|

    Where several points are the least (an even number of updates on a line), it is one of the
    updates. Rows that are not finite, or so far away that float64 overflows, are left out.

    Source: Pillutla, Kakade, Harchaoui, 2022, Robust Aggregation for Federated Learning,
    arXiv 1912.13445; the iteration of Weiszfeld, 1937, with the steps of Vardi and Zhang, 2000.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> geometric_median(torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), f=1)
        tensor([0.5000, 0.5000])
    """
    updates = admit("geometric-median", updates, f=f, needs=HONEST_MAJORITY)
    centre = central_row(updates)
    if centre is None:
        return torch.full_like(updates[0], torch.nan)
    proven = _by_float32(updates, centre)
    if proven is not None:
        return proven
    gram = centred_gram(updates, centre)
    kept = np.flatnonzero(np.isfinite(gram.diagonal()))
    rows = updates if len(kept) == len(updates) else updates[device.from_numpy(kept)]
    gram = gram[np.ix_(kept, kept)]
    held = _update_of_least_sum(distances_from_gram(rows, gram))
    if held is not None:
        return rows[held].clone()
    with keep_blas_to_one_thread():
        weights = _weights(gram)
    return combined(rows, centre, weights)


def geometric_weights(gram: Matrix, *, f: int) -> Matrix:
    """The weights of the updates in `geometric_median`, nearly, by their inner products."""
    del f
    distances = distances_of(gram)
    held = _update_of_least_sum(distances)
    if held is not None:
        alone = np.zeros(len(gram))
        alone[held] = 1.0
        return alone
    centre = int(distances.sum(axis=1).argmin())
    to_centre = gram[centre]
    weights = _weights(gram - to_centre[:, None] - to_centre[None, :] + gram[centre, centre])
    weights[centre] += 1 - weights.sum()
    return weights


def _update_of_least_sum(distances: Matrix) -> int | None:
    """The index of the update that is the geometric median, if any is."""
    # No other can be: the geometric median has the least sum of all points.
    index = int(np.sqrt(distances).sum(axis=1).argmin())
    apart = distances[index] > 0
    away = distances[index][apart]
    between = distances[np.ix_(apart, apart)]
    # The squared force of the others is the sum of the cosines between their directions. The
    # inner products would lose a direction to a near twin; the distances do not.
    with np.errstate(invalid="ignore", over="ignore"):
        cosines = (away[:, None] + away[None, :] - between) / (2 * np.sqrt(np.outer(away, away)))
    force = math.sqrt(max(float(cosines.sum()), 0.0))
    holding = len(distances) - len(away)
    return index if force <= holding + len(distances) * TOLERANCE else None


def _by_float32(updates: Tensor, centre: Tensor) -> Tensor | None:
    """The geometric median by inner products in float32; None if that cannot be proven."""
    n, d = updates.shape
    if updates.dtype != torch.float32 or n * d < ROUGH_LEAST:
        return None
    gram = centred_gram(updates, centre, products=np.float32)
    if not np.isfinite(gram).all():
        return None
    off = np.zeros(n)
    with keep_blas_to_one_thread():
        for _ in range(_TRIES):
            weights = _weights(gram, off, tolerance=TOLERANCE / 10)
            point, squares = _point_and_distances(updates, centre, weights)
            if not squares.min() > _SHORT:
                return None
            if _is_least(gram, weights, squares, share=product_share(n, d)):
                return point
            off = squares - _squares(gram, weights)
    return None


def _is_least(gram: Matrix, weights: Matrix, squares: Matrix, *, share: float) -> bool:
    """Whether a point is the geometric median for certain, and no update is.

    Its squared distances are exact, but the inner products of any two rows may be wrong by this
    share of their norms.
    """
    n, norms, away = len(gram), np.sqrt(gram.diagonal()), np.sqrt(squares)
    pulls = 1 / away
    # What the updates hold of the sum of all forces is so little that errors hardly count.
    forces = pulls - pulls.sum() * weights
    error = share * float(np.abs(forces) @ norms) ** 2
    force = math.sqrt(max(float(forces @ gram @ forces), 0.0) + error)
    # From the point to an update the summed distance grows by what the others' distances bend, at
    # least r_i² sin² / 2(r_i + r_j) for each; were the update a median, by no more than the forces.
    mixed = gram @ weights
    reach = norms + np.abs(weights) @ norms
    cosines = gram - mixed[:, None] - mixed[None, :] + weights @ mixed
    blurred = (np.abs(cosines) + share * np.outer(reach, reach)) / np.outer(away, away)
    bends = np.maximum(1 - blurred**2, 0.0) / (away[:, None] + away[None, :])
    np.fill_diagonal(bends, 0.0)
    grows = (away * bends.sum(axis=1)).min()
    return force <= n * TOLERANCE and grows > _CLEARLY * n * TOLERANCE


def _squares(gram: Matrix, weights: Matrix) -> Matrix:
    """The squared distances of all rows from the point of these weights."""
    squares: Matrix = gram.diagonal() + weights @ gram @ weights - 2 * gram @ weights
    return squares


def _weights(gram: Matrix, off: Matrix | float = 0.0, *, tolerance: float = TOLERANCE) -> Matrix:
    """The weights of the minimum, which is known not to be an update.

    Squared distances are larger by `off` than the inner products tell.
    """
    n = len(gram)
    weights = np.zeros(n)
    for _ in range(STEPS_MAX):
        scale = gram.diagonal() + weights @ gram @ weights
        squared = scale - 2 * gram @ weights + off
        landed = squared <= _LANDED * scale
        pulls = np.zeros(n)
        pulls[~landed] = 1 / np.sqrt(squared[~landed])
        total = pulls.sum()
        forces = pulls - total * weights
        # Rounding can make the square of a vanishing force negative.
        force = math.sqrt(max(float(forces @ gram @ forces), 0.0))
        holding = np.count_nonzero(landed)
        if force <= holding + n * tolerance:
            break
        # Without a landing this is Weiszfeld's step, to the mean weighted by 1 / distance.
        weights += (1 - holding / force) * (pulls / total - weights)
    return weights


def combined(updates: Tensor, centre: Tensor, weights: Matrix) -> Tensor:
    """Return `centre + Σ weights[i] (updates[i] - centre)`, summed in float64.

    Rows of weight 0 are not looked at: they may hold anything.
    """
    values, origin = device.to_numpy(updates), device.to_numpy(centre)
    result = np.empty_like(origin)
    rows = np.flatnonzero(weights)
    shares, own = weights[rows], 1 - weights.sum()

    def work(starts: range) -> None:
        for start in starts:
            block = slice(start, start + _BLOCK)
            result[block] = shares @ values[rows, block].astype(np.float64) + own * origin[block]

    map_runs(work, len(origin), _BLOCK)
    return device.from_numpy(result, like=updates)


def _point_and_distances(updates: Tensor, centre: Tensor, weights: Matrix) -> tuple[Tensor, Matrix]:
    """What `combined` gives, and its squared distance from every update before it is rounded.

    All rows are finite.
    """
    values, origin = device.to_numpy(updates), device.to_numpy(centre)
    (n, d), own = values.shape, 1 - weights.sum()
    result, width = np.empty_like(origin), even_width(d, _BLOCK)

    def work(starts: range) -> Matrix:
        scratch, total = np.empty((n, width)), np.zeros(n)
        for start in starts:
            stop = min(start + width, d)
            block = scratch[:, : stop - start]
            block[:] = values[:, start:stop]
            point = weights @ block + own * origin[start:stop]
            result[start:stop] = point
            block -= point
            total += np.matmul(block[:, None, :], block[:, :, None])[:, 0, 0]
        return total

    squares = np.sum(map_runs(work, d, width), axis=0)
    return device.from_numpy(result, like=updates), squares
