"""Filters that look at how updates vary together: CAF and DnC.

Lies that agree with each other hide in every coordinate, but as one direction they stand out of the
spectrum of honest noise. CAF finds the direction in which the weighted updates vary most and takes
weight from each of them by the square of its way along that direction; then again, until n - 2f
is left. The answer is the weighted mean of the pass in which the largest variance was least.

All of it follows from the n x n inner products of the updates: the covariance, d x d, has the
eigenvalues of the centred inner products, weighted on both sides by the roots of the weights.

DnC looks at a few random coordinates, finds the direction in which they vary most and drops those
that go furthest along it.
"""

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import eigh
from torch import Tensor

from holdout import device
from holdout.errors import InfeasibleError, MisuseError, UserError
from holdout.parallel import keep_blas_to_one_thread
from holdout.rules.context import RuleContext, source_of
from holdout.rules.distance import Matrix, central_row, centred_gram, mean_of_rows
from holdout.rules.geometric import combined
from holdout.rules.norms import norms
from holdout.rules.rule import HONEST_MAJORITY, admit
from holdout.seeds import Stream

_FAR = 1e300
"""A squared norm above this is as good as infinite: sums of a few such products overflow."""

_ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""A variance below n times this share of the squared norms that it was computed from is none."""

_GONE = 1e-100
"""A confidence below this is none: weights are divided by, and must not be too small for that."""

_TIED = 1e-12
"""Twins are equally far but for rounding: who is this near to the furthest goes with it."""


def caf(updates: Tensor, *, f: int) -> Tensor:
    """The mean under weights that fall for updates which vary most, and together.

        c_i = 1 at first; while Σ_i c_i > n - 2f:
            μ_c = Σ_i c_i x_i / Σ_i c_i
            Σ_c = Σ_i c_i (x_i - μ_c)(x_i - μ_c)ᵀ / Σ_i c_i
            λ, v = the largest eigenvalue of Σ_c and its eigenvector
            τ_i = <v, x_i - μ_c>²
            c_i = c_i (1 - τ_i / max{τ_j : c_j > 0})
        result = the μ_c of least λ

    Rows that are not finite, or so far away that float64 overflows, are left out; each is one of
    the f.

    Source: Allouah, Guerraoui, Stephan, 2025, Towards Trustworthy Federated Learning with Untrusted
    Participants (covariance bound-agnostic filter), arXiv 2505.01874. The maximum over those that
    still count is ours: one that is out and far away would keep the others' weights from falling.

    Args:
        updates: The updates x_i, (n, d).
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
    weights = np.zeros((len(grams), len(first)))
    with keep_blas_to_one_thread():
        # One after another: a matrix stays in the cache, many at once do not.
        for place, each in enumerate(grams):
            confidence = counted[place, first] * size
            joined = each[first[:, None], first]
            weights[place] = _filtered(joined, confidence, enough=enough[place], step=step)
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


def _filtered(gram: Matrix, confidence: Matrix, *, enough: float, step: float) -> Matrix:
    """The weights of the pass of least variance.

    There are passes while the confidences, which start as given, still sum to more than `enough`,
    there is somebody left and something varies.
    """
    best, least = np.zeros_like(confidence), math.inf
    while total := confidence.sum():
        weights = confidence / total
        variance, scores = _furthest(gram, weights)
        if variance < least:
            best, least = weights, variance
        if variance == 0:
            break
        top = scores.max()
        shares = np.where(scores >= (1 - _TIED) * top, 1.0, scores / top)
        confidence = confidence * (1 - step * shares)
        confidence[confidence < _GONE] = 0.0
        if confidence.sum() <= enough:
            break
    return best


def _furthest(gram: Matrix, weights: Matrix) -> tuple[float, Matrix]:
    """The largest variance of weighted updates, and the squared ways along its direction.

    The squared ways are up to a common factor; of those that have no weight, 0.
    """
    towards = gram @ weights
    centred = gram - towards[:, None] - towards + weights @ towards
    spread = float(weights @ centred.diagonal())
    # The trace bounds the variance. Brought to size one, nothing overflows when it is squared.
    noise = len(gram) * _ROUNDING * float(weights @ gram.diagonal())
    if spread <= noise:
        return 0.0, np.zeros_like(weights)
    roots = np.sqrt(weights)
    if not weights.all():
        # One that is out may be far beyond that size.
        out = weights == 0
        centred[out], centred[:, out] = 0.0, 0.0
    ways = roots[:, None] * (centred / spread)
    last = len(gram) - 1
    # All eigenvalues, as numpy has it, take three times as long.
    values, vectors = eigh(ways * roots, subset_by_index=(last, last), check_finite=False)
    variance = float(values[0]) * spread
    return (variance if variance > noise else 0.0), np.square(vectors[:, 0] @ ways)


