"""Rules that treat every coordinate by itself: mean, median, trimmed mean, mean around median.

All but the mean need the values of each coordinate in order. Sorting n numbers d times is slow, so
whole rows are sorted at once: a sorting network (Batcher's merge exchange) is a fixed list of
compare-exchanges, and each of them is one elementwise minimum and one maximum of two rows. A block
of coordinates goes through the network while it is in the cache.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from holdout import device
from holdout.parallel import map_runs
from holdout.rules.rule import ANY_NUMBER, HONEST_MAJORITY, admit

Array = npt.NDArray[np.floating[Any]]

_BLOCK = 1 << 15
"""Coordinates sorted at a time: 30 rows of float32 take 4 MB, which a shared cache holds."""


def mean(updates: Tensor, *, f: int) -> Tensor:
    """The plain average, which a single Byzantine row can make anything, NaN and Inf included.

        result = (1/n) Σ_i x_i

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, 2017, Communication-Efficient Learning
    of Deep Networks from Decentralized Data, arXiv 1602.05629.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies; the mean is the same whatever it is.

    Example:
        >>> import torch
        >>> mean(torch.tensor([[1.0], [2.0], [6.0]]), f=1)
        tensor([3.])
    """
    return admit("mean", updates, f=f, needs=ANY_NUMBER).mean(dim=0)


def median(updates: Tensor, *, f: int) -> Tensor:
    """The middle value of each coordinate; of an even number, the mean of the middle two.

        result[k] = median{x_1[k], ..., x_n[k]}

    Source: Yin, Chen, Ramchandran, Bartlett, 2018, Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates, arXiv 1803.01498.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
        >>> median(torch.tensor([[1.0], [2.0], [6.0], [float("nan")]]), f=1)
        tensor([4.])
    """
    updates = admit("median", updates, f=f, needs=HONEST_MAJORITY)
    n = len(updates)
    wanted = range((n - 1) // 2, n // 2 + 1)
    return _by_blocks(updates, lambda block, spare: _middle(_ordered(block, spare, wanted)))


def trimmed_mean(updates: Tensor, *, f: int) -> Tensor:
    """The mean of each coordinate without its f smallest and f largest values.

        x_(1)[k] <= ... <= x_(n)[k]  are the values of coordinate k in order
        result[k] = 1/(n - 2f) Σ_{i = f+1 .. n-f} x_(i)[k]

    Source: Yin, Chen, Ramchandran, Bartlett, 2018, Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates, arXiv 1803.01498.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
        >>> trimmed_mean(torch.tensor([[1.0], [2.0], [4.0], [99.0]]), f=1)
        tensor([3.])
    """
    updates = admit("trimmed-mean", updates, f=f, needs=HONEST_MAJORITY)
    wanted = range(f, len(updates) - f)
    return _by_blocks(
        updates, lambda block, spare: _mean_of(_ordered(block, spare, wanted)[f : wanted.stop])
    )


def mean_around_median(updates: Tensor, *, f: int) -> Tensor:
    """The mean of the n - f values nearest the median, per coordinate.

        m[k]      = median{x_1[k], ..., x_n[k]}
        result[k] = the mean of the n - f values x_i[k] of least |x_i[k] - m[k]|

    This is what the HoldOut SGD paper calls the trimmed mean. Of two values equally far from the
    median, the one in the lower row counts as nearer.

    Source: Xie, Koyejo, Gupta, 2018, Generalized Byzantine-tolerant SGD, arXiv 1802.10116.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies.

    Example:
        >>> import torch
        >>> mean_around_median(torch.tensor([[1.0], [2.0], [4.0], [99.0], [3.0]]), f=1)
        tensor([2.5000])
    """
    updates = admit("mean-around-median", updates, f=f, needs=HONEST_MAJORITY)
    return mean_of_nearest(updates, count=len(updates) - f)


def mean_of_nearest(updates: Tensor, *, count: int) -> Tensor:
    """Per coordinate, the mean of the `count` values nearest the median of all."""

    def nearest(block: Array, spare: Array) -> Array:
        original = block.copy()
        rows = _ordered(block, spare, range(len(block)))
        centre = _middle(rows)
        tied = np.zeros(len(centre), dtype=np.bool_)
        # The nearest values are side by side in the order, so of two values `count` places apart
        # exactly one is among them, or neither because a third one, `count` places on, is nearer.
        for i in range(count, len(rows)):
            low, high = rows[i % count], rows[i]
            below, above = centre - low, high - centre
            tied |= (below == above) & (below > 0)
            rows[i % count] = np.where(below <= above, low, high)
        result = _mean_of(rows[:count])
        if tied.any():
            # Sorting has lost the rows' indices, which decide here.
            values = original[:, tied].astype(np.float64)
            ranking = np.argsort(np.abs(values - centre[tied]), axis=0, kind="stable")
            result[tied] = np.take_along_axis(values, ranking[:count], axis=0).mean(axis=0)
        return result

    return _by_blocks(updates, nearest)


def _by_blocks(updates: Tensor, summarise: Callable[[Array, Array], Array]) -> Tensor:
    """Apply `summarise(block, spare row)` to a scratch copy of each block of coordinates."""
    values: Array = device.to_numpy(updates)
    n, d = values.shape
    width = min(d, _BLOCK)
    result = np.empty(d, dtype=values.dtype)

    def work(starts: range) -> None:
        scratch = np.empty((n + 1, width), dtype=values.dtype)
        # Inf - Inf and overflow come from liars and have a defined meaning here.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in starts:
                stop = min(start + width, d)
                block, spare = scratch[:n, : stop - start], scratch[n, : stop - start]
                # `fmin` passes over NaN: this copies and reads NaN as +Inf in one go. The network's
                # minimum would spread a NaN to other rows.
                np.fmin(values[:, start:stop], np.inf, out=block)
                result[start:stop] = summarise(block, spare)

    map_runs(work, d, width)
    return device.from_numpy(result, like=updates)


def _ordered(block: Array, spare: Array, wanted: range) -> list[Array]:
    """The block's rows, of which those in `wanted` are as if each column had been sorted.

    Overwrites the block and the spare row.
    """
    rows = list(block)
    for low, high, need_low, need_high in _network(len(rows), wanted):
        if need_low and need_high:
            np.minimum(rows[low], rows[high], out=spare)
            np.maximum(rows[low], rows[high], out=rows[high])
            rows[low], spare = spare, rows[low]
        elif need_low:
            np.minimum(rows[low], rows[high], out=rows[low])
        else:
            np.maximum(rows[low], rows[high], out=rows[high])
    return rows


@lru_cache(maxsize=64)
def _network(n: int, wanted: range) -> tuple[tuple[int, int, bool, bool], ...]:
    """Batcher's merge exchange (Knuth, volume 3, 5.2.2 M) without what no wanted place needs.

    Each entry is (low place, high place, is the minimum needed, is the maximum needed).
    """
    pairs: list[tuple[int, int]] = []
    merged = 1
    while merged < n:
        step = merged
        while step >= 1:
            for first in range(step % merged, n - step, 2 * step):
                pairs += [
                    (low, low + step)
                    for low in range(first, min(first + step, n - step))
                    if low // (2 * merged) == (low + step) // (2 * merged)
                ]
            step //= 2
        merged *= 2
    needed = set(wanted)
    network = []
    for low, high in reversed(pairs):
        if low in needed or high in needed:
            network.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(network))


def _middle(rows: list[Array]) -> Array:
    n = len(rows)
    if n % 2 == 1:
        return rows[n // 2].copy()
    # The sum of the halves: the sum itself might overflow before it is halved.
    half: Array = rows[n // 2 - 1] * 0.5
    half += rows[n // 2] * 0.5
    return half


def _mean_of(rows: list[Array]) -> Array:
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    total /= len(rows)
    return total
