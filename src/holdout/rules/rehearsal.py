"""When a rule "selects" a lie: what the adaptive attacker checks at each strength.

Each function prepares a check once a round (sorted values, distances between honest updates), so
that trying a strength costs little.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdout.rules.distance import Matrix, bulyan_indices, centred_gram
from holdout.rules.rule import LieLine, Rehearse

BLOCK = 1 << 13  # Coordinates judged at a time, in the cache; often the first few blocks decide.


def _distances(line: LieLine) -> Callable[[float], Matrix]:
    """A strength -> the squared distances between all updates, honest ones first."""
    # Seen from the base, the lie is s * direction: all distances follow from one Gram matrix.
    gram = centred_gram(torch.cat([line.honest, line.at(1.0)[None]]), line.base)
    honest = len(line.honest)
    norms, towards = gram.diagonal(), gram[:honest, honest]
    between = norms[:honest, None] + norms[None, :honest] - 2 * gram[:honest, :honest]

    def at(strength: float) -> Matrix:
        distances = np.zeros((line.count, line.count))
        distances[:honest, :honest] = between
        to_lie = norms[:honest] - 2 * strength * towards + strength**2 * norms[honest]
        distances[:honest, honest:] = to_lie[:, None]
        distances[honest:, :honest] = to_lie[None, :]
        return np.maximum(distances, 0.0)

    return at


def by_distance(choose: Callable[[Matrix, int], Sequence[int]]) -> Rehearse:
    """The rehearsal of rules that return or average the updates they choose."""

    def prepare(line: LieLine) -> Callable[[float], bool]:
        distances = _distances(line)
        return lambda strength: max(choose(distances(strength), line.f)) >= len(line.honest)

    return prepare


def by_gram(choose: Callable[[Matrix, int], Sequence[int]]) -> Rehearse:
    """The rehearsal of rules that average the updates they choose by their inner products."""

    def prepare(line: LieLine) -> Callable[[float], bool]:
        gram = centred_gram(torch.cat([line.honest, line.at(1.0)[None]]), line.base)
        honest = len(line.honest)
        # Honest updates once, then the direction as often as there are copies.
        places = [*range(honest), *[honest] * line.copies]
        at_one = gram[np.ix_(places, places)]

        def passes(strength: float) -> bool:
            sizes = np.where(np.arange(line.count) < honest, 1.0, strength)
            return max(choose(at_one * np.outer(sizes, sizes), line.f)) >= honest

        return passes

    return prepare


def of_bulyan(line: LieLine) -> Callable[[float], bool]:
    """Bulyan: its Krum runs must choose the lie, and it must be near the median of the chosen."""
    distances, honest = _distances(line), len(line.honest)

    def passes(strength: float) -> bool:
        chosen = bulyan_indices(distances(strength), f=line.f)
        kept = line.honest[[index for index in chosen if index < honest]]
        copies = len(chosen) - len(kept)
        nearest = line.count - 4 * line.f
        ordered = kept.sort(dim=0).values
        return copies > 0 and _is_near_median(ordered, line.at(strength), copies, nearest)

    return passes


def by_place(places: Callable[[int, int], tuple[int, int]]) -> Rehearse:
    """The rehearsal of rules that keep the sorted values from place `first` to place `last`.

    The copies are equal, so they are side by side, after the honest values that are smaller. One of
    them is kept unless even the last comes before `first` or even the first after `last`: two
    honest order statistics decide. (If it equals one of them, that value is kept, whoever sent it.)
    """

    def prepare(line: LieLine) -> Callable[[float], bool]:
        first, last = places(line.count, line.f)
        ordered = line.honest.sort(dim=0).values
        lower = ordered[first - line.copies] if first >= line.copies else None
        upper = ordered[last] if last < len(ordered) else None

        def passes(strength: float) -> bool:
            lie = line.at(strength)
            kept = torch.ones_like(lie, dtype=torch.bool)
            if lower is not None:
                kept &= lie >= lower
            if upper is not None:
                kept &= lie <= upper
            return 2 * int(kept.sum()) >= len(lie)

        return passes

    return prepare


def by_nearness(line: LieLine) -> Callable[[float], bool]:
    """Mean around median: the n - f values nearest the median are kept."""
    nearest = line.count - line.f
    ordered = line.honest.sort(dim=0).values
    return lambda strength: _is_near_median(ordered, line.at(strength), line.copies, nearest)


def _is_near_median(ordered: Tensor, lie: Tensor, copies: int, nearest: int) -> bool:
    """Whether, in half of the coordinates, a copy is one of the values nearest the median.

    `ordered` are the honest values, sorted in each coordinate.
    """
    if len(ordered) < nearest:
        return True  # Too few honest values to leave the lie out, wherever it is.
    n, d = len(ordered) + copies, len(lie)
    kept = 0
    for start in range(0, d, BLOCK):
        part, lies = ordered[:, start : start + BLOCK], lie[start : start + BLOCK]
        low, high = (_at_place(part, lies, copies, place) for place in ((n - 1) // 2, n // 2))
        median = (low + high) / 2
        nearer = ((part - median).abs() < (lies - median).abs()).sum(dim=0)
        kept += int((nearer < nearest).sum())
        if 2 * kept >= d:
            return True
        if 2 * (kept + d - min(start + BLOCK, d)) < d:
            return False
    return False


def _at_place(ordered: Tensor, lie: Tensor, copies: int, place: int) -> Tensor:
    """The value in a place once the copies are sorted in among the honest values."""
    value = lie
    if place >= copies:
        value = torch.maximum(value, ordered[place - copies])
    if place < len(ordered):
        value = torch.minimum(value, ordered[place])
    return value
