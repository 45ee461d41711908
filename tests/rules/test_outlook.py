"""What a searching attacker estimates of a rule, against the rule itself."""

import itertools
import math

import numpy as np
import pytest
import torch

from holdout import stream
from holdout.rules import PRE_AGGREGATIONS, RULES, RuleContext, find_rule
from holdout.rules.outlook import UNKNOWN, Outlook, may_be_first
from holdout.rules.shield import shield_farthest

FRONTS = ("", "clipping+", "arc+", "nnm+", "clipping+nnm+", "arc+nnm+")
LASTS = ("mean", "median", "trimmed-mean", "geometric-median", "krum")
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


class Asked:
    """The server's own rows, and three voters: what each thinks of an update is linear in it."""

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.own = torch.randn(D, generator=generator) / math.sqrt(D)
        self.classes = torch.randn(3, D, 4, generator=generator, dtype=torch.float64)
        self.asked = 0

    def update(self):
        return self.own

    def losses(self, updates):
        self.asked += len(updates)
        return 1.0 - 0.1 * updates.double() @ self.own.double()

    def impacts(self, updates):
        return [updates.double() @ of_voter for of_voter in self.classes]


def context_of(asked):
    return RuleContext(1, torch.zeros(D), 0.1, stream(0), root=asked, voters=asked)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("last", ["fltrust", "zeno"])
def test_an_estimate_holds_what_a_rule_that_asks_the_server_gives(front, last, honest):
    rule, mean, context = find_rule(front + last), honest.mean(dim=0), context_of(Asked())
    outlook = Outlook.of(rule, torch.cat([honest, mean[None]]), mean, f=F, context=context)
    known = 0
    for strength in STRENGTHS:
        updates, mixtures = tried(honest, strength)
        result = rule(updates, f=F, context=context).double()
        distance = outlook.distance(mixtures)
        assert distance.low <= float((result - mean.double()).norm()) <= distance.high
        known += math.isfinite(distance.error)
    assert known > len(STRENGTHS) // 2


def test_the_server_is_asked_about_each_honest_update_once(honest):
    asked, mean = Asked(), honest.mean(dim=0)
    outlook = Outlook.of(
        find_rule("zeno"), torch.cat([honest, mean[None]]), mean, f=F, context=context_of(asked)
    )
    for strength in STRENGTHS:
        outlook.distance(tried(honest, strength)[1])
    assert asked.asked == len(honest) + 1 + len(STRENGTHS)  # One more for no step at all.


@pytest.mark.parametrize("front", FRONTS)
def test_flshield_never_goes_farther_than_its_bound(front, honest):
    rule, mean, context = find_rule(f"{front}flshield"), honest.mean(dim=0), context_of(Asked())
    outlook = Outlook.of(rule, torch.cat([honest, mean[None]]), mean, f=F)
    assert outlook.reach(tried(honest, 1.0)[1]) == UNKNOWN
    for strength in STRENGTHS:
        updates, mixtures = tried(honest, strength)
        away = (rule(updates, f=F, context=context).double() - mean.double()).norm()
        bound = outlook.distance(mixtures)
        if bound != UNKNOWN:
            assert float(away) <= bound.high <= 4 * honest.norm(dim=1).max()


@pytest.mark.parametrize("kept", list(itertools.combinations(range(6), 3)))
def test_no_half_of_the_updates_is_farther_than_the_bound_of_flshield(kept):
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    rows[4] = rows[2] = -3.0 * rows[:2].mean(dim=0)
    compared = torch.randn(5, generator=generator, dtype=torch.float64)
    every = torch.cat([rows, compared[None]])
    median = rows.norm(dim=1).sort().values[2]
    cut = rows * (median / rows.norm(dim=1)).clamp(max=1.0)[:, None]
    away = float((cut[list(kept)].mean(dim=0) - compared).norm())
    assert away <= shield_farthest((every @ every.T).numpy()) * (1 + 1e-12)


def test_a_tie_that_rounding_may_break_is_left_in_doubt():
    # The second and the third update are equally far from the first.
    tied = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.5, 0.5]])
    outlook = Outlook.of(find_rule("nnm+mean"), tied, torch.zeros(2), f=1)
    assert outlook.distance(np.eye(5)) == UNKNOWN
    apart = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.1, 0.0], [0.0, 0.5], [0.5, 0.6]])
    assert (
        Outlook.of(find_rule("nnm+mean"), apart, torch.zeros(2), f=1).distance(np.eye(5)) != UNKNOWN
    )


def test_krum_that_rounding_may_change_is_left_in_doubt():
    for fourth, doubtful in ((3.0, True), (3.5, False)):
        updates = torch.tensor([[0.0], [1.0], [2.0], [fourth], [9.0]])
        outlook = Outlook.of(find_rule("krum"), updates, torch.zeros(1), f=0)
        assert (outlook.distance(np.eye(5)) == UNKNOWN) == doubtful


@pytest.mark.parametrize(("more", "doubtful"), [(0.0, True), (1e-6, True), (1e-3, False)])
def test_scores_of_zeno_that_rounding_may_swap_are_left_in_doubt(more, doubtful):
    asked = Asked()
    way = asked.own / asked.own.norm()
    apart = torch.eye(3, D) - torch.outer(way[:3], way)
    updates = apart / apart.norm(dim=1, keepdim=True)
    updates[0] += asked.own
    updates[2] += more * asked.own
    outlook = Outlook.of(find_rule("zeno"), updates, torch.zeros(D), f=1, context=context_of(asked))
    assert (outlook.distance(np.eye(3)) == UNKNOWN) == doubtful


def test_copies_of_a_lie_are_no_tie():
    shares = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 9.0]])
    outlook = Outlook.of(find_rule("nnm+mean"), vectors, torch.zeros(2), f=1)
    assert outlook.distance(shares) != UNKNOWN


def test_nothing_is_estimated_of_other_rules_nor_of_what_is_not_finite(honest):
    mean = honest.mean(dim=0)
    for name in ("multi-krum", "bulyan", "caf", "dnc", "bucketing+mean", "fltrust"):
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
