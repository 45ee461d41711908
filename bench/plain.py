"""Whether a rule gives what it should, in any size: what the peer gives where definitions agree.

Where they do not, ours is held against a computation as plain as can be, in float64.
"""

import itertools

import torch
from torch import Tensor

from bench.peers import DIFFERENCES, F_BULYAN, F

TOLERANCE = 1e-5
ROUNDING = torch.finfo(torch.float32).eps


def compare(rule: str, who: str, updates: Tensor, *, ours: Tensor, theirs: Tensor) -> None:
    """Raise if ours is not what it should be."""
    if (rule, who) not in DIFFERENCES:
        _close(ours, theirs)
    elif rule == "krum":
        first = krum_order(distances(updates), f=F)[0]
        torch.testing.assert_close(ours, updates[first], rtol=0, atol=0)
    elif rule == "multi-krum":
        best = krum_order(distances(updates), f=F)[: len(updates) - F]
        _close(ours, updates[best].double().mean(dim=0))
    elif rule == "geometric-median":
        sums = [sum_of_distances(updates, point) for point in (ours, theirs)]
        if sums[0] > sums[1] * (1 + 1e-6):
            raise AssertionError(f"{who} has a better geometric median: {sums}")
    else:
        check_bulyan(updates, ours, f=F_BULYAN)


def _close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected.float(), rtol=TOLERANCE, atol=TOLERANCE)


def distances(updates: Tensor) -> Tensor:
    """Squared, between every two rows, by their differences: pair after pair, to save memory."""
    found = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for i, j in itertools.combinations(range(len(updates)), 2):
        found[i, j] = found[j, i] = (updates[i].double() - updates[j].double()).square().sum()
    return found


def krum_order(distances: Tensor, *, f: int) -> list[int]:
    """The rows by Krum's score, the best first: Blanchard et al.'s n - f - 2 neighbours."""
    neighbours = max(len(distances) - f - 2, 1)
    scores = distances.sort(dim=1).values[:, 1 : neighbours + 1].sum(dim=1)
    return [int(index) for index in scores.argsort(stable=True)]


def check_bulyan(updates: Tensor, ours: Tensor, *, f: int) -> None:
    """Krum again and again on what is left; then the mean of the values nearest the median.

    Where two sets of values are equally near, to the rounding of float32, either will do.
    """
    between, left, chosen = distances(updates), list(range(len(updates))), []
    for _ in range(len(updates) - 2 * f):
        best = krum_order(between[left][:, left], f=f)[0]
        chosen.append(left.pop(best))
    rows = updates[chosen].double().sort(dim=0).values
    half = len(rows) // 2
    middle = (rows[half] + rows[-half - 1]) / 2
    count = len(updates) - 4 * f
    # In their order, the nearest values follow each other.
    first = range(len(rows) - count + 1)
    farthest = [torch.maximum(middle - rows[i], rows[i + count - 1] - middle) for i in first]
    allowed = torch.stack(farthest).amin(dim=0) + 4 * ROUNDING * torch.maximum(-rows[0], rows[-1])
    right = torch.zeros_like(middle, dtype=torch.bool)
    for i in first:
        off = (rows[i : i + count].mean(dim=0) - ours).abs()
        right |= (farthest[i] <= allowed) & (off <= TOLERANCE * (1 + ours.abs()))
    if not right.all():
        raise AssertionError(
            f"not the mean of the nearest values: coordinates {(~right).nonzero()}"
        )


def sum_of_distances(updates: Tensor, point: Tensor) -> float:
    """What the geometric median makes least."""
    return float(sum((row.double() - point.double()).norm() for row in updates))
