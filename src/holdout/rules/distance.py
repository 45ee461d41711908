"""Rules that trust the updates which lie near many others: Krum, multi-Krum, Bulyan.

All of them look at nothing but the squared distances between updates. These come from inner
products, |a - b|² = |a|² + |b|² - 2ab, one matrix product for each block of coordinates. Three
things keep them exact:

- everything is in float64 and relative to one of the central updates, so that a large offset common
  to all of them does not drown their differences (Krum looks at products in float32 first, with
  bounds on their errors, and where the bounds decide that is all);
- identical rows, which attackers like to send, get the distance 0 and equal distances to the rest;
- a pair that is much nearer to each other than to the centre is computed again, by subtraction.

A row that is not finite, or so far away that float64 overflows, is infinitely far from every other.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.parallel import even_width, map_runs
from holdout.rules.coordinatewise import mean_of_nearest
from holdout.rules.rule import Needs, admit

Matrix: TypeAlias = npt.NDArray[np.float64]

KRUM_NEEDS = Needs("n > 2f + 2", lambda f: 2 * f + 3)
BULYAN_NEEDS = Needs("n >= 4f + 3", lambda f: 4 * f + 3)

_PRODUCT = 1 << 19
"""Bytes of the rows in one matrix product: they stay in the cache of a core."""

_WIDTH_MIN = 256
"""With fewer coordinates in a product, starting it takes longer than the product."""

_ROWS_AT_ONCE = 8
"""Rows that OpenBLAS multiplies at once."""

_BLOCK = 1 << 15
"""Coordinates subtracted at a time."""

WORTH_A_THREAD = 1 << 20
"""With fewer coordinates than this, waking a thread takes longer than it saves."""

_ESTIMATED = 1e-6
"""By what share of both squared norms an estimated squared distance may be wrong."""

ROUGH_LEAST = 1 << 18
"""With fewer numbers than this in the updates, bounds save no time."""

_PROBE = 64
"""Coordinates looked at to guess which rows are central and which may be identical."""

_DIFFERENCES = 1 << 20
"""Differences of these coordinates that are computed at once: bounds memory."""

_ROUNDING = 1e-12
"""A squared distance below this share of the squared norms that it was computed from is none."""

_CANCELLED = 1e-6
"""A squared distance below this share of the squared distance to the centre is computed again."""


def krum(updates: Tensor, *, f: int) -> Tensor:
    """The update nearest to its n - f - 2 closest peers.

        s(i)   = Σ_{j in N_i} |x_i - x_j|²
        N_i    = the n - f - 2 others of least |x_i - x_j|
        result = x_i of least s(i)

    Of equal scores the first wins.

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, 2017, Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> krum(torch.tensor([[1.0], [2.0], [2.5], [3.0], [99.0]]), f=1)
        tensor([2.5000])
    """
    return updates.detach()[krum_choice(updates, f=f)].clone()


def krum_choice(updates: Tensor, *, f: int) -> int:
    """The index of the update that `krum` returns."""
    updates = admit("krum", updates, f=f, needs=KRUM_NEEDS)
    rough = _rough_scores(updates, neighbours=len(updates) - f - 2)
    if rough is not None:
        low, high = rough
        rivals = np.flatnonzero(low <= high.min())
        # Identical rows tie exactly, and then the first is Krum's choice.
        if len({_first_twins(updates)[index] for index in rivals}) == 1:
            return int(rivals[0])
    return krum_index(squared_distances(updates), f=f)


def krum_weights(gram: Matrix, *, f: int) -> Matrix | None:
    """All weight on Krum's choice, from inner products; None if rounding might choose another."""
    norms = gram.diagonal()
    both = norms[:, None] + norms[None, :]
    distances = distances_of(gram)
    low, high = (
        _scores(np.maximum(distances + sign * _ESTIMATED * both, 0.0), neighbours=len(gram) - f - 2)
        for sign in (-1, 1)
    )
    rivals = np.flatnonzero(low <= high.min())
    if distances[rivals[0], rivals].any():  # Twins tie exactly, and it matters not which is taken.
        return None
    weights = np.zeros(len(gram))
    weights[rivals[0]] = 1.0
    return weights


