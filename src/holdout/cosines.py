"""How long vectors are, the cosines between them, and their mixtures.

Whatever follows from inner products alone is decided with these: they cost one pass over the
vectors, and no copy of all of them is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.learning.vector import norm, shrink
from holdout.parallel import map_runs, run_all
from holdout.rules.distance import Matrix

_WIDTH = 1 << 12
"""Coordinates in one product of the vectors with each other: such a block stays in the cache."""

_LONG = 1 << 20
"""Of vectors longer than this one norm is computed at a time: each makes a copy in float64."""

_TOGETHER = 8
"""How many shorter vectors a thread takes at a time."""

LONGEST, TINY = 1e18, 1e-18
"""What is longer is shrunk to this at once, and what is shorter counts as zero: so that nothing
overflows or underflows in float32. No gradient that anybody can learn from is near either."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors of one length d and their norms.

    Args:
        rows: The vectors, none of which is so long that products overflow.
        lengths: Their norms.
    """

    rows: Sequence[Tensor]
    lengths: Matrix

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Self:
        """These vectors; those longer than anything sensible are shrunk, in their direction."""
        norms = norms_of(rows)
        ordinary = [
            row if length <= LONGEST else shrink(row, length, LONGEST)
            for row, length in zip(rows, norms, strict=True)
        ]
        return cls(ordinary, np.minimum(np.array(norms, dtype=np.float64), LONGEST))


def norms_of(rows: Sequence[Tensor]) -> list[float]:
    """The norm of each vector."""
    if any(len(row) > _LONG for row in rows):
        return [norm(row) for row in rows]
    # Each vector on one thread: waking the others takes longer than the norm of a short vector.
    # Several vectors at a time, since handing out a piece of work takes about as long.
    runs = [rows[start : start + _TOGETHER] for start in range(0, len(rows), _TOGETHER)]
    return [
        length for lengths in run_all(lambda run: [*map(norm, run)], runs) for length in lengths
    ]


def cosines(vectors: Vectors, others: Vectors | None = None) -> Matrix:
    """The cosines between all vectors, or with others, (n, m) of float64; 0 for zero vectors.

    Products are float32 within a block of coordinates and summed in float64. No copy of all the
    vectors is made, and the number of threads changes no bit.

    Example:
        >>> cosines(Vectors.of([torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0])])).round(6)
        array([[1. , 0.6],
               [0.6, 1. ]])
    """
    right = vectors if others is None else others
    shape = len(vectors.rows), len(right.rows)
    if 0 in shape:
        return np.zeros(shape)
    left_rows, right_rows = ([device.to_numpy(row) for row in v.rows] for v in (vectors, right))

    def work(starts: range) -> Matrix:
        total = np.zeros(shape)
        for start in starts:
            block = _block(left_rows, start)
            total += block @ (block if others is None else _block(right_rows, start)).T
        return total

    total: Matrix = np.sum(map_runs(work, len(left_rows[0]), _WIDTH), axis=0)
    lengths = np.outer(vectors.lengths, right.lengths)
    is_long = np.outer(vectors.lengths > TINY, right.lengths > TINY)
    return np.divide(total, lengths, out=np.zeros(shape), where=is_long)


def _block(arrays: Sequence[npt.NDArray[np.float32]], start: int) -> npt.NDArray[np.float32]:
    # As np.stack, which takes a fifth longer.
    joined = np.concatenate([array[start : start + _WIDTH] for array in arrays])
    return joined.reshape(len(arrays), -1)


def combine(rows: Sequence[Tensor], factors: Matrix) -> Tensor:
    """The sum of the vectors, each times its factor."""
    total = torch.zeros_like(rows[0])
    for row, factor in zip(rows, factors.tolist(), strict=True):
        if factor:
            total.add_(row, alpha=factor)
    return total
