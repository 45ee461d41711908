"""The baselines: rules that turn n updates into one, of which at most f may be Byzantine.

A rule sees the updates only, as the rows of an (n, d) tensor, and returns a (d,) tensor of the
same dtype. It modifies nothing, draws nothing at random, and breaks every tie by the lowest index.

    mean, median, trimmed_mean, mean_around_median   per coordinate        (coordinatewise)
    krum, krum_unsquared, multi_krum, bulyan         distances in pairs    (distance)
    geometric_median                                 sum of the distances  (geometric)

What liars send: while at most f rows hold NaN, ±Inf or huge finite values, every rule but `mean`
returns a finite vector near the others. The order statistics read NaN as +Inf; to the distances a
row that is not finite is infinitely far from every other; the geometric median leaves it out.
With more than f such rows nothing is promised and the result may not be finite. `mean` hands every
NaN and Inf on.

n and f that do not fit are an `InfeasibleError`; what no caller should send is a `MisuseError`.
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from holdout.rules.coordinatewise import mean, mean_around_median, median, trimmed_mean
from holdout.rules.distance import (
    bulyan,
    bulyan_choice,
    krum,
    krum_choice,
    krum_unsquared,
    krum_unsquared_choice,
    multi_krum,
    multi_krum_choice,
)
from holdout.rules.geometric import geometric_median

__all__ = [
    "RULES",
    "Rule",
    "bulyan",
    "bulyan_choice",
    "geometric_median",
    "krum",
    "krum_choice",
    "krum_unsquared",
    "krum_unsquared_choice",
    "mean",
    "mean_around_median",
    "median",
    "multi_krum",
    "multi_krum_choice",
    "trimmed_mean",
]


class Rule(Protocol):
    """Updates (n, d), of which at most f are Byzantine -> the update (d,) to apply."""

    def __call__(self, updates: Tensor, *, f: int) -> Tensor:
        """Aggregate the rows of `updates`."""
        ...


RULES: Mapping[str, Rule] = {
    "mean": mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "mean-around-median": mean_around_median,
    "krum": krum,
    "krum-unsquared": krum_unsquared,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "geometric-median": geometric_median,
}