def dnc(
    updates: Tensor,
    *,
    f: int,
    context: RuleContext | None = None,
    iterations: int = 1,
    coordinates: int = 10_000,
    discard: float = 1.0,
) -> Tensor:
    """Divide and conquer: the mean without those furthest along the direction of most variance.

        in each of the iterations:
            r   = b random coordinates, or all if there are no more; x̃_i = x_i[r], μ̃ = their mean
            v   = the top right singular vector of the rows x̃_i - μ̃
            s_i = <x̃_i - μ̃, v>²
            G   = the n - floor(c f) rows of least s_i
        S      = the rows that are in every G; if there are none, those that are in most
        result = 1/|S| Σ_{i in S} x_i

    Rows that are not finite, or so long that float64 overflows, are out before, and each is one of
    the floor(c f). Of equal s_i the lower index stays.

    Source: Shejwalkar, Houmansadr, 2021, Manipulating the Byzantine: Optimizing Model Poisoning
    Attacks and Defenses for Federated Learning, NDSS. The rule for an empty S is ours.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.
        context: Where the coordinates are drawn from; without it, they are always the same.
        iterations: How often updates are filtered; at least 1.
        coordinates: How many coordinates are looked at each time, b; at least 1.
        discard: How many updates are dropped each time, in multiples of f; c, at least 0.

    Example:
        >>> dnc(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [2.0, 99.0]]), f=1)
        tensor([2.0000, 0.3333])
    """
    chosen = dnc_choice(
        updates,
        f=f,
        context=context,
        iterations=iterations,
        coordinates=coordinates,
        discard=discard,
    )
    return mean_of_rows(updates.detach(), chosen)


def dnc_choice(
    updates: Tensor,
    f: int,
    *,
    context: RuleContext | None = None,
    iterations: int = 1,
    coordinates: int = 10_000,
    discard: float = 1.0,
) -> tuple[int, ...]:
    """The indices, in increasing order, of the updates that `dnc` averages."""
    updates = admit("dnc", updates, f=f, needs=HONEST_MAJORITY)
    if iterations < 1 or coordinates < 1:
        raise UserError(
            f"dnc needs iterations >= 1 and coordinates >= 1; got {iterations} and {coordinates}"
        )
    if not (math.isfinite(discard) and discard >= 0):
        raise UserError(f"dnc needs discard >= 0; got {discard}")
    n, d = updates.shape
    count = n - math.floor(discard * f)
    if count < 1:
        raise InfeasibleError(f"dnc needs n > {discard:g}f updates; got n={n}, f={f}")
    kept = np.flatnonzero(np.square(norms(updates)) <= _FAR)
    if len(kept) <= count:
        return tuple(kept.tolist()) or tuple(range(count))
    source = source_of(context)
    times = np.zeros(len(kept), np.int64)
    values = device.to_numpy(updates)
    for _ in range(iterations):
        looked_at = draw_coordinates(source, d, coordinates)
        part = device.from_numpy(values[np.ix_(kept, looked_at)])
        times[np.argsort(_outlier_scores(part), kind="stable")[:count]] += 1
    return tuple(kept[times == times.max()].tolist())


def draw_coordinates(source: Stream, d: int, count: int) -> _Places:
    """`count` of d coordinates, drawn at random, in increasing order; all if there are no more."""
    if count >= d:
        return np.arange(d)
    generator = np.random.Generator(np.random.Philox(source.generator_seed()))
    return np.sort(generator.choice(d, count, replace=False, shuffle=False))


def _outlier_scores(rows: Tensor) -> Matrix:
    """The squared way of every row from the mean along the direction in which they vary most."""
    centre = central_row(rows)
    if centre is None:
        raise MisuseError("scores need rows that are finite")
    products = centred_gram(rows, centre)
    weights = np.full(len(rows), 1 / len(rows))
    with keep_blas_to_one_thread():
        return _furthest(products, weights)[1]
