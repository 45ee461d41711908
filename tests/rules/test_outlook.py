"""What a searching attacker estimates of a rule, against the rule itself."""

import math

import numpy as np
import pytest
import torch

from holdout.rules import PRE_AGGREGATIONS, RULES, find_rule
from holdout.rules.outlook import UNKNOWN, Outlook, may_be_first

FRONTS = ("", "clipping+", "arc+", "nnm+", "clipping+nnm+", "arc+nnm+")
LASTS = ("mean", "median", "trimmed-mean", "geometric-median")
N, F, D = 9, 2, 400
STRENGTHS = (-40.0, -3.0, -1.0, -0.1, 0.0, 0.2, 1.0, 2.5, 7.0, 9.0, 100.0)


@pytest.fixture
def honest():
    generator = torch.Generator().manual_seed(3)
    common = 0.5 * torch.randn(D, generator=generator) / math.sqrt(D)
    return common + torch.randn(N - F, D, generator=generator) / math.sqrt(D)


def tried(honest, strength):
    """Two lies among the honest updates, as vectors and as mixtures of these and their mean."""
    lie = -strength * honest.mean(dim=0)
    mixtures = np.zeros((N, N - F + 1))
    mixtures[[0, 1, 2, 4, 5, 6, 8], range(N - F)] = 1.0
    mixtures[[3, 7], -1] = -strength
    rows = [*honest[:3], lie, *honest[3:6], lie, honest[6]]
    return torch.stack(rows), mixtures


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("last", LASTS)
def test_an_estimate_holds_what_the_rule_gives(front, last, honest):
    rule, mean = find_rule(front + last), honest.mean(dim=0)
    slope = torch.randn(D, generator=torch.Generator().manual_seed(4))
    apart, along = (
        Outlook.of(rule, torch.cat([honest, mean[None]]), to, f=F) for to in (mean, slope)
    )
    if not front and RULES[last].weigh is None:
        assert apart is along is None
        return
    known = 0
    for strength in STRENGTHS:
        updates, mixtures = tried(honest, strength)
        result = rule(updates, f=F).double()
        distance, reach = apart.distance(mixtures), along.reach(mixtures)
        assert distance.low <= float((result - mean.double()).norm()) <= distance.high
        assert reach.low <= float(result @ slope.double()) <= reach.high
        known += math.isfinite(distance.error)
        if math.isfinite(distance.error):
            assert distance.error < 1e-3 * (1.0 + abs(strength))
    assert known > len(STRENGTHS) // 2


def test_a_tie_that_rounding_may_break_is_left_in_doubt():
    # The second and the third update are equally far from the first.
    tied = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.5, 0.5]])
    outlook = Outlook.of(find_rule("nnm+mean"), tied, torch.zeros(2), f=1)
    assert outlook.distance(np.eye(5)) == UNKNOWN
    apart = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.1, 0.0], [0.0, 0.5], [0.5, 0.6]])
    assert (
        Outlook.of(find_rule("nnm+mean"), apart, torch.zeros(2), f=1).distance(np.eye(5)) != UNKNOWN
    )


def test_copies_of_a_lie_are_no_tie():
    shares = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 9.0]])
    outlook = Outlook.of(find_rule("nnm+mean"), vectors, torch.zeros(2), f=1)
    assert outlook.distance(shares) != UNKNOWN


def test_nothing_is_estimated_of_other_rules_nor_of_what_is_not_finite(honest):
    mean = honest.mean(dim=0)
    for name in ("krum", "bulyan", "caf", "dnc", "bucketing+mean", "nnm+krum"):
        assert Outlook.of(find_rule(name), honest, mean, f=F) is None
    for value in (math.nan, math.inf, 1e31):
        spoilt = honest.clone()
        spoilt[0, 0] = value
        assert Outlook.of(find_rule("mean"), spoilt, mean, f=F) is None


def test_a_parameter_reaches_the_estimate(honest):
    clipped = PRE_AGGREGATIONS["clipping"].with_parameters(radius=0.25)
    gram = (honest @ honest.T).double().numpy()
    shares = clipped.mix(gram, f=0)
    assert np.allclose(np.diag(shares @ gram @ shares.T), 0.25**2, rtol=1e-5)


def test_all_that_may_be_among_the_first_are_named():
    values = [1.0, 5.0, 4.9, 3.0, 2.99]
    estimates = [UNKNOWN._replace(value=value, error=0.1) for value in values]
    assert may_be_first(estimates, 1) == [1, 2]
    assert may_be_first(estimates, 3) == [1, 2, 3, 4]
    assert may_be_first([*estimates, UNKNOWN], 1) == [1, 2, 5]
    assert may_be_first(estimates, 9) == [0, 1, 2, 3, 4]
