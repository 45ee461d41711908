"""Whether a rule gives what it should, in any size: what the peer gives where definitions agree.

Where they do not, ours is held against a computation as plain as can be, in float64.
"""

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from bench.peers import DIFFERENCES, F_BULYAN, F_SUBSETS, RADIUS, F

FEW = 1_000_000
"""Coordinates that are looked at where all are treated alike."""
TOLERANCE = 1e-5
ROUNDING = torch.finfo(torch.float32).eps


def difference(rule: str, who: str, updates: Tensor, *, ours: Tensor, theirs: Tensor) -> str:
    """In what ours is not what it should be; empty if it is. What differs has no speed."""
    try:
        if (rule, who) not in DIFFERENCES:
            _close(ours, theirs)
        else:
            CHECKS[rule](updates, ours, theirs)
    except AssertionError as error:
        return f"results differ: {' '.join(str(error).split())}"
    return ""


def _check_krum(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    first = krum_order(distances(updates), f=F)[0]
    torch.testing.assert_close(ours, updates[first], rtol=0, atol=0)


def _check_multi_krum(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    best = krum_order(distances(updates), f=F)[: len(updates) - F]
    _close(ours, updates[best].double().mean(dim=0))


def _check_geometric_median(updates: Tensor, ours: Tensor, theirs: Tensor) -> None:
    sums = [sum_of_distances(updates, point) for point in (ours, theirs)]
    if sums[0] > sums[1] * (1 + 1e-6):
        raise AssertionError(f"the peer has a better geometric median: {sums}")


def _check_mean_around_median(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    few = slice(0, FEW)
    check_nearest(updates[:, few], ours[few], count=len(updates) - F)


def _check_bucketing(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    """Who is in which bucket is drawn; of an even number all buckets are alike."""
    _close(ours.mean(dim=0), updates.double().mean(dim=0))


def _check_caf(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    """ByzFL's differs from call to call; that of noise is near its mean."""
    if not (ours - updates.mean(dim=0)).norm() < updates[0].norm():
        raise AssertionError("CAF is not near the updates")


def _check_centered_clipping(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    """The mean of the rows, each shortened to the radius, since the centre is zero."""
    total = torch.zeros(updates.shape[1], dtype=torch.float64)
    for row in updates:
        wide = row.double()
        total += wide * min(1.0, RADIUS / float(wide.norm()))
    _close(ours, total / len(updates))


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
    """Krum again and again on what is left; then the mean of the values nearest the median."""
    between, left, chosen = distances(updates), list(range(len(updates))), []
    for _ in range(len(updates) - 2 * f):
        best = krum_order(between[left][:, left], f=f)[0]
        chosen.append(left.pop(best))
    check_nearest(updates[chosen], ours, count=len(updates) - 4 * f)


def check_nearest(updates: Tensor, ours: Tensor, *, count: int) -> None:
    """The mean of the `count` values nearest the median, in each coordinate.

    Where two sets of values are equally near, to the rounding of float32, either will do.
    """
    rows = updates.double().sort(dim=0).values
    half = len(rows) // 2
    middle = (rows[half] + rows[-half - 1]) / 2
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


def _check_mda(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    """The mean of a subset of least diameter: one of all of them."""
    between, n = distances(updates), len(updates)
    subsets = [list(chosen) for chosen in itertools.combinations(range(n), n - F_SUBSETS)]
    diameters = [float(between[chosen][:, chosen].max()) for chosen in subsets]
    best = [s for s, d in zip(subsets, diameters, strict=True) if d <= min(diameters)]
    off = min(float((updates[s].mean(dim=0) - ours).abs().max()) for s in best)
    if off > TOLERANCE:
        raise AssertionError(f"not the mean of a subset of least diameter: {off}")


def _check_smea(updates: Tensor, ours: Tensor, _theirs: Tensor) -> None:
    """The mean of the subset of least largest eigenvalue: of all of them."""
    between, n = distances(updates), len(updates)
    subsets = [list(chosen) for chosen in itertools.combinations(range(n), n - F_SUBSETS)]

    def variance(chosen: list[int]) -> float:
        part = between[chosen][:, chosen]
        # Inner products seen from the mean follow from squared distances.
        centred = part - part.mean(dim=0) - part.mean(dim=1)[:, None] + part.mean()
        return float(torch.linalg.eigvalsh(-centred / 2)[-1])

    _close(ours, updates[min(subsets, key=variance)].double().mean(dim=0))


def sum_of_distances(updates: Tensor, point: Tensor) -> float:
    """What the geometric median makes least."""
    return float(sum((row.double() - point.double()).norm() for row in updates))


CHECKS: Mapping[str, Callable[[Tensor, Tensor, Tensor], None]] = MappingProxyType(
    {
        "krum": _check_krum,
        "multi-krum": _check_multi_krum,
        "geometric-median": _check_geometric_median,
        "bulyan": lambda updates, ours, _theirs: check_bulyan(updates, ours, f=F_BULYAN),
        "mean-around-median": _check_mean_around_median,
        "mda": _check_mda,
        "smea": _check_smea,
        "bucketing": _check_bucketing,
        "caf": _check_caf,
        "centered-clipping": _check_centered_clipping,
    }
)
"""(updates, ours, theirs): raises if ours is not what its definition says."""
