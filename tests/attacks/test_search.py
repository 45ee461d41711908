"""The adaptive attacker: the ladder it climbs, and what it takes for being selected."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.asking import called, context_of

from holdout.attacks import ATTACKS, DeployedRule
from holdout.attacks.search import GROWTH, STEP, inflate, strengths
from holdout.rules import RULES, RuleContext
from holdout.rules.distance import (
    bulyan_choice,
    krum_choice,
    krum_unsquared_choice,
    multi_krum_choice,
)
from holdout.rules.rule import custom_rule
from holdout.rules.subsets import mda_choice, monna_choice, smea_choice
from holdout.seeds import stream

LINE = (torch.zeros(3), torch.ones(3))


@given(st.floats(0.001, 1e4))
def test_the_ladder_climbs_in_small_steps_from_zero_to_the_maximum(maximum):
    ladder = strengths(maximum)
    assert ladder[0] == 0.0
    assert ladder[-1] == maximum
    for low, high in itertools.pairwise(ladder):
        assert low < high <= max(low + STEP, low * GROWTH) + 1e-4
    # Only the last step may be shorter.
    for low, high in itertools.pairwise(ladder[:-1]):
        assert high == pytest.approx(max(low + STEP, low * GROWTH), abs=1e-4)


@given(st.floats(0.001, 1e3), st.floats(0.001, 1e3))
def test_a_higher_maximum_only_adds_rungs(low, high):
    low, high = sorted((low, high))
    assert strengths(high)[: len(strengths(low)) - 1] == strengths(low)[:-1]


def test_a_maximum_of_zero_is_a_ladder_of_one_rung():
    assert strengths(0.0) == [0.0]


@given(st.floats(-1, 40), st.floats(0, 30))
def test_inflation_ends_at_the_last_rung_that_is_selected(limit, maximum):
    asked = []

    class Deployed:
        leaves_nobody_out = False

        def selects(self, _base, _direction, ladder):
            for strength in ladder:
                asked.append(strength)
                yield strength <= limit

    gamma = inflate(Deployed(), *LINE, maximum=maximum)
    below = [s for s in strengths(maximum) if s <= limit]
    assert gamma == (below[-1] if below else 0.0)
    # Lazily: one rung past the last that passes, no further.
    assert asked == strengths(maximum)[: len(below) + 1]


def test_inflation_ends_at_the_first_failure_whatever_comes_after(scripted):
    class Twice(scripted):
        def selects(self, base, direction, strengths):  # noqa: ARG002
            return (s < 0.45 or s > 1.0 for s in strengths)

    assert inflate(Twice(), *LINE, maximum=9.0) == 0.4


def test_against_a_rule_that_leaves_nobody_out_nothing_is_tried(scripted):
    open_door = scripted(leaves_nobody_out=True)
    assert inflate(open_door, *LINE, maximum=9.0) == 9.0
    assert open_door.asked == []


def kept_places(everybody, honest, first, last):
    """Whether one of the copies (the rows from `honest` on) stands in those places, by value."""
    order = np.sort(everybody, axis=0)
    lie = everybody[honest]
    return ((order[first : last + 1] == lie).any(axis=0)).sum() * 2 >= len(lie)


def kept_nearest(everybody, honest, count):
    median = np.median(everybody, axis=0)
    distance = np.abs(everybody - median)
    # The honest first, so that a tie goes against the lie; continuous numbers have none.
    order = np.argsort(distance, axis=0, kind="stable")[:count]
    return ((order >= honest).any(axis=0)).sum() * 2 >= everybody.shape[1]


def kept_by_bulyan(updates, honest, f):
    chosen = bulyan_choice(updates, f=f)
    first_copy = sum(index < honest for index in chosen)
    if first_copy == len(chosen):
        return False
    return kept_nearest(updates[list(chosen)].double().numpy(), first_copy, len(updates) - 4 * f)


ORACLES = {
    "krum": lambda u, h, f: krum_choice(u, f=f) >= h,
    "krum-unsquared": lambda u, h, f: krum_unsquared_choice(u, f=f) >= h,
    "multi-krum": lambda u, h, f: max(multi_krum_choice(u, f=f)) >= h,
    "bulyan": kept_by_bulyan,
    "trimmed-mean": lambda u, h, f: kept_places(u.numpy(), h, f, len(u) - f - 1),
    "median": lambda u, h, _f: kept_places(u.numpy(), h, (len(u) - 1) // 2, len(u) // 2),
    "mean-around-median": lambda u, h, f: kept_nearest(u.double().numpy(), h, len(u) - f),
    "mda": lambda u, h, f: max(mda_choice(u, f=f)) >= h,
    "smea": lambda u, h, f: max(smea_choice(u, f=f)) >= h,
    "monna": lambda u, h, f: max(monna_choice(u, f=f)) >= h,
}
CLOSED = list(ORACLES)
BY_RUNNING = ["caf", "dnc", "signguard", "zeno", "flshield"]
BOUNDED = ["centered-clipping", "norm-bound-mean"]
OPEN = [rule for rule in RULES if rule not in {*ORACLES, *BY_RUNNING, *BOUNDED, "fltrust"}]


def deployed_rule(rule, honest, copies, f):
    asks = not RULES[rule].needs_updates_alone
    context = (lambda: context_of(honest)) if asks else None
    return DeployedRule(RULES[rule], honest, copies, f, context=context)


def lies(seed, honest=13, d=40):
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(honest, d, generator=generator) + 0.3
    return updates, updates.mean(dim=0), updates.std(dim=0, correction=0)


@pytest.mark.parametrize("rule", CLOSED)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("copies", [1, 2, 3, 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_the_attacker_foresees_is_what_the_rule_does(rule, seed, copies, sign):
    honest, base, deviation = lies(seed)
    step = sign * deviation
    f = 2 if copies < 5 else 3
    ladder = strengths(4.0)
    foreseen = list(DeployedRule(RULES[rule], honest, copies, f).selects(base, step, ladder))
    really = [
        bool(ORACLES[rule](torch.cat([honest, (base + s * step).expand(copies, -1)]), 13, f))
        for s in ladder
    ]
    assert foreseen == really, (seed, copies)


@pytest.mark.parametrize("rule", BY_RUNNING)
@pytest.mark.parametrize("seed", range(4))
def test_a_rule_that_mixes_is_run_and_the_lie_that_carries_it_furthest_is_sent(rule, seed):
    honest, base, step = lies(seed)
    ladder = strengths(30.0)
    found = inflate(deployed_rule(rule, honest, 3, 3), base, -step, maximum=30.0)

    def reach(strength):
        lie = (base - strength * step).expand(3, -1)
        return float((base - called(rule)(torch.cat([honest, lie]), f=3)) @ step)

    reached = {strength: reach(strength) for strength in ladder}
    assert 0 < found < 30
    assert reached[found] == pytest.approx(max(reached.values()), rel=0.1)


@pytest.mark.parametrize("rule", BOUNDED)
@pytest.mark.parametrize("seed", range(4))
def test_against_a_rule_that_shortens_lies_a_strength_is_sent_beyond_which_nothing_is_gained(
    rule, seed
):
    honest, base, step = lies(seed)
    found = inflate(DeployedRule(RULES[rule], honest, 3, 3), base, -step, maximum=30.0)

    def reach(strength):
        lie = (base - strength * step).expand(3, -1)
        return float((base - RULES[rule](torch.cat([honest, lie]), f=3)) @ step)

    assert found > 0
    assert reach(found) == pytest.approx(max(reach(s) for s in strengths(30.0)), rel=1e-3)


@pytest.mark.parametrize("rule", [*CLOSED, *BY_RUNNING])
def test_a_far_lie_is_not_selected_and_a_near_one_is(rule):
    honest, base, step = lies(0)
    near, far = deployed_rule(rule, honest, 3, 3).selects(base, step, [0.0, 1e3])
    assert near
    assert not far


@pytest.mark.parametrize("rule", OPEN)
def test_rules_that_leave_nobody_out_say_so(rule):
    assert rule not in ORACLES
    honest, _, _ = lies(0)
    assert DeployedRule(RULES[rule], honest, 3, 3).leaves_nobody_out
    assert not DeployedRule(RULES["krum"], honest, 3, 3).leaves_nobody_out


def gamma_of(rule, seed, copies=3, sign=1, maximum=30.0):
    honest, base, step = lies(seed)
    return inflate(DeployedRule(rule, honest, copies, 3), base, sign * step, maximum=maximum)


@pytest.mark.parametrize("name", ["krum", "krum-unsquared", "multi-krum", "mean"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_rule_that_tells_nothing_is_searched_as_far_as_one_that_tells(name, seed, sign):
    told = gamma_of(RULES[name], seed, sign=sign)
    secret = gamma_of(custom_rule(RULES[name].function, "mine"), seed, sign=sign)
    assert secret == told


@pytest.mark.parametrize("name", ["trimmed-mean", "median", "mean-around-median", "bulyan"])
@pytest.mark.parametrize("seed", range(3))
def test_of_a_rule_by_coordinates_the_search_goes_on_while_any_of_them_follows(name, seed):
    # By name, a lie passes if half of its coordinates do: the black box gives no less away.
    told = gamma_of(RULES[name], seed)
    secret = gamma_of(custom_rule(RULES[name].function, "mine"), seed)
    assert told <= secret < 30.0


def test_a_rule_whose_result_jumps_is_searched_by_how_far_it_jumps():
    def majority(updates, *, f):
        del f
        return updates.sign().sum(dim=0).sign()

    found = gamma_of(custom_rule(majority, "mine"), 0, sign=-1, copies=5)
    assert 0 < found < 30.0

    def deaf(updates, *, f):
        return updates[: len(updates) - f].mean(dim=0)

    assert gamma_of(custom_rule(deaf, "mine"), 0) == 0.0


def test_a_search_in_a_custom_rule_hands_out_fresh_contexts():
    seen = []

    def forgetful(updates, *, f, context):
        del f
        seen.append(dict(context.state))
        context.state["x"] = torch.ones(1)
        return updates.mean(dim=0)

    honest, base, step = lies(0)
    deployed = DeployedRule(
        custom_rule(forgetful, "mine"),
        honest,
        3,
        3,
        context=lambda: RuleContext(1, torch.zeros(40), 0.1, stream(0)),
    )
    assert inflate(deployed, base, step, maximum=30.0) == 30.0
    assert 0 < len(seen) < 40
    assert all(state == {} for state in seen)


def test_a_value_equal_to_a_kept_one_is_kept():
    # Coordinates that are the same for everybody (a pixel that is always dark) hide nothing.
    honest, base, step = lies(0)
    honest[:, :30], base[:30], step[:30] = 0.0, 0.0, 0.0
    for rule in ("trimmed-mean", "median", "mean-around-median"):
        assert all(DeployedRule(RULES[rule], honest, 1, 3).selects(base, step, [0.0, 1e3])), rule


@pytest.mark.parametrize("rule", ["krum", "krum-unsquared", "multi-krum", "bulyan"])
def test_an_infeasible_rule_selects_nothing(rule):
    honest, base, step = lies(0, honest=2)
    assert (
        list(DeployedRule(RULES[rule], honest, 2, 1).selects(base, step, [0.0, 1.0])) == [False] * 2
    )


@pytest.mark.parametrize("rule", CLOSED)
def test_a_coalition_alone_is_selected_at_any_strength(rule):
    honest, base, step = lies(0)
    assert all(DeployedRule(RULES[rule], honest[:0], 7, 1).selects(base, step, [0.0, 1.0, 1e6]))


@pytest.mark.parametrize("rule", CLOSED)
@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_strength_at_which_the_rule_turns(rule, seed, make_view):
    honest, base, step = lies(seed)
    deployed = DeployedRule(RULES[rule], honest, 3, 3)
    view = make_view(known=1, count=3, deployed=deployed)
    view.__dict__.update(mean=base, deviation=step)
    gamma = ATTACKS["alie"](gamma_max=30.0)(view).gamma
    ladder = strengths(30.0)
    place = ladder.index(gamma)
    really = [
        bool(ORACLES[rule](torch.cat([honest, (base + s * step).expand(3, -1)]), 13, 3))
        for s in ladder[: place + 2]
    ]
    assert all(really[:-1])
    assert not really[-1]
    assert 0 < gamma < 30