def krum_unsquared(updates: Tensor, *, f: int) -> Tensor:
    """Krum with the sum of the distances, not of their squares, as HoldOut's authors compute it.

        s(i)   = Σ_{j in N_i} |x_i - x_j|
        N_i    = the n - f - 2 others of least |x_i - x_j|
        result = x_i of least s(i)

    Far updates count less. So an attacker gets larger lies through: a few copies of a lie are at
    distance zero from each other, and the honest neighbours that make up the rest weigh little.

    Source: the code of the authors of HoldOut SGD (Azulay, Raz, Globerson, Koren, Afek, 2020,
    Holdout SGD: Byzantine Tolerant Federated Learning, arXiv 2008.04612).

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> krum_unsquared(torch.tensor([[1.0], [2.0], [2.5], [3.0], [99.0]]), f=1)
        tensor([2.5000])
    """
    return updates.detach()[krum_unsquared_choice(updates, f=f)].clone()


def krum_unsquared_choice(updates: Tensor, *, f: int) -> int:
    """The index of the update that `krum_unsquared` returns."""
    updates = admit("krum-unsquared", updates, f=f, needs=KRUM_NEEDS)
    return krum_index(np.sqrt(squared_distances(updates)), f=f)


def multi_krum(updates: Tensor, *, f: int) -> Tensor:
    """The mean of the n - f updates of best Krum score.

        s(i)   = Σ_{j in N_i} |x_i - x_j|²
        N_i    = the n - f - 2 others of least |x_i - x_j|
        result = 1/(n - f) Σ_{i in S} x_i,  S = the n - f rows of least s(i)

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, 2017, Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent, with m = n - f.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> multi_krum(torch.tensor([[1.0], [2.0], [2.5], [2.5], [99.0]]), f=1)
        tensor([2.])
    """
    return mean_of_rows(updates, multi_krum_choice(updates, f=f))


def mean_of_rows(updates: Tensor, chosen: Sequence[int]) -> Tensor:
    """The mean of some of the rows, without a copy of them."""
    first, *others = chosen
    # In numpy and in blocks: torch's threads take twice as long to synchronise as the sums take.
    values = device.to_numpy(updates)
    total = values[first].copy()

    def work(starts: range) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            for start in starts:
                block = slice(start, start + _BLOCK)
                for index in others:
                    total[block] += values[index, block]

    if len(total) < WORTH_A_THREAD:
        work(range(0, len(total), _BLOCK))
    else:
        map_runs(work, len(total), _BLOCK)
    return device.from_numpy(total, like=updates).div_(1 + len(others))


def multi_krum_choice(updates: Tensor, *, f: int) -> tuple[int, ...]:
    """The indices, in increasing order, of the updates that `multi_krum` averages."""
    updates = admit("multi-krum", updates, f=f, needs=KRUM_NEEDS)
    n = len(updates)
    rough = _rough_scores(updates, neighbours=n - f - 2)
    if rough is not None:
        low, high = rough
        order = np.argsort(high, kind="stable")
        best, others = order[: n - f], order[n - f :]
        if len(others) == 0 or high[best].max() < low[others].min():
            return tuple(sorted(best.tolist()))
    return multi_krum_indices(squared_distances(updates), f=f)


def bulyan(updates: Tensor, *, f: int) -> Tensor:
    """Of n - 2f updates chosen by Krum, the n - 4f values nearest the median, averaged.

        S         = n - 2f rows: Krum's choice, again and again among those that are left
        result[k] = the mean of the n - 4f values of {x_i[k] : i in S} nearest to their median

    Towards the end Krum has fewer than f + 3 rows left; each is then scored by its nearest peer.

    Source: El Mhamdi, Guerraoui, Rouault, 2018, The Hidden Vulnerability of Distributed Learning in
    Byzantium, arXiv 1802.07927.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> bulyan(torch.tensor([[1.0], [2.0], [3.0], [3.0], [3.0], [4.0], [99.0]]), f=1)
        tensor([3.])
    """
    chosen = bulyan_choice(updates, f=f)
    return mean_of_nearest(updates.detach()[list(chosen)], count=len(updates) - 4 * f)


