"""Rules that average the n - f updates which belong together best: MDA, SMEA, MoNNA.

**MDA** seeks the n - f updates of least diameter. Join every two updates that are further apart
than some length: a subset has at most this diameter exactly if the f updates outside it touch every
such pair, that is, if they are a vertex cover. Whether f vertices can cover a graph is found by a
search that branches only where a vertex has three or more edges, far below the C(n, f) subsets.
Usually several subsets share the least diameter, since of its two ends one may go or the other. So
the second largest distance decides between them, then the third, and so on: pair after pair from
the furthest on is added to what must be covered, where it still can be.

**SMEA** has no such structure. It looks at every subset, and refuses where there are too many.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout.errors import InfeasibleError, UserError
from holdout.parallel import keep_blas_to_one_thread, run_all
from holdout.rules.distance import (
    ROUGH_LEAST,
    Matrix,
    central_row,
    centred_gram,
    mean_of_rows,
    squared_distances,
)
from holdout.rules.norms import distance_bounds, squared_norms
from holdout.rules.rule import HONEST_MAJORITY, Needs, admit

STEPS_MAX = 50_000
"""Steps of MDA's search, each some n operations: at n = 200, four seconds."""

WORK_MAX = 2_000_000_000
"""What SMEA does at the most: the eigenvalues of m x m matrices count m³. Five to ten seconds."""

RING = 2
"""The edges of each vertex in a ring."""

_BATCH = 1024
"""Subsets whose eigenvalues are computed at once."""


@cache
def _most_for_smea(f: int) -> int:
    """The largest n for which looking at all subsets is no more than `WORK_MAX`."""
    if f == 0:  # There is one subset.
        return np.iinfo(np.int64).max
    n = 2 * f
    while math.comb(n + 1, f) * (n + 1 - f) ** 3 <= WORK_MAX:
        n += 1
    return n


SMEA_NEEDS = Needs(
    f"n > 2f and C(n, f) (n - f)³ <= {WORK_MAX:,}", lambda f: 2 * f + 1, most=_most_for_smea
)


def mda(updates: Tensor, *, f: int) -> Tensor:
    """Minimum diameter averaging: the mean of the n - f updates of least diameter.

        S      = the subset of n - f rows of least max{|x_i - x_j| : i, j in S}
        result = 1/(n - f) Σ_{i in S} x_i

    Of several such subsets it is the one whose second largest distance is least, then the third and
    so on; of equal distances those between rows of lower index go first. S is found exactly. Where
    that takes more than 50,000 steps of the search, the rule is infeasible for these updates.

    Source: El Mhamdi, Farhadkhani, Guerraoui, Guirguis, Hoang, Rouault, 2021, Collaborative
    Learning in the Jungle, arXiv 2008.00742, after Rousseeuw, 1985. Which of several subsets is
    taken is left open there.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
        >>> mda(torch.tensor([[1.0], [2.0], [2.5], [4.0], [99.0]]), f=2)
        tensor([1.8333])
    """
    return mean_of_rows(updates.detach(), mda_choice(updates, f=f))


def mda_choice(updates: Tensor, *, f: int) -> tuple[int, ...]:
    """The indices, in increasing order, of the updates that `mda` averages."""
    updates = admit("mda", updates, f=f, needs=HONEST_MAJORITY)
    return mda_indices(squared_distances(updates), f=f)


def mda_indices(distances: Matrix, *, f: int) -> tuple[int, ...]:
    """MDA's choice, given the squared distances."""
    n = len(distances)
    first, second = np.triu_indices(n, 1)
    order = np.argsort(-distances[first, second], kind="stable")
    pairs = list(zip(first[order].tolist(), second[order].tolist(), strict=True))
    search = _Search(n, f)
    outside = search.widest_cover(pairs)
    return tuple(i for i in range(n) if not outside >> i & 1)


