"""FLTrust, Zeno and FLShield against plain loops, and what liars and empty hands make of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import Squares, context_of

from holdout.errors import InfeasibleError, MisuseError
from holdout.rules import RULES, RuleContext, find_rule, flshield, fltrust, zeno
from holdout.rules.shield import larger_group
from holdout.seeds import stream

seeds = pytest.mark.parametrize("seed", range(6))


def random_updates(n=9, d=12, seed=0, centre=0.0):
    return centre + torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def asking(**given_by):
    return RuleContext(1, torch.zeros(1), 0.1, stream(0), **given_by)


class Own:
    """A root set with this update; its loss is the squared distance to `best`."""

    def __init__(self, update, best=None):
        self.own, self.best = update, update if best is None else best

    def update(self):
        return self.own

    def losses(self, updates):
        return (updates.double() - self.best.double()).square().sum(dim=1)


class Told:
    """Voters who say what they are told to, and remember what they were asked."""

    def __init__(self, reports):
        self.reports, self.asked = reports, None

    def impacts(self, updates):
        self.asked = updates
        return self.reports


# ---------------------------------------------------------------------------------------- FLTrust


def plain_fltrust(updates, own):
    total, trusts = [0.0] * len(own), 0.0
    length = math.sqrt(sum(x * x for x in own))
    for row in updates:
        size = math.sqrt(sum(x * x for x in row))
        trust = max(0.0, sum(a * b for a, b in zip(row, own, strict=True)) / (size * length))
        trusts += trust
        total = [t + trust * length / size * x for t, x in zip(total, row, strict=True)]
    return [t / trusts for t in total]


@seeds
def test_fltrust_weighs_by_cosine_and_brings_lengths_to_the_root_s(seed):
    updates, own = random_updates(seed=seed), random_updates(1, seed=seed + 50)[0]
    found = fltrust(updates, f=2, context=asking(root=Own(own)))
    wanted = plain_fltrust(updates.tolist(), own.tolist())
    assert torch.allclose(found, torch.tensor(wanted), atol=1e-5)


@given(st.integers(0, 1000), st.floats(1e-3, 1e30))
@settings(max_examples=25, deadline=None)
def test_fltrust_is_never_longer_than_the_root_update_whatever_liars_send(seed, scale):
    updates = random_updates(seed=seed)
    updates[:4] *= scale
    own = random_updates(1, seed=seed + 1)[0]
    found = fltrust(updates, f=0, context=asking(root=Own(own)))
    assert found.norm() <= own.norm() * (1 + 1e-5)


def test_fltrust_makes_no_step_where_nobody_agrees_with_the_root():
    own = torch.ones(12)
    against = -random_updates(centre=5.0)
    for updates in (against, torch.zeros(3, 12), torch.full((3, 12), math.nan)):
        assert not fltrust(updates, f=1, context=asking(root=Own(own))).any()
    assert not fltrust(-against, f=1, context=asking(root=Own(torch.zeros(12)))).any()


# ------------------------------------------------------------------------------------------- Zeno


@seeds
@pytest.mark.parametrize("f", [0, 2, 5])
def test_zeno_averages_those_with_the_highest_scores(seed, f):
    updates, own = random_updates(seed=seed), random_updates(1, seed=seed + 50)[0]
    rho = 0.3

    def score(row):
        loss = sum((a - b) ** 2 for a, b in zip(row, own.tolist(), strict=True))
        return sum(b * b for b in own.tolist()) - loss - rho * sum(a * a for a in row)

    rows = updates.tolist()
    best = sorted(range(9), key=lambda i: -score(rows[i]))[: 9 - f]
    context = asking(root=Own(own))
    assert torch.allclose(zeno(updates, f=f, context=context, rho=rho), updates[best].mean(dim=0))
    assert RULES["zeno"].names_proposals


def test_zeno_mistrusts_length():
    updates = torch.tensor([[1.0], [1.0], [1.2]])
    # By the loss alone the longest is best.
    own = Own(torch.tensor([1.5]))
    assert zeno(updates, f=2, context=asking(root=own)).item() == pytest.approx(1.2)
    assert zeno(updates, f=2, context=asking(root=own), rho=5.0).item() == pytest.approx(1.0)


def test_zeno_never_takes_what_ruins_the_loss():
    class Fragile(Own):
        def losses(self, updates):
            losses = super().losses(updates)
            return torch.where(updates[:, 0] > 2, math.inf, losses)

    updates = torch.tensor([[1.0], [9.0], [9.0], [math.nan]])
    root = Fragile(torch.tensor([1.0]))
    assert zeno(updates, f=1, context=asking(root=root)).item() == 1.0
    with pytest.raises(InfeasibleError, match="zeno needs an update with a finite score; got n=2"):
        zeno(updates[1:3], f=1, context=asking(root=root))


# --------------------------------------------------------------------------------------- FLShield


def plain_representatives(rows):
    made = []
    size = [math.sqrt(sum(x * x for x in row)) for row in rows]
    for i, one in enumerate(rows):
        shares = {}
        for j, other in enumerate(rows):
            if j != i:
                cosine = sum(a * b for a, b in zip(one, other, strict=True)) / (size[i] * size[j])
                shares[j] = max(0.0, cosine) * min(1.0, size[i] / size[j])
        total = sum(shares.values())
        if not total:
            made.append(one)
            continue
        siblings = [sum(s * rows[j][k] for j, s in shares.items()) / total for k in range(len(one))]
        made.append([0.75 * a + 0.25 * b for a, b in zip(one, siblings, strict=True)])
    return made


def plain_flshield(rows, reports):
    """Of reports that all voters are believed in."""
    n, classes = len(rows), len(reports[0][0])
    flat = [math.sqrt(sum(x * x for row in r for x in row)) for r in reports]
    usual = sorted(flat)[(len(flat) - 1) // 2]
    shares = [min(1.0, usual / length) for length in flat]
    scores = [
        min(
            sum(s * r[i][c] for s, r in zip(shares, reports, strict=True)) / len(reports)
            for c in range(classes)
        )
        for i in range(n)
    ]
    best = sorted(range(n), key=lambda i: -scores[i])[: (n + 1) // 2]
    norms = sorted(math.sqrt(sum(x * x for x in row)) for row in rows)
    median = norms[(n - 1) // 2]
    total = [0.0] * len(rows[0])
    for i in best:
        scale = min(1.0, median / math.sqrt(sum(x * x for x in rows[i])))
        total = [t + scale * x / len(best) for t, x in zip(total, rows[i], strict=True)]
    return total


@seeds
@pytest.mark.parametrize("n", [1, 4, 9])
def test_flshield_by_definition(seed, n):
    updates = random_updates(n, seed=seed)
    # Two groups of equal reports: the larger one is believed.
    truth = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed + 99)).double()
    voters = Told([truth, -truth, truth * 2, truth, -truth])
    found = flshield(updates, f=0, context=asking(voters=voters))
    asked = torch.tensor(plain_representatives(updates.tolist()))
    assert torch.allclose(voters.asked, asked, atol=1e-6)
    believed = [r.tolist() for r in (truth, truth, truth)]
    assert torch.allclose(
        found, torch.tensor(plain_flshield(updates.tolist(), believed)), atol=1e-6
    )


def test_the_class_that_is_helped_least_decides():
    updates = torch.eye(3)
    report = torch.tensor([[9.0, 9.0, -1.0], [0.1, 0.1, 0.1], [5.0, 0.0, 5.0]]).double()
    found = flshield(updates, f=1, context=asking(voters=Told([report])))
    assert found.tolist() == [0.0, 0.5, 0.5]


def test_a_class_that_a_voter_does_not_hold_is_judged_by_the_others():
    updates = torch.eye(2)
    some = torch.tensor([[1.0, math.nan], [0.2, math.nan]]).double()
    rest = torch.tensor([[1.0, -4.0], [0.2, 0.1]]).double()
    nobody = torch.full((2, 2), math.nan).double()
    assert flshield(updates, f=0, context=asking(voters=Told([some, rest]))).tolist() == [0.0, 1.0]
    assert flshield(updates, f=0, context=asking(voters=Told([some]))).tolist() == [1.0, 0.0]
    # Who knows nothing decides nothing: the lowest index wins.
    assert flshield(updates, f=0, context=asking(voters=Told([nobody]))).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("liars", [1, 2])
def test_a_minority_of_lying_voters_changes_nothing(size, liars):
    updates = random_updates(seed=3, centre=2.0)
    voters = Squares(12)
    honest = voters.impacts(updates)[: 5 - liars]
    spoilt = [-size * report for report in voters.impacts(updates)[:liars]]
    alone = flshield(updates, f=2, context=asking(voters=Told([*honest])))
    assert torch.allclose(
        flshield(updates, f=2, context=asking(voters=Told([*honest, *spoilt]))), alone
    )


HONEST = torch.tensor([[1.0, 1.0], [0.9, 0.9]]).double()


def test_who_is_not_believed_has_no_say():
    against = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).double()
    # Over all five, the second update would do better.
    voters = Told([HONEST, against, HONEST, against, HONEST])
    assert flshield(torch.eye(2), f=0, context=asking(voters=voters)).tolist() == [1.0, 0.0]


def test_a_loud_report_counts_for_no_more_than_the_median_one():
    loud = 1e5 * torch.tensor([[1.0, 1.0], [1.05, 1.1]]).double()
    # Beside one that says the opposite, the loud one is among the believed.
    voters = Told([HONEST, HONEST, -HONEST, loud])
    assert flshield(torch.eye(2), f=0, context=asking(voters=voters)).tolist() == [1.0, 0.0]


def test_one_loud_liar_does_not_hide_the_others():
    shy, loud = -HONEST, 1e5 * torch.tensor([[-1.0, -1.0], [1.0, -0.9]]).double()
    voters = Told([HONEST, HONEST, 1.1 * HONEST, shy, loud])
    assert flshield(torch.eye(2), f=0, context=asking(voters=voters)).tolist() == [1.0, 0.0]


def test_flshield_without_a_report_makes_no_step():
    for reports in ([], [None, None]):
        with pytest.raises(InfeasibleError, match="at least one valid report of a voter; got none"):
            flshield(torch.eye(3), f=1, context=asking(voters=Told(reports)))
    nothing = flshield(torch.full((3, 2), math.nan), f=1, context=context_of(torch.eye(2)))
    assert nothing.isnan().all()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_the_larger_group_is_at_least_half_and_both_are_apart(points):
    found = larger_group(np.array(points)[:, None])
    assert 2 * len(found) >= len(points)
    kept = [points[i] for i in found]
    others = [p for i, p in enumerate(points) if i not in found]
    if others:
        # On a line two groups of Lloyd's algorithm do not overlap.
        assert max(kept) <= min(others) or max(others) <= min(kept)


# ------------------------------------------------------------------------------------ empty hands


@pytest.mark.parametrize("name", ["fltrust", "zeno", "flshield"])
def test_a_rule_that_asks_says_so_and_cannot_do_without(name):
    assert not RULES[name].needs_updates_alone
    what = "context.voters" if name == "flshield" else "context.root"
    for context in (None, asking()):
        with pytest.raises(MisuseError, match=f"{name} needs a context with .*, {what}"):
            RULES[name](torch.eye(4), f=1, context=context)


@pytest.mark.parametrize(
    ("name", "n", "f", "message"),
    [
        ("zeno", 2, 2, "zeno needs n > f updates; got n=2, f=2"),
        ("flshield", 4, 2, "flshield needs n > 2f updates; got n=4, f=2"),
        ("clipping+flshield", 4, 2, "clipping.flshield needs n > 2f and n >= 1 updates; got n=4"),
    ],
)
def test_what_it_needs_is_known_before_anybody_is_asked(name, n, f, message):
    rule = find_rule(name)
    rule.check_feasible(name, n=n + 1, f=f)
    with pytest.raises(InfeasibleError, match=message):
        rule.check_feasible(name, n=n, f=f)
