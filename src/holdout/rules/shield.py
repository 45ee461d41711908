"""FLShield: voters report what each update does to the loss of every class.

The server mixes each update with those that resemble it, so that a report gives little away about
one worker, and asks the voters about these representatives. Reports that stand apart from the
larger group of reports are dropped. An update is worth what it does for the class that it helps
least; the better half is averaged.

Taken from the paper: the loss impact per class, its mean over the voters that are believed, the
minimum over the classes as the score, the better half of the updates, and lengths cut to the median
when they are averaged. The paper describes two kinds of representatives; these are the bijective
ones, one for each update, with the similarities and the share of a quarter that the authors' code
has. Departures from that code:

- It fills in what a voter cannot say of a class by regression on other entries, from their medians
  on, and counts these numbers like reported ones. Here it is the median of the reports that have
  the class (0 where nobody has), and only when reports are compared.
- It compares reports as they are. Here it is by their directions, so that nobody stands apart, or
  hides others, by the size of its numbers; a report longer than the median is scaled down to it.
- Both make two groups of the reports by Lloyd's algorithm and believe the larger. There they start
  from two random reports, here from the two furthest apart; of equal groups the one with the first
  voter is believed.
- A voter looks at 30 rows of each class at the most there, here at 20 (`holdout.federation`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.errors import InfeasibleError, MisuseError
from holdout.parallel import keep_blas_to_one_thread
from holdout.rules.context import RuleContext
from holdout.rules.distance import Matrix, distances_of
from holdout.rules.rule import Needs, admit
from holdout.rules.trust import Rows, finite_rows, is_finite, lengths_of

Reports = npt.NDArray[np.float64]
"""(voters, n, classes); NaN where a voter holds no row of a class."""

SIBLINGS = 0.25
"""The share of the updates that resemble it in an update's representative."""

_PASSES = 100
"""Lloyd's algorithm ends by itself, and long before this."""

FLSHIELD_NEEDS = Needs("n > 2f", lambda f: 2 * f + 1, voters=True)