@dataclass(slots=True)
class _Search:
    """The search for f updates that touch every pair which is too far apart.

    Sets of updates are the bits of an integer.
    """

    n: int
    f: int
    steps: int = 0

    def widest_cover(self, pairs: list[tuple[int, int]]) -> int:
        """The f updates that touch pair after pair, from the first on, wherever f of them can."""
        count, outside = self._longest_run(pairs)
        graph = _graph(self.n, pairs[:count])
        inside = 0
        for i, j in pairs[count:]:
            both = 1 << i | 1 << j
            if inside & both == both:
                continue
            graph[i] |= 1 << j
            graph[j] |= 1 << i
            if outside & both:
                continue
            other = self._cover_without(graph, inside)
            if other is not None:
                outside = other
                continue
            # Nobody can touch this pair as well: both of them stay in, whatever comes.
            graph[i] &= ~(1 << j)
            graph[j] &= ~(1 << i)
            inside |= both
            if inside.bit_count() == self.n - self.f:
                return (1 << self.n) - 1 & ~inside
        return outside

    def _longest_run(self, pairs: list[tuple[int, int]]) -> tuple[int, int]:
        """How many of the pairs, from the first on, can be touched at once, and by whom."""
        low, high, outside = 0, len(pairs), 0
        while low < high:
            middle = (low + high + 1) // 2
            found = self._cover_without(_graph(self.n, pairs[:middle]), 0)
            if found is None:
                high = middle - 1
            else:
                low, outside = middle, found
        return low, outside

    def _cover_without(self, graph: list[int], inside: int) -> int | None:
        """At most f vertices, none of them inside, that touch every edge; or None."""
        forced = 0
        for i in _bits(inside):
            forced |= graph[i]
        if forced & inside:
            return None
        left = (1 << self.n) - 1 & ~(inside | forced)
        others = self._cover(graph, left, self.f - forced.bit_count())
        return None if others is None else forced | others

    def _cover(self, graph: list[int], left: int, budget: int) -> int | None:
        """At most `budget` of the vertices left that touch every edge between them."""
        taken = 0
        while budget >= 0:
            self._count_step()
            left, degrees = _degrees(graph, left)
            if not degrees:
                return taken
            most = max(degrees.values())
            if sum(degrees.values()) > 2 * budget * most:
                return None
            leaf = next((i for i, degree in degrees.items() if degree == 1), None)
            if leaf is not None:
                # Its only edge must be touched, and the other end touches no fewer.
                chosen = graph[leaf] & left
            else:
                busiest = next(i for i, degree in degrees.items() if degree == most)
                chosen, around = 1 << busiest, graph[busiest] & left
                # Without leaves and vertices of three edges there are only rings: any vertex will
                # do. Otherwise it is this vertex or all its neighbours.
                if RING < most <= budget:
                    rest = self._cover(graph, left & ~(chosen | around), budget - most)
                    if rest is not None:
                        return taken | around | rest
            taken |= chosen
            left &= ~chosen
            budget -= 1
        return None

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise InfeasibleError(
                f"mda needs a search of at most {STEPS_MAX:,} steps; these n={self.n} updates with "
                f"f={self.f} take more"
            )


def _degrees(graph: list[int], left: int) -> tuple[int, dict[int, int]]:
    """Those of the vertices left that have edges between them, and how many each has."""
    degrees = {i: degree for i in _bits(left) if (degree := (graph[i] & left).bit_count())}
    return sum(1 << i for i in degrees), degrees


def _graph(n: int, pairs: list[tuple[int, int]]) -> list[int]:
    """The neighbours of every vertex."""
    graph = [0] * n
    for i, j in pairs:
        graph[i] |= 1 << j
        graph[j] |= 1 << i
    return graph


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def smea(updates: Tensor, *, f: int) -> Tensor:
    """Smallest maximum eigenvalue averaging: the mean of the n - f updates that vary least.

        λ(S)   = the largest eigenvalue of 1/|S| Σ_{i in S} (x_i - μ_S)(x_i - μ_S)ᵀ
        S      = the subset of n - f rows of least λ(S), the first of equals
        result = μ_S = 1/(n - f) Σ_{i in S} x_i

    Every subset is looked at, and the eigenvalues of each take some (n - f)³ operations. Where that
    makes more than 2,000,000,000, some seconds, the rule is infeasible: it takes every f < n/2 up
    to n = 22, f = 6 up to 26, 5 up to 29, 4 up to 36, 3 up to 49, 2 up to 84 and 1 up to 212.

    Rows that are not finite, or so far away that float64 overflows, are out, and each is one of
    the f.

    Source: Allouah, Guerraoui, Gupta, Pinot, Stephan, 2023, On the Privacy-Robustness-Utility
    Trilemma in Distributed Learning, arXiv 2302.04787.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
        >>> smea(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [2.0, 99.0]]), f=1)
        tensor([2.0000, 0.3333])
    """
    chosen = smea_choice(updates, f=f)
    return mean_of_rows(updates.detach(), chosen)


def smea_choice(updates: Tensor, *, f: int) -> tuple[int, ...]:
    """The indices, in increasing order, of the updates that `smea` averages."""
    updates = admit("smea", updates, f=f, needs=SMEA_NEEDS)
    centre = central_row(updates)
    if centre is None:
        return tuple(range(len(updates) - f))
    return smea_indices(centred_gram(updates, centre), f=f)


