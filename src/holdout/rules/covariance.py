"""A filter that looks at how updates vary together: CAF (Allouah, Guerraoui, Stephan, ICML 2025).

Lies that agree with each other hide in every coordinate, but as one direction they stand out of the
spectrum of honest noise. CAF finds the direction in which the weighted updates vary most and takes
weight from each of them by the square of its way along that direction; then again, until n - 2f
is left. The answer is the weighted mean of the pass in which the largest variance was least.

All of it follows from the n x n inner products of the updates: the covariance, d x d, has the
eigenvalues of the centred inner products, weighted on both sides by the roots of the weights.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout.errors import MisuseError
from holdout.parallel import keep_blas_to_one_thread
from holdout.rules.distance import Matrix, central_row, centred_gram
from holdout.rules.geometric import combined
from holdout.rules.rule import HONEST_MAJORITY, admit

_FAR = 1e300
"""A squared norm above this is as good as infinite: sums of a few such products overflow."""

_ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""A variance below n times this share of the squared norms that it was computed from is none."""

_GONE = 1e-100
"""A confidence below this is none: weights are divided by, and must not be too small for that."""

_TIED = 1e-12
"""Twins are equally far but for rounding: who is this near to the furthest goes with it."""


def caf(updates: Tensor, *, f: int) -> Tensor:
    """The mean under the weights of `screen`: what varies most, and together, counts least.

    Rows that are not finite, or so far away that float64 overflows, are left out; each is one of
    the f.

    Args:
        updates: The updates, (n, d).
        f: How many of them may be lies.

    Example:
        >>> caf(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [2.0, 99.0], [2.0, 99.0]]), f=2)
        tensor([2.0000, 0.3423])
    """
    updates = admit("caf", updates, f=f, needs=HONEST_MAJORITY)
    centre = central_row(updates)
    if centre is None:
        return torch.full_like(updates[0], torch.nan)
    # Seen from an honest row a huge one, once its weight is zero, leaves no rounding behind.
    return combined(updates, centre, screen(centred_gram(updates, centre), f=f))