def flshield(updates: Tensor, *, f: int, context: RuleContext | None = None) -> Tensor:
    """The mean of the half of the updates that voters find best for the class they help least.

    With s_ij = max(0, cos(u_i, u_j)) min(1, |u_i| / |u_j|), the representative of update i is

        r_i = 3/4 u_i + 1/4 sum_{j != i} s_ij u_j / sum_{j != i} s_ij    (u_i if that sum is 0).

    With L_vc the mean loss of voter v's rows of class c, v reports the loss impact per class

        I_v(i, c) = L_vc(w) - L_vc(w - eta r_i).

    The reports of the believed voters V (see the module) give the scores

        S_i = min_c mean_{v in V} I_v(i, c).

    Of the n updates the ceil(n / 2) with the highest scores are scaled down to the median length of
    all, if they are longer, and averaged; the lowest index wins a tie. A row that is not finite is
    left out of everything, and lengths are medians of the others.

    Reports are compared by their directions, a long one is scaled down to the median length, and
    two groups are made of them, of which the larger is believed; what a voter cannot say of a class
    is then the median of what others say, and is not part of the mean.

    Source: Kabir, Song, Rashid, Mehnaz, 2024, FLShield (IEEE S&P), arXiv 2308.05832, with bijective
    representatives; their similarity and the 1/4 are as in the authors' code. That code compares
    reports as they are, completes them by regression before their mean is taken, groups them from a
    random start, and asks for 30 rows of each class, not 20.

    Args:
        updates: The updates, (n, d).
        f: How many of them may be lies; half are dropped whatever it is.
        context: Holds the voters, `context.voters`.

    Example:
        >>> class Voters:
        ...     def impacts(self, updates):
        ...         fall = updates.double()
        ...         return [fall, fall, -fall]
        >>> from holdout import stream
        >>> from holdout.rules import RuleContext
        >>> context = RuleContext(1, torch.zeros(2), 0.1, stream(0), voters=Voters())
        >>> flshield(torch.tensor([[1.0, 1.0], [2.0, 1.0], [-3.0, 0.0]]), f=1, context=context)
        tensor([1.5000, 1.0000])
    """
    updates = admit("flshield", updates, f=f, needs=FLSHIELD_NEEDS)
    if context is None or context.voters is None:
        raise MisuseError("flshield needs a context with voters, context.voters")
    finite = is_finite(updates)
    if not finite.any():
        return torch.full_like(updates[0], torch.nan)
    rows = finite_rows(updates)
    rows = rows if finite.all() else rows[finite]
    norms = lengths_of(rows)
    asked = device.from_numpy(representatives(rows, norms)).to(updates)
    told = context.voters.impacts(asked)
    reports = [device.to_numpy(report) for report in told if report is not None]
    if not reports:
        raise InfeasibleError("flshield needs at least one valid report of a voter; got none")
    half = min(-(-len(updates) // 2), len(rows))
    kept = np.sort(np.argsort(-scores_of(np.stack(reports)), kind="stable")[:half])
    length = np.sort(norms)[(len(norms) - 1) // 2]
    scales = np.where(norms > length, length / np.where(norms > 0, norms, 1.0), 1.0)
    return device.from_numpy((scales[kept, None] * rows[kept]).mean(axis=0)).to(updates)


def shield_farthest(gram: Matrix) -> float:
    """How far from the last row FLShield's result can be, whichever half it keeps.

    With v_i the way from the last row to update i, scaled down as it would be, the result is away
    by the mean of the v_i of a half S. Of the largest group of equal updates, k are in S:

        |sum v_i|² <= k² |v|² + 2 k sum <v, v_i> + |sum over the others|²

    The second sum is at most that of the largest products; the last term at most (sum |v_i|)² and
    at most |S| - k times the largest eigenvalue of the inner products of the v_i.
    """
    n = len(gram) - 1
    norms = np.sqrt(gram.diagonal()[:n])
    length = np.sort(norms)[(n - 1) // 2]
    scales = np.where(norms > length, length / np.where(norms > 0, norms, 1.0), 1.0)
    ways = np.hstack([np.diag(scales), np.full((n, 1), -1.0)])
    apart = ways @ gram @ ways.T
    twins = distances_of(gram[:n, :n]) == 0
    group = np.flatnonzero(twins[twins.sum(axis=1).argmax()])
    others = np.setdiff1d(np.arange(n), group)
    half = -(-n // 2)
    along = np.sort(apart[group[0], others])[::-1]
    single = np.sort(np.sqrt(np.maximum(apart.diagonal()[others], 0.0)))[::-1]
    widest = float(np.linalg.eigvalsh(apart[np.ix_(others, others)])[-1]) if len(others) else 0.0
    squares = []
    for k in range(max(half - len(others), 0), min(len(group), half) + 1):
        rest = half - k
        among = min(single[:rest].sum() ** 2, rest * widest)
        squares.append(k * k * apart[group[0], group[0]] + 2 * k * along[:rest].sum() + among)
    return float(np.sqrt(max(0.0, *squares, 0.0))) / half


def representatives(rows: Rows, norms: npt.NDArray[np.float64]) -> Rows:
    """Each row mixed with those that resemble it, (n, d)."""
    safe = np.where(norms > 0, norms, 1.0)
    ways = rows / safe[:, None]
    with keep_blas_to_one_thread():
        shares = np.maximum(ways @ ways.T, 0.0) * np.minimum(norms[:, None] / safe[None, :], 1.0)
        np.fill_diagonal(shares, 0.0)
        totals = shares.sum(axis=1, keepdims=True)
        mixed: Rows = (shares / np.where(totals > 0, totals, 1.0)) @ rows
    mixed *= SIBLINGS
    mixed += (1 - SIBLINGS) * rows
    alone = totals[:, 0] <= 0
    mixed[alone] = rows[alone]
    return mixed


def scores_of(reports: Reports) -> npt.NDArray[np.float64]:
    """The score of each update: what believed voters say of the class that it helps least."""
    filled = _filled(reports)
    flat = filled.reshape(len(reports), -1)
    lengths = np.linalg.norm(flat, axis=1)
    believed = larger_group(flat / np.where(lengths > 0, lengths, 1.0)[:, None])
    usual = np.sort(lengths)[(len(lengths) - 1) // 2]
    scales = np.where(lengths > usual, usual / np.where(lengths > 0, lengths, 1.0), 1.0)
    heard = (scales[:, None, None] * reports)[believed]
    counts = (~np.isnan(heard)).sum(axis=0)
    means = np.where(counts > 0, np.nansum(heard, axis=0) / np.maximum(counts, 1), np.inf)
    scores = means.min(axis=1)
    return np.where(np.isfinite(scores), scores, 0.0)


def _filled(reports: Reports) -> Reports:
    """The reports with what a voter cannot say filled in by the median of the others."""
    known = np.sort(reports, axis=0)  # NaN comes last.
    counts = (~np.isnan(reports)).sum(axis=0)
    middle = np.maximum(counts - 1, 0)
    low = np.take_along_axis(known, (middle // 2)[None], axis=0)[0]
    high = np.take_along_axis(known, ((middle + 1) // 2)[None], axis=0)[0]
    medians = np.where(counts > 0, low / 2 + high / 2, 0.0)
    return np.where(np.isnan(reports), medians[None], reports)


def larger_group(points: Rows) -> Sequence[int]:
    """The places in the larger of two groups, by Lloyd's algorithm from the points furthest apart.

    >>> larger_group(np.array([[0.0], [0.1], [5.0], [0.2]]))
    [0, 1, 3]
    """
    apart = np.square(points[:, None] - points[None, :]).sum(axis=2)
    first, second = np.unravel_index(int(apart.argmax()), apart.shape)
    centres = points[[first, second]]
    group = _nearest(points, centres)
    for _ in range(_PASSES):
        for side in (0, 1):
            if (group == side).any():
                centres[side] = points[group == side].mean(axis=0)
        before, group = group, _nearest(points, centres)
        if (group == before).all():
            break
    second_wins = (2 * group.sum(), group[0]) > (len(group), 0)
    return [place for place, side in enumerate(group.tolist()) if side == second_wins]


def _nearest(points: Rows, centres: Rows) -> npt.NDArray[np.int64]:
    distances = np.square(points[:, None] - centres[None, :]).sum(axis=2)
    nearest: npt.NDArray[np.int64] = distances.argmin(axis=1)
    return nearest
