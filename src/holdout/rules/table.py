"""The tables of rules and pre-aggregations, and how names and functions compose."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import torch

from holdout.errors import UserError
from holdout.rules import rehearsal
from holdout.rules.coordinatewise import mean, mean_around_median, median, trimmed_mean
from holdout.rules.covariance import caf, dnc, dnc_choice
from holdout.rules.distance import (
    BULYAN_NEEDS,
    KRUM_NEEDS,
    bulyan,
    krum,
    krum_choice,
    krum_index,
    krum_unsquared,
    krum_unsquared_choice,
    krum_weights,
    multi_krum,
    multi_krum_choice,
    multi_krum_indices,
)
from holdout.rules.geometric import geometric_median, geometric_weights
from holdout.rules.norms import centered_clipping, norm_bound_mean
from holdout.rules.preaggregation import (
    arc,
    arc_mix,
    bucket_count,
    bucketing,
    clipping,
    clipping_mix,
    nnm,
    nnm_mix,
)
from holdout.rules.rule import (
    ANY_NUMBER,
    HONEST_MAJORITY,
    LEAVES_NOBODY_OUT,
    NAMES_NOBODY,
    PreAggregation,
    PreFunction,
    Rule,
    RuleFunction,
    custom_rule,
    put_in_front,
    rehearsed_by_running,
)
from holdout.rules.shield import FLSHIELD_NEEDS, flshield, shield_farthest
from holdout.rules.signs import signguard
from holdout.rules.subsets import (
    SMEA_NEEDS,
    mda,
    mda_choice,
    mda_indices,
    monna,
    monna_choice,
    monna_indices,
    smea,
    smea_choice,
    smea_indices,
)
from holdout.rules.trust import (
    FLTRUST_NEEDS,
    ZENO_NEEDS,
    fltrust,
    fltrust_weights,
    zeno,
    zeno_choice,
    zeno_weights,
)

T = TypeVar("T")

_ASKING: Mapping[str, Rule] = {
    "fltrust": Rule(
        fltrust,
        label="FLTrust",
        choose=NAMES_NOBODY,
        rehearse=LEAVES_NOBODY_OUT,
        needs=FLTRUST_NEEDS,
        weigh=fltrust_weights,
        beside=lambda root: root.update().detach()[None],
    ),
    "zeno": Rule(
        zeno,
        label="Zeno",
        choose=zeno_choice,
        rehearse=LEAVES_NOBODY_OUT,
        needs=ZENO_NEEDS,
        weigh=zeno_weights,
        beside=lambda root: torch.zeros_like(root.update())[None],
        told=lambda root, updates: root.losses(updates).detach(),
    ),
    "flshield": Rule(
        flshield,
        label="FLShield",
        choose=NAMES_NOBODY,
        rehearse=LEAVES_NOBODY_OUT,
        needs=FLSHIELD_NEEDS,
        farthest=shield_farthest,
    ),
}
"""Rules that look at more than the updates: the server's own rows, or what voters report."""

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "mean": Rule(
            mean,
            label="mean",
            choose=lambda updates, _f: range(len(updates)),
            rehearse=LEAVES_NOBODY_OUT,
            needs=ANY_NUMBER,
            weigh=lambda gram, **_: np.full(len(gram), 1 / len(gram)),
        ),
        "median": Rule(
            median,
            label="median",
            choose=NAMES_NOBODY,
            rehearse=rehearsal.by_place(lambda n, _f: ((n - 1) // 2, n // 2)),
            needs=HONEST_MAJORITY,
            is_steady=True,
        ),
        "trimmed-mean": Rule(
            trimmed_mean,
            label="trimmed mean",
            choose=NAMES_NOBODY,
            rehearse=rehearsal.by_place(lambda n, f: (f, n - f - 1)),
            needs=HONEST_MAJORITY,
            is_steady=True,
        ),
        "mean-around-median": Rule(
            mean_around_median,
            label="mean around median",
            choose=NAMES_NOBODY,
            rehearse=rehearsal.by_nearness,
            needs=HONEST_MAJORITY,
        ),
        "krum": Rule(
            krum,
            label="Krum",
            choose=lambda updates, f: [krum_choice(updates, f=f)],
            rehearse=rehearsal.by_distance(lambda squares, f: [krum_index(squares, f=f)]),
            needs=KRUM_NEEDS,
            weigh=krum_weights,
        ),
        "krum-unsquared": Rule(
            krum_unsquared,
            label="Krum (unsquared)",
            choose=lambda updates, f: [krum_unsquared_choice(updates, f=f)],
            rehearse=rehearsal.by_distance(lambda squares, f: [krum_index(np.sqrt(squares), f=f)]),
            needs=KRUM_NEEDS,
        ),
        "multi-krum": Rule(
            multi_krum,
            label="multi-Krum",
            choose=lambda updates, f: multi_krum_choice(updates, f=f),
            rehearse=rehearsal.by_distance(lambda squares, f: multi_krum_indices(squares, f=f)),
            needs=KRUM_NEEDS,
        ),
        "bulyan": Rule(
            bulyan,
            label="Bulyan",
            choose=NAMES_NOBODY,
            rehearse=rehearsal.of_bulyan,
            needs=BULYAN_NEEDS,
        ),
        "geometric-median": Rule(
            geometric_median,
            label="geometric median",
            choose=NAMES_NOBODY,
            rehearse=LEAVES_NOBODY_OUT,
            needs=HONEST_MAJORITY,
            weigh=geometric_weights,
        ),
        "caf": rehearsed_by_running(
            Rule(
                caf,
                label="CAF",
                choose=NAMES_NOBODY,
                rehearse=LEAVES_NOBODY_OUT,
                needs=HONEST_MAJORITY,
            )
        ),
        "centered-clipping": rehearsed_by_running(
            Rule(
                centered_clipping,
                label="centered clipping",
                choose=NAMES_NOBODY,
                rehearse=LEAVES_NOBODY_OUT,
                needs=HONEST_MAJORITY,
            )
        ),
        "mda": Rule(
            mda,
            label="MDA",
            choose=lambda updates, f: mda_choice(updates, f=f),
            rehearse=rehearsal.by_distance(lambda squares, f: mda_indices(squares, f=f)),
            needs=HONEST_MAJORITY,
        ),
        "smea": Rule(
            smea,
            label="SMEA",
            choose=lambda updates, f: smea_choice(updates, f=f),
            rehearse=rehearsal.by_gram(lambda gram, f: smea_indices(gram, f=f)),
            needs=SMEA_NEEDS,
        ),
        "monna": Rule(
            monna,
            label="MoNNA",
            choose=monna_choice,
            rehearse=rehearsal.by_distance(lambda squares, f: monna_indices(squares, f=f)),
            needs=HONEST_MAJORITY,
        ),
        "dnc": rehearsed_by_running(
            Rule(
                dnc,
                label="DnC",
                choose=dnc_choice,
                rehearse=LEAVES_NOBODY_OUT,
                needs=HONEST_MAJORITY,
            )
        ),
        "norm-bound-mean": rehearsed_by_running(
            Rule(
                norm_bound_mean,
                label="norm-bounded mean",
                choose=NAMES_NOBODY,
                rehearse=LEAVES_NOBODY_OUT,
                needs=HONEST_MAJORITY,
            )
        ),
        "signguard": rehearsed_by_running(
            Rule(
                signguard,
                label="SignGuard",
                choose=NAMES_NOBODY,
                rehearse=LEAVES_NOBODY_OUT,
                needs=HONEST_MAJORITY,
            )
        ),
        **{name: rehearsed_by_running(rule) for name, rule in _ASKING.items()},
    }
)
"""Every baseline rule by its name in a config; nothing else lists them."""

