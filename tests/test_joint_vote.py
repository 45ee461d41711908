"""The joint vote: a direction of all voters judges, a screen weighs, and neither decides alone."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdout.cosines import Vectors, cosines
from holdout.joint_vote import (
    GENTLE,
    GROWTH,
    LEAST,
    NEGLIGIBLE,
    JointMemory,
    Products,
    decide_jointly,
    judge,
)
from holdout.voting import RATE, Terms

THIRD = Fraction(33, 100)
TERMS = Terms.joint(THIRD)
D = 40


def crowd(seed, honest, lies, lie, *, signal=1.0, noise=1.0):
    """Honest vectors around one direction, and copies of a lie made from that direction."""
    generator = torch.Generator().manual_seed(seed)
    true = signal * torch.randn(D, generator=generator)
    vectors = [true + noise * torch.randn(D, generator=generator) for _ in range(honest)]
    return [*vectors, *[lie(true)] * lies], true


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


# A deliberately plain version: d x d covariances, loops, one vote at a time.


def plain_screen(rows, f):
    """The gentle CAF, by the covariance itself."""
    confidence = np.ones(len(rows))
    best, least = None, math.inf
    first = True
    while first or confidence.sum() > len(rows) - 2 * f:
        first = False
        p = confidence / confidence.sum()
        centred = rows - p @ rows
        covariance = sum(w * np.outer(x, x) for w, x in zip(p, centred, strict=True))
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < least:
            best, least = p, values[-1]
        squares = (centred @ vectors[:, -1]) ** 2
        if squares.max() < 1e-12:
            break
        confidence = confidence * (1 - GENTLE * squares / squares.max())
    return best


def plain_vote(proposals, messages, terms, memory):
    """What `decide_jointly` computes, on the vectors themselves."""
    p = np.stack([v.double().numpy() for v in proposals])
    v = np.stack([m.double().numpy() for m in messages])
    n, m = len(p), len(v)
    every = sorted([*np.linalg.norm(p, axis=1), *np.linalg.norm(v, axis=1)])
    start = every[(n + m + 1) // 2 - 1]

    def bound(rows, previous):
        lengths = np.linalg.norm(rows, axis=1)
        middle = sorted(lengths)[(len(rows) + 1) // 2 - 1]
        before = previous or start
        radius = min(max(middle, before / RATE), before * GROWTH)
        return rows * np.minimum(1, radius / lengths)[:, None], radius

    p, radius = bound(p, memory.radius)
    v, message_radius = bound(v, memory.message_radius)
    f = n - terms.approve_count(n)
    together = plain_screen(np.concatenate([p, v]), n + m - terms.approve_count(n + m))
    screened, judges = together[:n] / together[:n].sum(), together[n:] / together[n:].sum()
    h = judges @ v
    h = h / np.linalg.norm(h)
    if memory.direction is not None:
        share = min(terms.memory, 1 - 1 / (memory.rounds + 1))
        h = share * memory.direction.double().numpy() + (1 - share) * h
    scores = p @ h
    usual = sorted([*(scores / np.linalg.norm(p, axis=1)), *((v @ h) / np.linalg.norm(v, axis=1))])
    usual = usual[(n + m) // 2]
    if usual > 0:
        factors = (terms.softness + scores / np.linalg.norm(p, axis=1)) / (terms.softness + usual)
        screened = screened * np.minimum(np.maximum(factors, LEAST), 1)
        screened /= screened.sum()
    else:
        scores = 0 * scores
    lowest = sorted(range(n), key=lambda j: (scores[j], j))[:f]
    dropped = [j for j in lowest if scores[j] < 0]
    for j in sorted(range(n), key=lambda j: (screened[j], j)):
        if len(dropped) < f and j not in dropped and screened[j] < NEGLIGIBLE / n:
            dropped.append(j)
    weights = np.array([0 if j in dropped else max(screened[j], LEAST / n) for j in range(n)])
    weights /= weights.sum()
    return weights, weights @ p, h, radius, message_radius


LIES = {
    "reversed": lambda true: -true,
    "aside": lambda true: true.flip(0) * 3,
    "huge": lambda true: -1e30 * true,
    "tiny": lambda true: 1e-6 * true,
    "ahead": lambda true: 20 * true,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_vote_equals_its_plain_version_round_after_round(lie, seed):
    memory = JointMemory()
    for number in range(3):
        proposals, _ = crowd(100 * seed + number, 9, 3, LIES[lie])
        messages, _ = crowd(100 * seed + number, 8, 3, LIES[lie], noise=0.7)
        weights, update, direction, radius, message_radius = plain_vote(
            proposals, messages, TERMS, memory
        )
        found = decide_jointly(proposals, messages, terms=TERMS, memory=memory)
        assert found.weights == pytest.approx(weights, abs=1e-4)
        assert found.update.numpy() == pytest.approx(update, abs=2e-3 * radius)
        assert found.memory.direction.numpy() == pytest.approx(direction, abs=1e-4)
        assert found.memory.radius == pytest.approx(radius)
        assert found.memory.message_radius == pytest.approx(message_radius)
        memory = found.memory


@pytest.mark.parametrize("lie", ["reversed", "aside", "huge"])
def test_a_third_of_liars_does_not_turn_the_step(lie):
    for seed in range(5):
        proposals, true = crowd(seed, 20, 10, LIES[lie])
        messages, _ = crowd(seed, 20, 10, LIES[lie])
        found = decide_jointly(proposals, messages, terms=TERMS, memory=JointMemory())
        assert cosine(found.update, true) > 0.9


@pytest.mark.parametrize("liars", [18, 25])
def test_a_draw_of_mostly_lying_voters_does_not_leave_the_lies_alone(liars):
    proposals, true = crowd(0, 20, 10, LIES["reversed"])
    memory = JointMemory()
    honest, _ = crowd(0, 20, 0, LIES["reversed"])
    for _ in range(8):  # Honest rounds first, so that there is a direction to remember.
        memory = decide_jointly(honest, honest, terms=TERMS, memory=memory).memory
    lying = [-true] * liars + proposals[: 30 - liars]
    found = decide_jointly(proposals, lying, terms=TERMS, memory=memory)
    assert sum(weight > 0 for weight in found.weights[:20]) > 0
    # With 25, most of both draws together lie: no screen knows better. Of 60 drawn from 100 workers
    # of which 33 lie, 30 liars come up in one round of 100,000.
    if 10 + liars < 30:
        assert cosine(found.update, true) > 0


@pytest.mark.parametrize("liars", [6, 8])
def test_a_draw_of_mostly_lying_proposers_is_outvoted_by_both_draws_together(liars):
    proposals, true = crowd(1, 12 - liars, liars, LIES["aside"])
    messages, _ = crowd(1, 12 - 2, 2, LIES["aside"])
    found = decide_jointly(proposals, messages, terms=TERMS, memory=JointMemory())
    assert sum(found.weights[12 - liars :]) < 0.2
    assert cosine(found.update, true) > 0.8


@given(
    st.integers(1, 14),
    st.integers(0, 14),
    st.integers(0, 6),
    st.integers(0, 2**31),
    st.sampled_from([Fraction(0), Fraction(1, 4), THIRD, Fraction(49, 100)]),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_sent_at_most_as_many_are_out_as_the_paper_leaves_out(n, m, lies, seed, f):
    terms = Terms.joint(f)
    proposals, true = crowd(seed, n, lies, LIES["reversed"])
    messages = [-true] * m
    found = decide_jointly(proposals, messages, terms=terms, memory=JointMemory())
    total = n + lies
    out = sum(weight == 0 for weight in found.weights)
    assert out <= total - terms.approve_count(total)
    assert sum(found.weights) == pytest.approx(1)
    assert bool(found.update.isfinite().all())


@given(st.integers(0, 2**31), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_arrival_changes_nothing(seed, random):
    proposals, _ = crowd(seed, 8, 3, LIES["aside"])
    messages, _ = crowd(seed, 8, 2, LIES["reversed"], noise=0.5)
    first = decide_jointly(proposals, messages, terms=TERMS, memory=JointMemory())
    places = list(range(len(proposals)))
    random.shuffle(places)
    voters = random.sample(messages, len(messages))
    again = decide_jointly(
        [proposals[i] for i in places], voters, terms=TERMS, memory=JointMemory()
    )
    assert [again.weights[places.index(i)] for i in range(len(places))] == pytest.approx(
        first.weights, abs=1e-6
    )
    assert torch.allclose(again.update, first.update, atol=1e-4)


def test_without_liars_and_told_so_it_is_close_to_the_mean():
    """With f = 0 nobody is out and all weigh the same: it is the mean of the bounded proposals."""
    terms = Terms.joint(Fraction(0))
    for seed in range(10):
        proposals, _ = crowd(seed, 30, 0, LIES["reversed"], noise=2.0)
        messages, _ = crowd(seed, 30, 0, LIES["reversed"])
        found = decide_jointly(proposals, messages, terms=terms, memory=JointMemory())
        assert found.weights == pytest.approx([1 / 30] * 30)
        # The bound shortens the longer half to the median.
        lengths = [float(p.norm()) for p in proposals]
        radius = found.memory.radius
        bounded = [
            p * min(1, radius / length) for p, length in zip(proposals, lengths, strict=True)
        ]
        mean = torch.stack(bounded).mean(dim=0)
        assert torch.allclose(found.update, mean, atol=1e-4)


def test_voters_who_all_speak_against_the_proposals_take_away_n_minus_k_and_no_more():
    proposals, true = crowd(3, 6, 0, LIES["reversed"], noise=0.1)
    found = decide_jointly(proposals, [-true] * 6, terms=TERMS, memory=JointMemory())
    assert sum(weight > 0 for weight in found.weights) == TERMS.approve_count(6)
    assert cosine(found.update, true) > 0.9


def test_one_bad_draw_of_voters_moves_the_direction_by_its_share_alone():
    messages, true = crowd(0, 12, 0, LIES["reversed"], noise=0.2)
    memory = JointMemory()
    for _ in range(10):
        memory = decide_jointly(messages, messages, terms=TERMS, memory=memory).memory
    bad = decide_jointly(messages, [-1e6 * true] * 12, terms=TERMS, memory=memory).memory
    moved = bad.direction - TERMS.memory * memory.direction
    assert float(moved.norm()) == pytest.approx(1 - TERMS.memory, rel=1e-3)
    assert cosine(bad.direction, true) > 0.9


def test_messages_that_cancel_each_other_have_no_direction():
    """What is left of them is rounding: scaled up it would speak louder than any honest draw."""
    generator = torch.Generator().manual_seed(2)
    g = torch.randn(30_000, generator=generator)
    noise = torch.randn(30_000, generator=generator)
    for power in range(2, 9):
        opposed = -g + 10.0**-power * noise
        found = decide_jointly([g, g], [g, opposed], terms=TERMS, memory=JointMemory())
        assert float(found.memory.direction.norm()) <= 1.01


def test_the_first_radius_is_not_set_by_one_draw_alone():
    """Fifteen of thirty proposers that send next to nothing would hold learning up for long."""
    honest, true = crowd(0, 15, 0, LIES["reversed"])
    voters, _ = crowd(1, 20, 10, LIES["tiny"])
    found = decide_jointly(
        [*honest, *[1e-9 * true] * 15], voters, terms=TERMS, memory=JointMemory()
    )
    assert found.memory.radius > float(true.norm()) / 2


def test_radii_grow_slowly_and_shrink_fast():
    messages, _ = crowd(0, 9, 0, LIES["reversed"])
    memory = decide_jointly(messages, messages, terms=TERMS, memory=JointMemory()).memory
    longer = decide_jointly([100 * m for m in messages], messages, terms=TERMS, memory=memory)
    shorter = decide_jointly([m / 100 for m in messages], messages, terms=TERMS, memory=memory)
    assert longer.memory.radius == pytest.approx(GROWTH * memory.radius)
    assert shorter.memory.radius == pytest.approx(memory.radius / RATE)


def test_an_update_may_be_as_many_radii_long_as_its_reach_says():
    short, long = torch.tensor([1.0, 0.0]), torch.tensor([9.0, 0.0])
    proposals = [short, short, long]
    for reach in (1.0, 1.5, 3.0):
        terms = replace(TERMS, reach=reach, screen=False)
        found = decide_jointly(proposals, [short], terms=terms, memory=JointMemory())
        assert float(found.update[0]) == pytest.approx((2 + reach) / 3)
        assert found.memory.radius == pytest.approx(1.0)


def test_with_a_gap_only_what_is_clearly_below_the_median_may_be_out():
    """The cosines with the direction are 0.1, 0.1, 0.1 and -0.1."""
    east = torch.tensor([1.0, 0.0])
    near = [torch.tensor([0.1, 0.995])] * 3
    proposals = [*near, torch.tensor([-0.1, 0.995])]

    def out(gap, margin=0.0):
        terms = replace(Terms.joint(Fraction(1, 4)), screen=False, softness=None)
        terms = replace(terms, gap=gap, margin=margin)
        found = decide_jointly(proposals, [east], terms=terms, memory=JointMemory())
        return [place for place, weight in enumerate(found.weights) if not weight]

    assert out(0.0) == [3]
    assert out(0.15) == out(0.15, margin=0.3) == [3]
    assert out(0.25) == out(0.25, margin=0.3) == []


def test_without_messages_the_memory_judges():
    proposals, true = crowd(0, 8, 3, LIES["reversed"])
    memory = JointMemory(rounds=3, radius=6.0, message_radius=6.0, direction=true / true.norm())
    found = decide_jointly(proposals, [], terms=TERMS, memory=memory)
    assert cosine(found.update, true) > 0.9
    assert found.memory.rounds == 3
    assert found.memory.direction is memory.direction


def test_with_neither_messages_nor_memory_the_screen_decides_alone():
    proposals, true = crowd(0, 9, 3, LIES["aside"])
    found = decide_jointly(proposals, [], terms=TERMS, memory=JointMemory())
    assert cosine(found.update, true) > 0.8
    assert found.memory.direction is None


@pytest.mark.parametrize("vector", [torch.zeros(D), torch.full((D,), 3e38), -torch.ones(D) * 1e-40])
def test_zero_and_extreme_vectors_are_ordinary(vector):
    proposals, true = crowd(0, 9, 0, LIES["aside"])
    messages, _ = crowd(1, 9, 0, LIES["aside"])
    found = decide_jointly(
        [*proposals, *[vector] * 3], [*messages, *[vector] * 3], terms=TERMS, memory=JointMemory()
    )
    assert bool(found.update.isfinite().all())
    assert cosine(found.update, true) > 0.8


def test_many_votes_at_once_are_judged_like_one_at_a_time():
    memory = JointMemory(rounds=4, radius=5.0, message_radius=4.0, direction=torch.ones(D) / D)
    votes = [
        (crowd(seed, 7, 3, LIES["aside"])[0], crowd(seed % 2, 6, 2, LIES["reversed"])[0])
        for seed in range(6)
    ]
    alone, lengths, tables = [], [], []
    for proposals, messages in votes:
        vectors = Vectors.of([*proposals, *messages, memory.direction])
        lengths.append(vectors.lengths)
        tables.append(cosines(vectors))
        one = Products(lengths[-1], tables[-1], proposals=10, messages=8)
        alone.append(judge(one, terms=TERMS, memory=memory))
    many = Products(np.stack(lengths), np.stack(tables), proposals=10, messages=8)
    together = judge(many, terms=TERMS, memory=memory)
    for place, one in enumerate(alone):
        for name in ("weights", "judges", "step", "direction", "radius", "message_radius"):
            found = getattr(together.one(place), name)
            assert found == pytest.approx(getattr(one, name), abs=1e-9)