def bulyan_choice(updates: Tensor, *, f: int) -> tuple[int, ...]:
    """The indices, in increasing order, of the n - 2f updates that enter `bulyan`'s median.

    Krum runs again and again on what is left: of m updates left, each is scored by its m - f - 2
    nearest peers. Towards the end m - f - 2 would fall below one (m is 2f + 1 in the last run);
    the score is then the distance to the nearest peer. The paper leaves this open.
    """
    updates = admit("bulyan", updates, f=f, needs=BULYAN_NEEDS)
    return bulyan_indices(squared_distances(updates), f=f)


def krum_index(distances: Matrix, *, f: int) -> int:
    """Krum's choice, given the squared distances (unsquared Krum's, given the distances)."""
    return int(_scores(distances, neighbours=len(distances) - f - 2).argmin())


def multi_krum_indices(distances: Matrix, *, f: int) -> tuple[int, ...]:
    """Multi-Krum's choice, given the squared distances."""
    n = len(distances)
    best = np.argsort(_scores(distances, neighbours=n - f - 2), kind="stable")[: n - f]
    return tuple(sorted(best.tolist()))


def bulyan_indices(distances: Matrix, *, f: int) -> tuple[int, ...]:
    """Bulyan's choice, given the squared distances."""
    left = list(range(len(distances)))
    chosen = []
    for _ in range(len(distances) - 2 * f):
        neighbours = max(len(left) - f - 2, 1)
        scores = _scores(distances[np.ix_(left, left)], neighbours=neighbours)
        chosen.append(left.pop(int(scores.argmin())))
    return tuple(sorted(chosen))