PRE_AGGREGATIONS: Mapping[str, PreAggregation] = MappingProxyType(
    {
        "nnm": PreAggregation(
            nnm, label="NNM", keeps_rows=False, needs=HONEST_MAJORITY, mix=nnm_mix
        ),
        "clipping": PreAggregation(
            clipping, label="clipping", keeps_rows=True, needs=ANY_NUMBER, mix=clipping_mix
        ),
        "bucketing": PreAggregation(
            bucketing, label="bucketing", keeps_rows=False, needs=ANY_NUMBER, leaves=bucket_count
        ),
        "arc": PreAggregation(
            arc, label="ARC", keeps_rows=True, needs=HONEST_MAJORITY, mix=arc_mix
        ),
    }
)
"""Every pre-aggregation by its name in a config."""


def find_rule(name: str) -> Rule | None:
    """The rule that a name stands for, with its pre-aggregations; None if there is no such rule.

    Args:
        name: The name of a rule, after any number of pre-aggregations and plus signs.

    Example:
        >>> find_rule("nnm+krum").label
        'NNM + Krum'
        >>> find_rule("krum+nnm") is None
        True
    """
    *front, last = name.split("+")
    rule = RULES.get(last)
    for part in reversed(front):
        pre = PRE_AGGREGATIONS.get(part)
        if rule is None or pre is None:
            return None
        rule = put_in_front(pre, rule)
    return rule


def compose(pre: str | PreAggregation | PreFunction, rule: str | Rule | RuleFunction) -> Rule:
    """A rule behind a pre-aggregation; compose again to put another one in front.

    Args:
        pre: A pre-aggregation: its name, an entry of `PRE_AGGREGATIONS`, or a function from
            updates to updates, `pre(updates, *, f)`.
        rule: A rule: its name ("krum", "nnm+krum"), an entry of `RULES`, or a function from updates
            to an update, `rule(updates, *, f)`.

    Example:
        >>> import torch
        >>> rule = compose("nnm", "trimmed-mean")
        >>> rule(torch.tensor([[1.0], [2.0], [3.0], [99.0]]), f=1)
        tensor([2.])
    """
    if isinstance(pre, str):
        pre = _look_up("pre-aggregation", pre, PRE_AGGREGATIONS)
    elif not isinstance(pre, PreAggregation):
        pre = PreAggregation(pre, _name_of(pre), keeps_rows=False, needs=ANY_NUMBER)
    if isinstance(rule, str):
        rule = find_rule(rule) or _look_up("rule", rule, RULES)
    elif not isinstance(rule, Rule):
        rule = custom_rule(rule, _name_of(rule))
    return put_in_front(pre, rule)


def _look_up(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise UserError(f"there is no {kind} {name!r}; there are {', '.join(known)}")
    return known[name]


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
