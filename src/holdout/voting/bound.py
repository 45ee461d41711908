"""The norm bound: how long an update may be before anybody scores or averages it.

A vote on single updates is safe only if one update cannot dominate the average. An update that
leads to a function-identical network (ReLU units rescaled by 1000) has a perfect loss of its own
and still ruins the mean. So each update is scaled down to a radius that follows the median norm,
but moves by at most RATE a round, whatever a lucky draw of liars sends.
"""

from collections.abc import Sequence

RATE = 1.5
"""Part of the protocol without a server too: every member computes the same radius."""


def bound_radius(norms: Sequence[float], *, previous: float | None) -> float | None:
    """The radius r_t of this round, from the norms of the admitted updates and r_{t-1}.

    Where nothing was admitted the radius stays. A radius of zero (a first round in which most
    updates were zero) counts as none: it could never grow again.
    """
    if not norms:
        return previous
    median = sorted(norms)[(len(norms) + 1) // 2 - 1]
    if not previous:
        return median
    return min(max(median, previous / RATE), RATE * previous)
