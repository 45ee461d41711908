"""Section "Adversarial Attack over the Parameter Space": Algorithm 4 and its gamma_max."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from holdout.attacks import DeployedRule, View
from holdout.attacks.search import inflate, strengths
from holdout.attacks.updates import Alie
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.federation.central import run_round
from holdout.federation.round_setup import first_state
from holdout.rules import RULES, mean
from holdout.rules.distance import krum_choice, krum_unsquared_choice, multi_krum_choice
from holdout.rules.rule import custom_rule
from holdout.seeds import stream

GAMMA_MAX = 30.0


def honest_updates(n, d, seed):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(d, generator=generator)
    return centre + torch.rand(d, generator=generator) * torch.randn(n, d, generator=generator)


def view_of(honest, rule, *, copies, f):
    method = RULES.get(rule) or custom_rule(mean, rule)
    deployed = DeployedRule(method, honest, copies, f)
    return View(
        round_number=1,
        weights=torch.zeros(honest.shape[1]),
        learning_rate=0.1,
        model=nn.Identity(),
        count=copies,
        proposers=copies + len(honest),
        known=honest,
        own_updates=lambda: honest[:copies],
        held=lambda: (honest, torch.zeros(len(honest)).long()),
        start=torch.zeros(honest.shape[1]),
        deployed=deployed,
        baseline=lambda name: DeployedRule(RULES[name], honest, copies, f),
        source=stream(0, "attack", 1),
        run_source=stream(0, "attack"),
    )


# The vector.


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("gamma", [0.0, 1.75, 12.5])
def test_the_lie_is_the_mean_and_gamma_deviations_per_coordinate(direction, gamma):
    honest = honest_updates(7, 11, seed=0)
    view = view_of(honest, "mean", copies=3, f=3)
    lie = Alie(gamma=gamma, direction=direction)(view)
    rows = honest.double().tolist()
    for values, sent in zip(zip(*rows, strict=True), lie.updates.tolist(), strict=True):
        mu = sum(values) / 7
        # Of the population: divided by n, not by n - 1.
        sigma = (sum((value - mu) ** 2 for value in values) / 7) ** 0.5
        assert sent == pytest.approx(mu + direction * gamma * sigma, rel=1e-5, abs=1e-5)
    assert lie.gamma == gamma


def test_the_ladder_climbs_in_small_steps_to_exactly_gamma_max():
    ladder = strengths(GAMMA_MAX)
    assert (ladder[0], ladder[1], ladder[-1]) == (0.0, 0.1, GAMMA_MAX)
    for low, high in itertools.pairwise(ladder):
        assert 0 < high - low <= max(0.1, 0.05 * low) + 1e-4


# gamma_max against the baselines, found again by running the real rule on the whole matrix.


def chosen_by(choice):
    """Rules that choose rows: any copy of the lie will do."""

    def selects(updates, copies, f):
        chosen = choice(updates, f=f)
        return bool(copies.intersection([chosen] if isinstance(chosen, int) else chosen))

    return selects


def kept_by(rule):
    """Rules by coordinate: what they kept of the lie, they follow when it moves a little."""

    def selects(updates, copies, f):
        nudged = updates.double()
        nudged[list(copies)] += 1e-9
        moved = RULES[rule](nudged, f=f) - RULES[rule](updates.double(), f=f)
        return 2 * int((moved > 1e-12).sum()) >= updates.shape[1]

    return selects


SELECTS = {
    "krum": chosen_by(krum_choice),
    "krum-unsquared": chosen_by(krum_unsquared_choice),
    "multi-krum": chosen_by(multi_krum_choice),
    "bulyan": kept_by("bulyan"),
    "trimmed-mean": kept_by("trimmed-mean"),
    "median": kept_by("median"),
    "mean-around-median": kept_by("mean-around-median"),
}
SIZES = {
    "bulyan": [(9, 2, 2), (13, 2, 3), (9, 3, 2)],
    "other": [(9, 4, 4), (12, 3, 4), (10, 5, 5), (9, 3, 4), (7, 1, 2)],
}
"""(honest, copies of the lie, f)."""


def last_passing(rule, honest, *, copies, f):
    """Climb the ladder with the rule itself until the lie is no longer selected."""
    mu, sigma = honest.mean(dim=0), honest.std(dim=0, correction=0)
    n = len(honest) + copies
    # Byzantine proposals have any ids, so their rows are anywhere. Bulyan alone looks at the order:
    # in its last Krums, of one neighbour each, two that are nearest to each other tie. There the
    # attacker takes its copies to come last.
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    if rule == "bulyan":
        order = torch.arange(n)
    places = {place for place, row in enumerate(order.tolist()) if row >= len(honest)}
    passed = 0.0
    for gamma in strengths(GAMMA_MAX):
        lie = mu + gamma * sigma
        if not SELECTS[rule](torch.cat([honest, lie.expand(copies, -1)])[order], places, f):
            break
        passed = gamma
    return passed


@pytest.mark.parametrize("rule", SELECTS)
def test_the_adaptive_gamma_is_the_last_that_the_rule_still_selects(rule):
    found = []
    for n, copies, f in SIZES.get(rule, SIZES["other"]):
        for seed in range(6):
            honest = honest_updates(n, 15, seed)
            view = view_of(honest, rule, copies=copies, f=f)
            lie = Alie(gamma="adaptive", gamma_max=GAMMA_MAX)(view)
            assert lie.gamma == last_passing(rule, honest, copies=copies, f=f), (n, copies, seed)
            assert torch.equal(lie.updates, view.mean + lie.gamma * view.deviation)
            found.append(lie.gamma)
    # The search neither fails at once nor runs into its end.
    assert any(0 < gamma < GAMMA_MAX for gamma in found)


@pytest.mark.parametrize("rule", ["mean", "geometric-median", "a-custom-rule"])
def test_a_rule_that_leaves_nobody_out_is_sent_gamma_max(rule):
    honest = honest_updates(9, 15, seed=0)
    view = view_of(honest, rule, copies=4, f=4)
    assert inflate(view.deployed, view.mean, view.deviation, maximum=GAMMA_MAX) == GAMMA_MAX


@pytest.mark.parametrize("rule", ["krum", "krum-unsquared"])
def test_the_authors_gamma_is_searched_against_krum_whatever_is_deployed(rule):
    honest = honest_updates(9, 15, seed=0)
    lie = Alie(gamma=rule)(view_of(honest, "mean", copies=4, f=4))
    assert lie.gamma == last_passing(rule, honest, copies=4, f=4)


def test_distances_that_are_not_squared_let_larger_lies_through():
    for seed in range(6):
        view = view_of(honest_updates(16, 200, seed), "mean", copies=12, f=9)
        squared, plain = (Alie(gamma=rule)(view).gamma for rule in ("krum", "krum-unsquared"))
        assert plain > 1.3 * squared > 0, seed


# gamma_max against HoldOut: whole rounds, honest losses and the coalition's ballots included.


def plan_of(blobs, rule, *, passing="any", seeds=(0,)):
    return make_plan(
        {
            "experiment": {"rules": [rule], "baseline": False, "seeds": list(seeds)},
            "data": {"samples_per_worker": 60},
            "training": {"batch_size": 12},
            "federation": {"workers": 30, "byzantine": 7, "proposers": 11, "voters": 9},
            "vote": {"samples": 40},
            "attack": {"name": "alie", "passing": passing, "voters": "coalition"},
        },
        Plugins(data=blobs),
    )


def rounds_under_attack(plan, *, rounds=6):
    """(repeat, record) of rounds with a coalition; repeat(gamma) is the same round at that gamma"""
    for curve, seed in plan.curves:
        federation = plan.federation(curve, seed)
        state = first_state(federation)
        for _ in range(rounds):

            def repeat(gamma, federation=federation, curve=curve, state=state):
                fixed = replace(curve, act=Alie(gamma=gamma))
                return run_round(federation, fixed, state)[0]

            record, state = run_round(federation, curve, state)
            if record.byzantine_proposers:
                yield repeat, record


@pytest.mark.parametrize("rule", ["holdout-paper", "holdout-1", "holdout"])
def test_the_next_gamma_is_the_first_that_the_vote_keeps_out(blobs, rule):
    ladder = strengths(GAMMA_MAX)
    limited = 0
    for repeat, record in rounds_under_attack(plan_of(blobs, rule, seeds=(0, 1, 2))):
        same = repeat(record.gamma)
        assert (same.selection, same.ballots) == (record.selection, record.ballots)
        if record.gamma == 0.0 and not record.byzantine_selected:
            continue  # The honest mean itself is kept out: there is nothing to inflate.
        assert record.byzantine_selected > 0
        if record.gamma < GAMMA_MAX:
            following = ladder[ladder.index(record.gamma) + 1]
            assert repeat(following).byzantine_selected == 0
            limited += 1
    assert limited >= 3


@pytest.mark.parametrize("rule", ["holdout-1", "holdout"])
def test_with_passing_all_every_lie_is_selected_and_the_next_gamma_loses_one(blobs, rule):
    ladder = strengths(GAMMA_MAX)
    limited = 0
    for repeat, record in rounds_under_attack(plan_of(blobs, rule, passing="all")):
        if record.gamma == 0.0:
            continue
        assert record.byzantine_selected == record.byzantine_proposers
        if record.gamma < GAMMA_MAX:
            following = repeat(ladder[ladder.index(record.gamma) + 1])
            assert following.byzantine_selected < following.byzantine_proposers
            limited += 1
    assert limited >= 1


def test_a_draw_with_more_liars_than_a_ballot_leaves_out_lets_any_gamma_through(blobs):
    plan = plan_of(blobs, "holdout-paper", seeds=range(4))
    overflown = [
        record
        for _, record in rounds_under_attack(plan)
        if record.byzantine_proposers > 11 - record.approve_count
    ]
    assert overflown
    assert all(record.gamma == GAMMA_MAX for record in overflown)
    assert all(record.byzantine_selected for record in overflown)
