"""Pre-aggregations: by definition, with what liars send, and in front of every rule."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.asking import called, context_of

from holdout.attacks import DeployedRule
from holdout.attacks.search import inflate, strengths
from holdout.errors import InfeasibleError, MisuseError, PluginError, UserError
from holdout.rounds import AdmittedProposals, apply_rule
from holdout.rules import (
    PRE_AGGREGATIONS,
    RULES,
    RuleContext,
    arc,
    bucketing,
    clipping,
    compose,
    find_rule,
    nnm,
)
from holdout.rules.preaggregation import CLIPPING_RADIUS
from holdout.rules.rule import RUNGS
from holdout.seeds import stream

every_rule = pytest.mark.parametrize("rule", RULES)
every_pre = pytest.mark.parametrize("pre", PRE_AGGREGATIONS)


def random_updates(n=15, d=40, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def plain_nnm(updates, f):
    """The definition, row by row."""
    mixed = []
    for i, row in enumerate(updates.double()):
        away = [(float(((other - row) ** 2).sum()), j) for j, other in enumerate(updates.double())]
        away[i] = (-1.0, i)
        nearest = [j for _, j in sorted(away)[: len(updates) - f]]
        mixed.append(updates.double()[nearest].mean(dim=0))
    return torch.stack(mixed).to(updates.dtype)


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 5), st.integers(0, 1000))
def test_mixing_equals_its_definition(n, d, f, seed):
    updates = random_updates(n, d, seed)
    if n <= 2 * f:
        with pytest.raises(InfeasibleError, match=f"nnm needs n > 2f updates; got n={n}, f={f}"):
            nnm(updates, f=f)
        return
    assert torch.allclose(nnm(updates, f=f), plain_nnm(updates, f), atol=1e-6)


def test_mixing_equals_its_definition_over_many_blocks_of_coordinates():
    updates = random_updates(7, 70_000)
    assert torch.allclose(nnm(updates, f=2), plain_nnm(updates, 2), atol=1e-6)


def test_of_rows_equally_near_the_lower_index_is_nearer():
    updates = torch.tensor([[0.0], [1.0], [-1.0], [5.0], [5.0]])
    assert nnm(updates, f=2)[0].item() == pytest.approx(0.0)
    twins = torch.tensor([[0.0], [0.0], [0.0], [9.0], [9.0]])
    assert nnm(twins, f=2)[3].item() == pytest.approx(18 / 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_f_rows_that_are_not_finite_or_huge_spoil_no_other(bad):
    updates = random_updates(9)
    honest = nnm(updates[:6], f=0)
    updates[6:] = bad
    mixed = nnm(updates, f=3)
    assert torch.allclose(mixed[:6], honest, atol=1e-6)
    if not math.isfinite(bad):
        assert not mixed[6:].isfinite().all(dim=1).any()


def test_more_bad_rows_than_f_spoil_those_that_must_take_them_in():
    updates = random_updates(5)
    updates[3:] = math.nan
    assert not nnm(updates, f=1).isfinite().all(dim=1).any()


@given(st.integers(0, 1000), st.floats(0.1, 20))
def test_clipping_shortens_long_rows_and_leaves_short_ones_alone(seed, radius):
    updates = random_updates(8, 12, seed)
    clipped = clipping(updates, f=2, radius=radius)
    for before, after in zip(updates, clipped, strict=True):
        if before.double().norm() <= radius:
            assert torch.equal(before, after)
        else:
            assert after.double().norm().item() == pytest.approx(radius, rel=1e-6)
            assert torch.allclose(after / after.norm(), before / before.norm(), atol=1e-6)


def test_clipping_scales_huge_rows_and_hands_on_what_is_not_finite():
    updates = torch.tensor([[3e38, 3e38], [math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]])
    clipped = clipping(updates, f=0)
    assert clipped[0].norm().item() == pytest.approx(CLIPPING_RADIUS)
    assert clipped[1:3].isfinite().all(dim=1).tolist() == [False, False]
    assert torch.equal(clipped[3], updates[3])


def plain_arc(updates, f):
    """The definition, row by row."""
    n = len(updates)
    norms = [math.sqrt(math.fsum(x * x for x in row)) for row in updates.double().tolist()]
    longest = math.floor(Fraction(2 * f, n) * (n - f))
    radius = sorted(norms, reverse=True)[longest]
    rows = [
        row.double() * (radius / norm if norm > radius else 1.0)
        for row, norm in zip(updates, norms, strict=True)
    ]
    return torch.stack(rows).to(updates.dtype)


@given(st.integers(1, 15), st.integers(1, 30), st.integers(0, 7), st.integers(0, 1000))
def test_adaptive_clipping_equals_its_definition(n, d, f, seed):
    updates = random_updates(n, d, seed) * torch.arange(1, n + 1)[:, None]
    if n <= 2 * f:
        with pytest.raises(InfeasibleError, match=f"arc needs n > 2f updates; got n={n}, f={f}"):
            arc(updates, f=f)
        return
    assert torch.allclose(arc(updates, f=f), plain_arc(updates, f), rtol=1e-6)


def test_adaptive_clipping_equals_its_definition_over_many_blocks_of_coordinates():
    updates = random_updates(7, 70_000) * torch.arange(1, 8)[:, None]
    assert torch.allclose(arc(updates, f=2), plain_arc(updates, 2), rtol=1e-5)


@pytest.mark.parametrize(("n", "f", "clipped"), [(30, 9, 12), (10, 1, 1), (15, 3, 4), (6, 0, 0)])
def test_adaptive_clipping_clips_as_many_as_the_paper_says(n, f, clipped):
    updates = torch.arange(1.0, n + 1)[:, None].repeat(1, 3)
    result = arc(updates, f=f)
    assert int((result != updates).any(dim=1).sum()) == clipped
    assert torch.allclose(result[n - clipped :], updates[n - clipped - 1].expand(clipped, -1))


def test_adaptive_clipping_counts_rows_that_are_not_finite_among_the_longest():
    updates = random_updates(9, 4) + 3
    updates[6], updates[7, 1] = math.nan, math.inf
    result = arc(updates, f=3)
    rest = [i for i in range(9) if i not in (6, 7)]
    assert not result[6:8].isfinite().all(dim=1).any()
    # Two of the four that are clipped are those.
    assert int((result[rest] != updates[rest]).any(dim=1).sum()) == 2
    assert result[rest].norm(dim=1).max() <= updates[rest].norm(dim=1).sort().values[-3] + 1e-5


def test_adaptive_clipping_scales_huge_rows_to_length():
    updates = torch.tensor([[3e38, 3e38], [3.0, 4.0], [0.0, 1.0], [0.0, 2.0]])
    assert arc(updates, f=1)[0].norm().item() == pytest.approx(5.0)
    nobody = torch.tensor([[9.0, 9.0], [0.0, 0.0], [0.0, 0.0]])
    assert arc(nobody, f=1).tolist() == [[0.0, 0.0]] * 3


def context(seed=0, round_number=1):
    return RuleContext(round_number, torch.zeros(1), 0.1, stream(seed, "rule", round_number))


@given(st.integers(1, 17), st.integers(1, 6), st.integers(0, 1000))
def test_buckets_are_the_means_of_groups_that_take_everybody_once(n, size, seed):
    updates = random_updates(n, 5, seed, dtype=torch.float64)
    means = bucketing(updates, f=0, context=context(seed), size=size)
    order = context(seed).source.sample(range(n), n)
    groups = [order[i : i + size] for i in range(0, n, size)]
    assert sorted(order) == list(range(n))
    assert len(means) == math.ceil(n / size)
    for group, mean in zip(groups, means, strict=True):
        assert torch.allclose(mean, sum(updates[i] for i in group) / len(group))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_long_buckets_are_the_sums_of_shares_to_the_bit(size):
    updates = random_updates(11, 70_001)
    updates[2, 5], updates[3] = math.nan, 3e38
    order = context().source.sample(range(11), 11)
    for i, mean in enumerate(bucketing(updates, f=1, context=context(), size=size)):
        group = order[i * size : (i + 1) * size]
        expected = sum(updates[j] * np.float32(1 / len(group)) for j in group)
        assert torch.equal(mean.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_buckets_are_drawn_from_the_context_and_without_one_are_always_the_same():
    updates = random_updates(20, 3)
    drawn = [bucketing(updates, f=0, context=context(round_number=t)) for t in (1, 2, 1)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(bucketing(updates, f=0), bucketing(updates, f=0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_spoils_its_own_bucket_alone(bad):
    updates = random_updates(12, 3)
    updates[4, 1] = bad
    spoilt = ~bucketing(updates, f=1, size=3).isfinite().all(dim=1)
    assert int(spoilt.sum()) == 1


def test_two_huge_rows_in_a_bucket_do_not_overflow():
    updates = torch.full((4, 3), 3e38)
    assert torch.allclose(bucketing(updates, f=1), updates[:2])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("f", range(4))
def test_a_rule_behind_buckets_must_withstand_f_of_fewer_rows(size, f):
    composed = compose(PRE_AGGREGATIONS["bucketing"].with_parameters(size=size), "krum")
    for n in range(1, 60):
        feasible = math.ceil(n / size) > 2 * f + 2
        assert composed.is_feasible(n=n, f=f) == feasible
        if feasible:
            assert composed(random_updates(n, 2), f=f).isfinite().all()
        else:
            rows = math.ceil(n / size)
            message = f"krum needs n > 2f + 2 updates; got n={rows}, f={f}"
            if rows < n:
                message += f": bucketing makes {rows} rows of {n} updates"
            with pytest.raises(InfeasibleError) as caught:
                composed(random_updates(n, 2), f=f)
            assert str(caught.value) == message


@pytest.mark.parametrize("size", [0, -1])
def test_a_bucket_of_nobody_is_refused(size):
    with pytest.raises(UserError, match=f"bucketing needs size >= 1; got {size}"):
        bucketing(random_updates(), f=1, size=size)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_radius_is_refused(radius):
    with pytest.raises(UserError, match="clipping needs radius > 0; got"):
        clipping(random_updates(), f=1, radius=radius)


@every_pre
def test_a_pre_aggregation_makes_no_second_copy_of_the_updates(pre):
    updates = random_updates(30, 200_000)
    size = updates.numel() * 4
    PRE_AGGREGATIONS[pre](updates[:, :100], f=3)
    tracemalloc.start()
    result = PRE_AGGREGATIONS[pre](updates, f=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # numpy tells of what it allocates; blocks of coordinates are a tenth of these updates.
    assert peak <= result.numel() * 4 + 0.9 * size


@every_pre
def test_what_no_caller_should_send_to_a_pre_aggregation_is_misuse(pre):
    for updates, f in ((torch.ones(4), 0), (torch.ones(4, 0), 0), (torch.ones(4, 2), -1)):
        with pytest.raises(MisuseError, match=f"{pre} needs"):
            PRE_AGGREGATIONS[pre](updates, f=f)


@every_pre
def test_a_pre_aggregation_modifies_nothing_and_keeps_shape_and_dtype(pre):
    entry = PRE_AGGREGATIONS[pre]
    for dtype in (torch.float32, torch.float64):
        updates = random_updates(dtype=dtype)
        before = updates.clone()
        result = entry(updates, f=3)
        assert torch.equal(updates, before)
        assert (result.shape, result.dtype) == ((entry.leaves(15), 40), dtype)
        assert result.untyped_storage().data_ptr() != updates.untyped_storage().data_ptr()
        assert entry.leaves(15) == (8 if pre == "bucketing" else 15)


@every_pre
@every_rule
def test_a_composed_rule_is_the_rule_over_what_the_pre_aggregation_gives(pre, rule):
    # Of 31 updates 16 buckets are left, and Bulyan needs 15 with three liars.
    updates = 3 * random_updates(n=31 if pre == "bucketing" else 15)
    composed = find_rule(f"{pre}+{rule}")
    # A rule that asks has a context, and what is drawn at random is drawn from it.
    context = None if RULES[rule].needs_updates_alone else context_of(updates)
    wanted = called(rule)(PRE_AGGREGATIONS[pre](updates, f=3, context=context), f=3)
    assert torch.equal(called(composed)(updates, f=3), wanted)
    assert torch.equal(called(compose(pre, rule))(updates, f=3), wanted)
    entry = compose(PRE_AGGREGATIONS[pre], RULES[rule])
    assert torch.equal(called(entry)(updates, f=3), wanted)
    assert composed.label == f"{PRE_AGGREGATIONS[pre].label} + {RULES[rule].label}"


def test_several_pre_aggregations_are_taken_from_left_to_right():
    updates = 3 * random_updates()
    wanted = RULES["median"](nnm(clipping(updates, f=3), f=3), f=3)
    assert torch.equal(find_rule("clipping+nnm+median")(updates, f=3), wanted)
    assert torch.equal(compose("clipping", compose("nnm", "median"))(updates, f=3), wanted)


def test_custom_functions_compose_like_the_built_in_ones():
    def halve(updates, *, f):
        del f
        return updates / 2

    def first(updates, *, f):
        del f
        return updates[0]

    updates = random_updates()
    assert torch.equal(compose(halve, first)(updates, f=1), updates[0] / 2)
    assert compose(halve, first).label == "halve + first"
    assert torch.equal(compose(halve, "mean")(updates, f=1), (updates / 2).mean(dim=0))


@pytest.mark.parametrize(
    "name", ["", "+", "krum+", "+krum", "nnm", "nnm+", "krum+nnm", "nnm++krum"]
)
def test_what_is_no_rule_is_not_found(name):
    assert find_rule(name) is None


def test_a_wrong_name_is_told_with_those_there_are():
    with pytest.raises(UserError, match="there is no pre-aggregation 'nmn'; there are nnm, clip"):
        compose("nmn", "krum")
    with pytest.raises(UserError, match="there is no rule 'crum'; there are mean, median"):
        compose("nnm", "crum")


@every_rule
def test_only_rules_behind_what_keeps_rows_name_proposals(rule):
    assert find_rule(f"clipping+{rule}").names_proposals == RULES[rule].names_proposals
    assert not find_rule(f"nnm+{rule}").names_proposals
    assert not find_rule(f"nnm+clipping+{rule}").names_proposals


@every_pre
@every_rule
@pytest.mark.parametrize("f", range(4))
def test_a_composed_rule_is_feasible_exactly_if_it_can_be_run(pre, rule, f):
    composed = find_rule(f"{pre}+{rule}")
    for n in range(1, 4 * f + 5):
        feasible = True
        try:
            called(composed)(random_updates(n=n), f=f)
        except InfeasibleError:
            feasible = False
        assert composed.is_feasible(n=n, f=f) == feasible, n


@every_pre
@pytest.mark.parametrize("rule", ["mean", "krum", "trimmed-mean", "geometric-median"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_attacker_climbs_while_the_composed_rule_follows(pre, rule, sign):
    # With the three lies there are 10 buckets, and Krum needs 9.
    honest = random_updates(17 if pre == "bucketing" else 13, 40, seed=3) + 0.3
    base, step = honest.mean(dim=0), sign * honest.std(dim=0, correction=0)
    composed = find_rule(f"{pre}+{rule}")
    gamma = inflate(DeployedRule(composed, honest, 3, 3), base, step, maximum=30.0)

    def reached(s):
        updates = torch.cat([honest, (base + s * step).expand(3, -1)])
        return float(composed(updates, f=3).double() @ step.double())

    # No strength that was tried first, and none near the one that was found, goes further.
    ladder = strengths(30.0)
    place = ladder.index(gamma)
    others = {*ladder[::RUNGS], ladder[-1], *ladder[max(place - 1, 0) : place + 2]}
    assert reached(gamma) == max(reached(s) for s in others)


@pytest.mark.parametrize("rule", ["nnm+krum", "nnm+median", "nnm+trimmed-mean", "clipping+mean"])
@pytest.mark.parametrize("copies", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_searched_strength_does_at_least_the_harm_of_a_fixed_one(rule, copies, seed):
    """With more liars than f a huge lie gets through, though a smaller one may not."""
    honest = random_updates(12, 30, seed=seed) + 0.3
    base, step = honest.mean(dim=0), honest.std(dim=0, correction=0)
    composed = find_rule(rule)
    gamma = inflate(DeployedRule(composed, honest, copies, 4), base, step, maximum=30.0)

    def harm(s):
        updates = torch.cat([honest, (base + s * step).expand(copies, -1)])
        return float(composed(updates, f=4).double() @ step.double())

    assert harm(gamma) >= max(harm(s) for s in (0.0, 30.0))


def test_mixing_leaves_a_majority_of_liars_any_strength():
    honest = random_updates(6, 40, seed=3) + 0.3
    base, step = honest.mean(dim=0), honest.std(dim=0, correction=0)
    crowd = DeployedRule(find_rule("nnm+krum"), honest, 8, 4)
    assert inflate(crowd, base, step, maximum=30.0) == 30.0
    few = DeployedRule(find_rule("nnm+krum"), random_updates(13, 40, seed=3) + 0.3, 3, 3)
    assert inflate(few, base, step, maximum=30.0) < 30.0


def test_a_rule_that_takes_a_context_is_rehearsed_like_one_that_does_not():
    def plain(updates, *, f):
        return RULES["median"].function(updates, f=f)

    def with_context(updates, *, f, context):
        context.state["seen"] = updates[:1].clone()
        return RULES["median"].function(updates, f=f)

    honest = random_updates(13, 40, seed=3) + 0.3
    base, step = honest.mean(dim=0), honest.std(dim=0, correction=0)
    contexts = []

    def make():
        contexts.append(RuleContext(1, torch.zeros(40), 0.1, stream(0)))
        return contexts[-1]

    one, two = (
        inflate(
            DeployedRule(compose("nnm", rule), honest, 3, 3, context=make),
            base,
            step,
            maximum=30.0,
        )
        for rule in (plain, with_context)
    )
    assert one == two
    assert contexts


def bulyan_of_mine(updates, *, f):
    """A custom rule: nobody knows beforehand how many updates it needs."""
    return RULES["bulyan"].function(updates, f=f)


def test_an_attacker_who_finds_a_composed_rule_infeasible_passes_nothing():
    honest = random_updates(5, 4)
    deployed = DeployedRule(compose("nnm", bulyan_of_mine), honest, 2, 2)
    assert not any(deployed.selects(honest[0], honest[1], [0.0, 0.1]))


def test_a_composed_rule_that_raises_while_it_is_rehearsed_is_named():
    def broken(updates, *, f):
        raise ValueError(len(updates), f)

    honest = random_updates(5, 4)
    deployed = DeployedRule(compose("nnm", broken), honest, 2, 2)
    with pytest.raises(PluginError, match=r"rule 'NNM \+ broken' raised ValueError: \(7, 2\)"):
        list(deployed.selects(honest[0], honest[1], [0.0]))


@pytest.mark.parametrize("rule", ["median", "krum"])
def test_a_strength_that_is_asked_alone_is_judged_as_on_the_way_up(rule):
    honest = random_updates(13, 40, seed=3) + 0.3
    base, step = honest.mean(dim=0), honest.std(dim=0, correction=0)
    deployed = DeployedRule(find_rule(f"nnm+{rule}"), honest, 3, 3)
    gamma = inflate(deployed, base, step, maximum=30.0)
    assert list(deployed.selects(base, step, [gamma])) == [True]
    assert list(deployed.selects(base, step, [30.0])) == [False]
    assert list(deployed.selects(base, step, [30.0, 0.0])) == [False, True]


def test_parts_of_a_composed_rule_keep_states_of_their_own():
    def count(updates, *, f, context):
        del f
        context.state["rounds"] = context.state.get("rounds", torch.zeros(1)) + 1
        return updates + context.state["rounds"]

    def last(updates, *, f, context):
        return count(updates, f=f, context=context)[0]

    rule = compose(count, compose(count, last))
    context = RuleContext(1, torch.zeros(1), 0.1, stream(0))
    updates = torch.zeros(2, 1)
    assert rule(updates, f=0, context=context).tolist() == [3.0]
    assert rule(updates, f=0, context=context).tolist() == [6.0]
    admitted = AdmittedProposals({0: updates[0], 1: updates[1]}, {})
    assert apply_rule(admitted, rule, f=0, context=context).update.tolist() == [9.0]
    assert len(context.state) == 3


def test_a_composed_name_composes_further():
    updates = random_updates()
    named = compose("clipping", "nnm+median")
    assert named.label == "clipping + NNM + median"
    assert torch.equal(named(updates, f=3), find_rule("clipping+nnm+median")(updates, f=3))
