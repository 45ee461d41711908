"""The baselines: rules that turn n updates, of which at most f may be lies, into one.

A rule sees the updates as the rows of an (n, d) tensor, and returns a (d,) tensor of the same
dtype. It modifies nothing. Where a rule draws at random (`bucketing`, `dnc`, `signguard`) or keeps
something (`centered_clipping`), it does so by its context.

    mean, median, trimmed_mean, mean_around_median   per coordinate        (coordinatewise)
    krum, krum_unsquared, multi_krum, bulyan         pairwise distances    (distance)
    geometric_median                                 sum of the distances  (geometric)
    caf, dnc                                         how updates vary      (covariance)
    mda, smea, monna                                 the best n - f rows   (subsets)
    centered_clipping, norm_bound_mean               how long they are     (norms)
    signguard                                        lengths and signs     (signs)
    fltrust, zeno                                    the server's rows     (trust)
    flshield                                         voters' reports       (shield)
    nnm, bucketing, clipping, arc                    updates to updates    (preaggregation)

The last three rules also ask the server's own rows or the voters of the round, whom they find in
their `RuleContext`.

`RULES` and `PRE_AGGREGATIONS` are the only lists of them. `find_rule("nnm+krum")` and
`compose("nnm", "krum")` put a pre-aggregation in front of a rule, and
`RULES["dnc"].with_parameters(iterations=3)` sets what a rule has as parameters.

What liars send: while at most f rows hold NaN, ±Inf or huge finite values, every rule but `mean`
returns a finite vector; all but the two that only shorten updates, `centered_clipping` and
`norm_bound_mean`, one near the others. The order statistics read NaN as +Inf; to the distances a
row that is not finite is infinitely far from every other; the other rules leave it out. With more
than f such rows nothing is promised and the result may not be finite. `mean` passes every NaN and
Inf on.

n and f that do not fit are an `InfeasibleError`; what no caller should send is a `MisuseError`.
"""

from holdout.rules.context import ReportingVoters, Root, RuleContext
from holdout.rules.coordinatewise import mean, mean_around_median, median, trimmed_mean
from holdout.rules.covariance import caf, dnc
from holdout.rules.distance import bulyan, krum, krum_unsquared, multi_krum
from holdout.rules.geometric import geometric_median
from holdout.rules.norms import centered_clipping, norm_bound_mean
from holdout.rules.preaggregation import arc, bucketing, clipping, nnm
from holdout.rules.rule import LEAVES_NOBODY_OUT, NAMES_NOBODY, Needs, PreAggregation, Rule
from holdout.rules.shield import flshield
from holdout.rules.signs import signguard
from holdout.rules.subsets import mda, monna, smea
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
    "arc",
    "bucketing",
    "bulyan",
    "caf",
    "centered_clipping",
    "clipping",
    "compose",
    "dnc",
    "find_rule",
    "flshield",
    "fltrust",
    "geometric_median",
    "krum",
    "krum_unsquared",
    "mda",
    "mean",
    "mean_around_median",
    "median",
    "monna",
    "multi_krum",
    "nnm",
    "norm_bound_mean",
    "signguard",
    "smea",
    "trimmed_mean",
    "zeno",
]