def _scores(distances: Matrix, *, neighbours: int) -> Matrix:
    """Krum's score: the sum of the squared distances to the nearest others."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    # A single update has no others; its score decides nothing.
    nearest = np.sort(others, axis=1)[:, :neighbours]
    scores: Matrix = nearest.sum(axis=1)
    return scores


def _rough_scores(updates: Tensor, *, neighbours: int) -> tuple[Matrix, Matrix] | None:
    """The lowest and highest that each Krum score can be, by float32 products; None if unknown.

    That takes half the time of float64, and usually the bounds already tell the best from the rest.
    They hold unless the numbers are made so that float32 rounds most products the same way; then
    the score of the update that is chosen may be some ten thousandths above the least.
    """
    n, d = updates.shape
    if updates.dtype != torch.float32 or n * d < ROUGH_LEAST:
        return None
    centre = central_row(updates)
    if centre is None:
        return None
    gram = centred_gram(updates, centre, products=np.float32)
    norms = gram.diagonal()
    if not np.isfinite(gram).all():
        return None
    both = norms[:, None] + norms[None, :]
    distances = both - 2 * gram
    # Each coordinate is rounded when it is centred (four units of both norms at the most) and when
    # it is multiplied (two more). Rounding errors of a sum of as many products as a block has are
    # taken for independent: they grow with the root of that number and average out over the blocks.
    share = 2.0**-24 * (_width(n, d, np.float32) / math.sqrt(d) + 8)
    low = np.maximum(distances - share * both, 0.0)
    return _scores(low, neighbours=neighbours), _scores(
        distances + share * both, neighbours=neighbours
    )


def squared_distances(updates: Tensor) -> Matrix:
    """The squared distance between every two rows; symmetric, 0 on the diagonal."""
    centre = central_row(updates)
    if centre is None:
        return np.where(np.eye(len(updates), dtype=np.bool_), 0.0, np.inf)
    return distances_from_gram(updates, centred_gram(updates, centre))


def centred_gram(
    updates: Tensor, centre: Tensor, *, products: type[np.floating[Any]] = np.float64
) -> Matrix:
    """The inner products of the rows, seen from `centre`; blocks are summed in float64.

    `products` is the type in which those of one block of coordinates are computed.
    """
    values, origin = device.to_numpy(updates), device.to_numpy(centre)
    n, d = values.shape
    rows, width = _padded(n), _width(n, d, products)

    def work(starts: range) -> Matrix:
        scratch = np.zeros((rows, width), dtype=products)
        product, total = np.empty((rows, rows), products), np.zeros((n, n))
        # Inf - Inf and overflow come from liars; their rows are infinitely far.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in starts:
                stop = min(start + width, d)
                block = scratch[:, : stop - start]
                if products is np.float64:
                    block[:n] = values[:, start:stop]
                    block[:n] -= origin[start:stop].astype(np.float64)
                else:
                    np.subtract(values[:, start:stop], origin[start:stop], out=block[:n])
                np.dot(block, block.T, out=product)
                total += product[:n, :n]
        return total

    total = np.zeros((n, n))
    with np.errstate(invalid="ignore", over="ignore"):
        for part in map_runs(work, d, width):
            total += part
    return total


def _padded(n: int) -> int:
    """The next multiple of the rows that are multiplied at once: single ones take far longer."""
    return -(-n // _ROWS_AT_ONCE) * _ROWS_AT_ONCE


def _width(n: int, d: int, products: type[np.floating[Any]]) -> int:
    """Coordinates in one product of all rows with all."""
    return even_width(d, max(_PRODUCT // (_padded(n) * np.dtype(products).itemsize), _WIDTH_MIN))


def product_share(n: int, d: int) -> float:
    """By which share of two rows' norms their product in `centred_gram` in float32 can be wrong.

    It holds in whatever order a block is summed. Two units each are for centring and multiplying.
    """
    return 2.0**-24 * (_width(n, d, np.float32) + 8)


def distances_from_gram(updates: Tensor, gram: Matrix) -> Matrix:
    """The squared distances of the rows, given their inner products seen from any one point."""
    norms = gram.diagonal()
    with np.errstate(invalid="ignore", over="ignore"):
        distances = norms[:, None] + norms[None, :] - 2 * gram
    # NaN is Inf - Inf: one of the two rows is not finite, or overflowed.
    distances = np.where(np.isfinite(distances), distances, np.inf)
    twins = np.where(np.isfinite(norms), _first_twins(updates), np.arange(len(norms)))
    larger = np.maximum(norms[:, None], norms[None, :])
    cancelled = np.isfinite(distances) & (distances <= _CANCELLED * larger)
    for i, j in zip(*np.nonzero(np.triu(cancelled, 1)), strict=True):
        if twins[i] == i and twins[j] == j:
            distances[i, j] = _squared_distance(updates[i], updates[j])
    # One triangle is mirrored and twins share their entries: equal distances are equal bit by bit.
    upper = np.triu(distances, 1)
    mirrored: Matrix = (upper + upper.T)[np.ix_(twins, twins)]
    return mirrored


def distances_of(gram: Matrix) -> Matrix:
    """The squared distances that inner products alone tell; what may be rounding is 0."""
    norms = gram.diagonal()
    both = norms[:, None] + norms[None, :]
    distances = both - 2 * gram
    return np.where(distances > _ROUNDING * both, distances, 0.0)


def _squared_distance(left: Tensor, right: Tensor) -> float:
    total = 0.0
    for start in range(0, len(left), _BLOCK):
        stop = start + _BLOCK
        difference = left[start:stop].double() - right[start:stop].double()
        total += float(difference @ difference)
    return total


def _first_twins(updates: Tensor) -> list[int]:
    """For each row the index of the first row that is identical to it: usually its own."""
    alike: dict[bytes, list[int]] = {}
    twins = []
    for index, row in enumerate(_probe(updates)):
        firsts = alike.setdefault(row.tobytes(), [])
        twin = next((i for i in firsts if torch.equal(updates[i], updates[index])), index)
        if twin == index:
            firsts.append(index)
        twins.append(twin)
    return twins


def central_row(updates: Tensor) -> Tensor | None:
    """A finite row near most others, judged by few coordinates; none if no row is finite.

    A liar who fools the guess gains nothing but our time: more pairs are computed twice.
    """
    probe = _probe(updates)
    size = max(_DIFFERENCES // probe.size, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.concatenate(
            [
                np.square(probe[start : start + size, None] - probe[None, :]).sum(axis=2)
                for start in range(0, len(probe), size)
            ]
        )
    spread = np.median(np.where(np.isnan(distances), np.inf, distances), axis=1)
    for index in np.argsort(spread, kind="stable"):
        # numpy takes a tenth of torch's time for a single row.
        if np.isfinite(device.to_numpy(updates[index])).all():
            return updates[index]
    return None


def _probe(updates: Tensor) -> Matrix:
    """A few coordinates of every row, spread evenly."""
    stride = max(updates.shape[1] // _PROBE, 1)
    probe: Matrix = device.to_numpy(updates[:, ::stride].double())
    return probe
