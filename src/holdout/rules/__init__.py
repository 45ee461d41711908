"""The baselines: rules that turn n updates, of which at most f may be lies, into one.

A rule sees the updates, as the rows of an (n, d) tensor, and returns a (d,) tensor of the
same dtype. It modifies nothing, draws nothing at random, and breaks every tie by the lowest index.

    mean, median, trimmed_mean, mean_around_median   per coordinate        (coordinatewise)
    krum, krum_unsquared, multi_krum, bulyan         pairwise distances    (distance)
    geometric_median                                 sum of the distances  (geometric)
    caf                                              how updates vary      (covariance)
    fltrust, zeno                                    the server's rows     (trust)
    flshield                                         voters' reports       (shield)
    nnm, clipping                                    updates to updates    (preaggregation)

The last three rules also ask the server's own rows or the voters of the round, whom they find in
their `RuleContext`.

`RULES` and `PRE_AGGREGATIONS` are the only lists of them. `find_rule("nnm+krum")` and
`compose("nnm", "krum")` put a pre-aggregation in front of a rule.

What liars send: while at most f rows hold NaN, ±Inf or huge finite values, every rule but `mean`
returns a finite vector near the others. The order statistics read NaN as +Inf; to the distances a
row that is not finite is infinitely far from every other; the geometric median and CAF leave it
out. With more than f such rows nothing is promised and the result may not be finite. `mean` passes
every NaN and Inf on.

n and f that do not fit are an `InfeasibleError`; what no caller should send is a `MisuseError`.
"""

from holdout.rules.coordinatewise import mean, mean_around_median, median, trimmed_mean
from holdout.rules.covariance import caf
from holdout.rules.distance import bulyan, krum, krum_unsquared, multi_krum
from holdout.rules.geometric import geometric_median
from holdout.rules.preaggregation import clipping, nnm
from holdout.rules.rule import (
    LEAVES_NOBODY_OUT,
    NAMES_NOBODY,
    Needs,
    PreAggregation,
    ReportingVoters,
    Root,
    Rule,
    RuleContext,
)
from holdout.rules.shield import flshield
from holdout.rules.table import PRE_AGGREGATIONS, RULES, compose, find_rule
from holdout.rules.trust import fltrust, zeno

__all__ = [
    "LEAVES_NOBODY_OUT",
    "NAMES_NOBODY",
    "PRE_AGGREGATIONS",
    "RULES",
    "Needs",
    "PreAggregation",
    "ReportingVoters",
    "Root",
    "Rule",
    "RuleContext",
    "bulyan",
    "caf",
    "clipping",
    "compose",
    "find_rule",
    "flshield",
    "fltrust",
    "geometric_median",
    "krum",
    "krum_unsquared",
    "mean",
    "mean_around_median",
    "median",
    "multi_krum",
    "nnm",
    "trimmed_mean",
    "zeno",
]