def screen(
    gram: Matrix, *, f: float, present: npt.ArrayLike | None = None, step: float = 1.0
) -> Matrix:
    """CAF's weights, from the inner products of the updates alone; not negative, they sum to 1.

    Seen from whichever point: weights do not change if all updates are moved. In every pass the
    furthest update goes out, so there are at most n. Departing from ByzFL's description, the
    furthest is sought among those that still count: one that is out and far away would otherwise
    keep the others' weights from ever falling. Where two directions vary equally, LAPACK chooses.

    Args:
        gram: The inner products, (n, n); or many such matrices at once, (s, n, n).
        f: How many updates may be lies, of those that count.
        present: 1 for those that count at all and 0 for others, (n,) or (s, n); without it, all.
            A member that counts and whose square is not finite gets 0 too, and is one of the f.
        step: How much of its weight the furthest loses in a pass: all of it, as CAF has it, or less
            for more and gentler passes.

    Returns:
        The weights, (n,) or (s, n); all 0 where nobody counts.

    Example:
        >>> rows = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [2.0, 99.0], [2.0, 99.0]])
        >>> screen(rows @ rows.T, f=2).round(2).tolist()
        [0.33, 0.34, 0.33, 0.0, 0.0]
        >>> screen(rows @ rows.T, f=2, present=[1, 1, 0, 0, 0]).tolist()
        [0.5, 0.5, 0.0, 0.0, 0.0]
    """
    gram = np.asarray(gram, dtype=np.float64)
    many = gram if gram.ndim == 3 else gram[None]  # noqa: PLR2004 - a batch of matrices.
    if many.ndim != 3 or many.shape[1] != many.shape[2] or f < 0:  # noqa: PLR2004
        raise MisuseError(f"screen needs (n, n) or (s, n, n) and f >= 0; got {gram.shape}, f={f}")
    squares = np.diagonal(many, axis1=1, axis2=2)
    asked = np.ones(squares.shape, np.bool_)
    if present is not None:
        asked &= np.asarray(present, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        counted = asked & (squares <= _FAR)
    left_over = np.maximum(f - (asked & ~counted).sum(axis=1), 0.0)
    both = counted[:, :, None] & counted[:, None, :]
    enough = counted.sum(axis=1) - 2 * left_over
    grams = np.where(both, many, 0.0)
    # Copies of one lie lose weight alike: they are one member with the weight of all.
    first, group, size = _twins(grams, counted)
    with keep_blas_to_one_thread():
        joined = grams[:, first[:, None], first]
        weights = _filtered(joined, counted[:, first] * size, enough, step)
    weights = (weights / size)[:, group]
    return weights if gram.ndim == 3 else weights[0]  # noqa: PLR2004


_Places: TypeAlias = npt.NDArray[np.intp]


def _twins(grams: Matrix, counted: npt.NDArray[np.bool_]) -> tuple[_Places, _Places, Matrix]:
    """Members whose inner products are the same to the bit, in all matrices.

    Returns:
        The first member of each group, the group of each member, and the groups' sizes.
    """
    groups: dict[bytes, int] = {}
    first, group = list[int](), list[int]()
    for member in range(grams.shape[1]):
        key = grams[:, member].tobytes() + counted[:, member].tobytes()
        if key not in groups:
            groups[key] = len(first)
            first.append(member)
        group.append(groups[key])
    size = np.bincount(group, minlength=len(first)).astype(np.float64)
    return np.array(first, np.intp), np.array(group, np.intp), size


def _filtered(grams: Matrix, confidence: Matrix, enough: Matrix, step: float) -> Matrix:
    """The weights of the pass of least variance, for each of the matrices.

    A pass is made for those matrices whose confidences, which start as given, still sum to more
    than `enough`.
    """
    best, least = np.zeros_like(confidence), np.full(len(grams), np.inf)
    going = np.flatnonzero(confidence.any(axis=1))
    while len(going):
        mine = confidence[going]
        weights = mine / mine.sum(axis=1, keepdims=True)
        variance, scores = _furthest(grams[going], weights)
        better = variance < least[going]
        best[going[better]], least[going[better]] = weights[better], variance[better]
        top = scores.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.where(scores >= (1 - _TIED) * top, 1.0, scores / top)
        rest = mine * (1 - step * shares)
        confidence[going] = np.where(rest < _GONE, 0.0, rest)
        left = confidence[going].sum(axis=1)
        # Nothing varies, or nobody is left: there is no further pass.
        going = going[(variance > 0) & (left > enough[going]) & (left > 0)]
    return best


def _furthest(grams: Matrix, weights: Matrix) -> tuple[Matrix, Matrix]:
    """The largest variance of weighted updates, and the squared ways along its direction.

    The squared ways are up to a factor that is common to the members of a matrix; of those that
    have no weight, 0.
    """
    towards = (grams @ weights[:, :, None])[:, :, 0]
    square = (weights * towards).sum(axis=1)
    centred = grams - towards[:, :, None] - towards[:, None, :] + square[:, None, None]
    roots = np.sqrt(weights)
    squares = np.diagonal(grams, axis1=1, axis2=2)
    spread = (weights * np.diagonal(centred, axis1=1, axis2=2)).sum(axis=1)
    # The trace bounds the variance. Brought to size one, nothing overflows when it is squared.
    noise = grams.shape[1] * _ROUNDING * (weights * squares).sum(axis=1)
    flat = spread <= noise
    scale = np.where(flat, 1.0, spread)
    # One that is out may be far beyond that size.
    counting = (weights > 0)[:, :, None] & (weights > 0)[:, None, :]
    ways = roots[:, :, None] * (np.where(counting, centred, 0.0) / scale[:, None, None])
    matrices = ways * roots[:, None, :]
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(1, 2)) / 2)
    along = (vectors[:, None, :, -1] @ ways)[:, 0]
    variance = np.where(flat | (values[:, -1] * scale <= noise), 0.0, values[:, -1] * scale)
    return variance, np.square(along)