def smea_indices(gram: Matrix, *, f: int) -> tuple[int, ...]:
    """SMEA's choice, given the inner products seen from any one point."""
    kept = np.flatnonzero(np.isfinite(gram.diagonal()))
    size = min(len(gram) - f, len(kept))
    products = gram[np.ix_(kept, kept)]
    with np.errstate(invalid="ignore", over="ignore"):
        products = np.where(np.isfinite(products), products, np.inf)
    if size == len(kept):
        return tuple(kept.tolist())
    subsets = combinations(range(len(kept)), size)
    batches = []
    while batch := list(islice(subsets, _BATCH)):
        batches.append(np.array(batch, np.intp).reshape(len(batch), size))

    def least(batch: npt.NDArray[np.intp]) -> tuple[float, int]:
        values = _top_eigenvalues(products[batch[:, :, None], batch[:, None, :]])
        place = int(values.argmin())
        return float(values[place]), place

    with keep_blas_to_one_thread():
        found = run_all(least, batches)
    best = min(range(len(found)), key=lambda place: found[place][0])
    return tuple(kept[batches[best][found[best][1]]].tolist())


def _top_eigenvalues(grams: Matrix) -> Matrix:
    """The largest eigenvalue of the centred inner products, for each of the matrices."""
    means = grams.mean(axis=2)
    with np.errstate(invalid="ignore", over="ignore"):
        centred = grams - means[:, :, None] - means[:, None, :] + means.mean(axis=1)[:, None, None]
    finite = np.isfinite(centred).all(axis=(1, 2))
    values: Matrix = np.full(len(grams), np.inf)
    values[finite] = np.linalg.eigvalsh(centred[finite])[:, -1]
    return values


def monna(updates: Tensor, *, f: int, pivot: int | None = None) -> Tensor:
    """The mean of the n - f updates nearest to one of them, the pivot.

        S      = the n - f rows of least |x_i - x_p|, p itself among them
        result = 1/(n - f) Σ_{i in S} x_i

    In the paper every worker averages around its own update x_p. A server that trusts nobody has
    none: by default p is the row around which n - f rows lie closest, that is, of least distance to
    its (n - f)-th nearest row, itself counted; of equals, to the nearest but that, and so on. Of
    equal distances to the pivot the lower index is nearer.

    Source: Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan, 2023, Robust Collaborative
    Learning with Linear Gradient Overhead, arXiv 2209.10931. The default for p is ours.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.
        pivot: The row p, counted from 0, of somebody who is known not to lie; without it, as above.

    Example:
        >>> import torch
        >>> updates = torch.tensor([[1.0], [2.0], [2.5], [4.0], [99.0]])
        >>> monna(updates, f=2)
        tensor([1.8333])
        >>> monna(updates, f=2, pivot=3)
        tensor([2.8333])
    """
    return mean_of_rows(updates.detach(), monna_choice(updates, f=f, pivot=pivot))


def monna_choice(updates: Tensor, f: int, *, pivot: int | None = None) -> tuple[int, ...]:
    """The indices, in increasing order, of the updates that `monna` averages."""
    updates = admit("monna", updates, f=f, needs=HONEST_MAJORITY)
    if pivot is None:
        return monna_indices(squared_distances(updates), f=f)
    if pivot < 0:
        raise UserError(f"monna needs pivot >= 0; got {pivot}")
    if pivot >= len(updates):
        raise InfeasibleError(f"monna needs n > pivot updates; got n={len(updates)}, pivot={pivot}")
    return _nearest_to(updates, pivot, len(updates) - f)


def monna_indices(distances: Matrix, *, f: int) -> tuple[int, ...]:
    """MoNNA's choice around its own pivot, given the squared distances."""
    count = len(distances) - f
    # From the (n - f)-th nearest inwards: two rows may be that of each other.
    inwards = np.sort(distances, axis=1)[:, count - 1 :: -1]
    pivot = int(np.lexsort(inwards.T[::-1])[0])
    away = distances[pivot].copy()
    away[pivot] = -1.0
    return _nearest(away, count)


def _nearest_to(updates: Tensor, pivot: int, count: int) -> tuple[int, ...]:
    """The rows nearest to the pivot, itself first."""
    n = len(updates)
    away, doubtful = np.full(n, np.inf), np.arange(n)
    if updates.dtype == torch.float32 and updates.numel() >= ROUGH_LEAST:
        low, high = distance_bounds(updates, updates[pivot])
        low[pivot] = high[pivot] = 0.0
        # The distance of the last row that is taken is between these two.
        least, most = np.sort(low)[count - 1], np.sort(high)[count - 1]
        away[high < least] = 0.0
        doubtful = np.flatnonzero((high >= least) & (low <= most))
    rows = updates if len(doubtful) == n else updates[doubtful.tolist()]
    exact = squared_norms(rows, updates[pivot])
    away[doubtful] = np.where(np.isfinite(exact), exact, np.inf)
    away[pivot] = -1.0
    return _nearest(away, count)


def _nearest(away: Matrix, count: int) -> tuple[int, ...]:
    return tuple(sorted(np.argsort(away, kind="stable")[:count].tolist()))
