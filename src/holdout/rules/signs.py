"""SignGuard: updates of ordinary length whose signs are shared out as those of most others are.

A lie may have an honest length and lie near the honest mean, and still change the share of its
coordinates that are positive, zero or negative. These three shares are a point; points of honest
updates crowd together, and mean shift finds the crowd without being told how many there are.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.errors import UserError
from holdout.rules.context import RuleContext, source_of
from holdout.rules.covariance import draw_coordinates
from holdout.rules.distance import Matrix
from holdout.rules.norms import check_positive, clip_scales, norms, weighted_sum
from holdout.rules.rule import HONEST_MAJORITY, admit

STEPS_MAX = 300
"""Steps of the mean shift, after which points are taken as they are."""

_STILL = 1e-3
"""A point that moves by no more than this share of the bandwidth has arrived."""


def signguard(
    updates: Tensor,
    *,
    f: int,
    context: RuleContext | None = None,
    lower: float = 0.1,
    upper: float = 3.0,
    share: float = 0.1,
) -> Tensor:
    """The mean of updates whose norms and signs are like most others', clipped to the median norm.

        M      = median{|x_1|, ..., |x_n|}
        S_1    = {i : L <= |x_i| / M <= R}
        p_i    = the shares of positive, zero and negative values of x_i in random coordinates
        S_2    = the largest cluster of the points p_1, ..., p_n
        S      = S_1 ∩ S_2; if that is empty, S_1
        result = 1/|S| Σ_{i in S} x_i min(1, M / |x_i|)

    The clusters are those of a mean shift with a flat kernel. Its bandwidth h is the mean, over all
    points, of the distance to the ceil(n/2)-th nearest point, itself counted. A copy of each point
    moves to the mean of the points within h of it until it moves by at most h/1000. Places are then
    ranked by how many points are within h, and of equals by their coordinates; a place within h of
    a better one is dropped, and every point belongs to the nearest place that is left.

    Rows that are not finite, or so long that float64 overflows, are in no set and no cluster.

    Source: Xu, Huang, Song, Lan, 2022, Byzantine-robust Federated Learning through Collaborative
    Malicious Gradient Filtering (SignGuard), arXiv 2109.05872, the plain variant, without
    similarities as a further feature. It names mean shift alone; the bandwidth, the order of places
    and the rule for an empty S are ours.

    Args:
        updates: The updates x_i, (n, d).
        f: How many of them may be lies; only their number's limit, n > 2f, depends on it.
        context: Where the coordinates are drawn from; without it, they are always the same.
        lower: The least norm in median norms, L.
        upper: The largest norm in median norms, R.
        share: Which share of the coordinates is looked at; more than 0, at most 1.

    Example:
        >>> updates = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [-1.0, -2.0]])
        >>> signguard(updates, f=1, share=1.0)
        tensor([1.3333, 1.6667])
    """
    updates = admit("signguard", updates, f=f, needs=HONEST_MAJORITY)
    check_positive("signguard", "upper", upper)
    if not 0 <= lower <= min(upper, 1) or upper < 1:
        raise UserError(
            f"signguard needs 0 <= lower <= 1 <= upper; got lower={lower}, upper={upper}"
        )
    if not 0 < share <= 1:
        raise UserError(f"signguard needs 0 < share <= 1; got {share}")
    lengths = norms(updates)
    finite = np.flatnonzero(np.isfinite(lengths))
    if len(finite) == 0:
        return torch.full_like(updates[0], torch.nan)
    middle = float(np.median(lengths))
    ordinary = finite
    if np.isfinite(middle):
        ordinary = finite[(lower * middle <= lengths[finite]) & (lengths[finite] <= upper * middle)]
    d = updates.shape[1]
    looked_at = draw_coordinates(source_of(context), d, max(round(share * d), 1))
    alike = finite[largest_cluster(_sign_shares(updates, finite, looked_at))]
    chosen = np.intersect1d(ordinary, alike)
    if len(chosen) == 0:
        chosen = ordinary
    weights = np.zeros(len(updates))
    scales = clip_scales(lengths[chosen], middle) if np.isfinite(middle) else 1.0
    weights[chosen] = scales / len(chosen)
    return weighted_sum(updates, None, weights)


def _sign_shares(
    updates: Tensor, rows: npt.NDArray[np.intp], looked_at: npt.NDArray[np.intp]
) -> Matrix:
    """The shares of positive, zero and negative values of each row, (n, 3)."""
    values = device.to_numpy(updates)
    shares = np.empty((len(rows), 3))
    for place, row in enumerate(rows):
        seen = values[row] if len(looked_at) == values.shape[1] else values[row, looked_at]
        positive, negative = np.count_nonzero(seen > 0), np.count_nonzero(seen < 0)
        shares[place] = positive, len(seen) - positive - negative, negative
    return shares / len(looked_at)


def largest_cluster(points: Matrix) -> npt.NDArray[np.intp]:
    """The places of the points in the largest cluster of a mean shift, in increasing order.

    Example:
        >>> largest_cluster(np.array([[0.0], [0.1], [5.0], [0.2], [5.1]])).tolist()
        [0, 1, 3]
    """
    apart = _distances(points, points)
    half = -(-len(points) // 2)
    # Shares are counts: what differs by rounding alone is equal.
    bandwidth = float(np.sort(apart, axis=1)[:, half - 1].mean()) + 1e-9
    modes = np.stack([_shifted(point, points, bandwidth) for point in points])
    crowds = (_distances(modes, points) <= bandwidth).sum(axis=1)
    ranked = sorted(range(len(modes)), key=lambda i: (-crowds[i], *modes[i].tolist()))
    kept: list[int] = []
    for i in ranked:
        if not kept or _distances(modes[[i]], modes[kept]).min() > bandwidth:
            kept.append(i)
    nearest = _distances(points, modes[kept]).argmin(axis=1)
    largest = int(np.bincount(nearest, minlength=len(kept)).argmax())
    return np.flatnonzero(nearest == largest)


def _shifted(point: Matrix, points: Matrix, bandwidth: float) -> Matrix:
    """Where a point comes to rest that moves to the mean of the points around it."""
    for _ in range(STEPS_MAX):
        near = points[np.linalg.norm(points - point, axis=1) <= bandwidth]
        if len(near) == 0:
            break
        moved: Matrix = near.mean(axis=0)
        still = np.linalg.norm(moved - point) <= _STILL * bandwidth
        point = moved
        if still:
            break
    return point


def _distances(left: Matrix, right: Matrix) -> Matrix:
    return np.asarray(np.linalg.norm(left[:, None] - right[None, :], axis=2))
