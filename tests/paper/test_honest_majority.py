"""Section "Honest Majority": N(T, delta), Lemma 2, and the exact odds behind its bound."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from holdout.voting import approve_count, draw_byzantine, draw_committee, has_honest_majority
from holdout.voting.odds import (
    any_of,
    chernoff_size,
    exact_size,
    hypergeometric_tail,
    majority_failure,
    overflow,
)

THIRD = Fraction(33, 100)
ROUNDS = 8000


def chernoff(drawn, f):
    """The proof's bound on P[X >= N/2]."""
    return math.exp(-float((1 - 2 * f) ** 2 / (1 + 2 * f)) * drawn / 2)


def exact_tail(workers, byzantine, drawn, at_least):
    """P[X >= at_least] by counting draws, without any rounding."""
    good = sum(
        math.comb(byzantine, x) * math.comb(workers - byzantine, drawn - x)
        for x in range(at_least, drawn + 1)
    )
    return Fraction(good, math.comb(workers, drawn))


# The draws themselves.


@pytest.fixture(scope="module", params=[(100, 33, 30, 30, True), (40, 13, 12, 9, False)])
def drawn(request):
    """(workers, byzantine, Byzantines among the proposers of each round, those among the voters)"""
    workers, count, proposers, voters, disjoint = request.param
    byzantine = draw_byzantine(workers, count, seed=5)
    committees = [
        draw_committee(
            workers=workers,
            proposers=proposers,
            voters=voters,
            disjoint=disjoint,
            seed=5,
            round_number=t,
        )
        for t in range(1, ROUNDS + 1)
    ]
    held = [
        np.array([len(byzantine.intersection(group)) for group in groups])
        for groups in ([c.proposers for c in committees], [c.voters for c in committees])
    ]
    return workers, count, list(zip((proposers, voters), held, strict=True))


def within_error_bars(hits, probability, trials=ROUNDS, deviations=3.5):
    return abs(hits - trials * probability) <= deviations * math.sqrt(
        trials * probability * (1 - probability)
    )


def test_byzantine_majorities_are_drawn_as_often_as_the_exact_tail_says(drawn):
    workers, byzantine, groups = drawn
    for size, held in groups:
        failure = majority_failure(workers=workers, byzantine=byzantine, drawn=size)
        hits = int((2 * held >= size).sum())
        assert within_error_bars(hits, failure)
        # The same check tells the tail from its neighbours: it can fail.
        shifted = hypergeometric_tail(
            workers=workers, byzantine=byzantine, drawn=size, at_least=(size + 1) // 2 - 1
        )
        assert not within_error_bars(hits, shifted)


def test_overflows_are_drawn_as_often_as_the_exact_tail_says(drawn):
    workers, byzantine, groups = drawn
    for size, held in groups:
        chance = overflow(workers=workers, byzantine=byzantine, drawn=size, f=THIRD)
        assert within_error_bars(int((held > size - approve_count(size, THIRD)).sum()), chance)


def test_byzantines_in_a_draw_follow_the_hypergeometric_distribution(drawn):
    workers, byzantine, groups = drawn
    for size, held in groups:
        law = stats.hypergeom(workers, byzantine, size)
        # Values so rare that a chi-squared test cannot use them are counted together.
        usual = [x for x in range(size + 1) if ROUNDS * law.pmf(x) >= 5]
        expected = [ROUNDS * law.pmf(x) for x in usual]
        observed = [int((held == x).sum()) for x in usual]
        expected.append(ROUNDS - sum(expected))
        observed.append(ROUNDS - sum(observed))
        assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_byzantine_workers_are_drawn_uniformly():
    seeds, workers, count = 2000, 20, 6
    chosen = np.zeros(workers)
    for seed in range(seeds):
        byzantine = draw_byzantine(workers, count, seed)
        assert len(byzantine) == count
        chosen[list(byzantine)] += 1
    assert all(within_error_bars(hits, count / workers, seeds, 4) for hits in chosen)


def test_an_honest_majority_is_exactly_the_event_that_the_lemma_counts():
    byzantine = frozenset(range(10))
    for size in range(1, 9):
        for liars in range(size + 1):
            group = (*range(liars), *range(10, 10 + size - liars))
            assert has_honest_majority(group, byzantine) == (liars < Fraction(size, 2))


# The exact tail.


@given(data=st.data(), workers=st.integers(1, 40))
def test_the_tail_is_the_share_of_draws_counted_one_by_one(data, workers):
    byzantine = data.draw(st.integers(0, workers))
    drawn = data.draw(st.integers(0, workers))
    at_least = data.draw(st.integers(0, drawn + 1))
    tail = hypergeometric_tail(workers=workers, byzantine=byzantine, drawn=drawn, at_least=at_least)
    assert tail == pytest.approx(
        float(exact_tail(workers, byzantine, drawn, at_least)), rel=1e-13, abs=0
    )


@given(data=st.data(), workers=st.integers(2, 3000))
def test_the_tail_agrees_with_scipy(data, workers):
    byzantine = data.draw(st.integers(0, workers))
    drawn = data.draw(st.integers(1, workers))
    at_least = data.draw(st.integers(0, drawn))
    tail = hypergeometric_tail(workers=workers, byzantine=byzantine, drawn=drawn, at_least=at_least)
    assert tail == pytest.approx(
        float(stats.hypergeom.sf(at_least - 1, workers, byzantine, drawn)), rel=1e-7, abs=1e-12
    )


@pytest.mark.parametrize(
    ("workers", "byzantine", "drawn", "at_least"),
    [
        (2_938, 737, 1_607, 1),  # P[X = 1] is subnormal: it has lost most of its digits.
        (20_000, 5_000, 10_000, 1),  # P[X = 1] is zero in floats.
        (100_000, 90_000, 5_000, 2_500),
    ],
)
def test_a_tail_that_starts_far_below_the_mean_is_one(workers, byzantine, drawn, at_least):
    tail = hypergeometric_tail(workers=workers, byzantine=byzantine, drawn=drawn, at_least=at_least)
    assert tail == 1.0


def test_the_papers_experiment_draws_a_byzantine_majority_in_2_percent_of_rounds():
    failure = majority_failure(workers=100, byzantine=33, drawn=30)
    assert failure == pytest.approx(float(exact_tail(100, 33, 30, 15)), rel=1e-14)
    assert failure == pytest.approx(0.01736, abs=5e-6)


def test_the_papers_experiment_overflows_in_57_percent_of_rounds():
    chance = overflow(workers=100, byzantine=33, drawn=30, f=THIRD)
    assert approve_count(30, THIRD) == 21
    assert chance == pytest.approx(float(exact_tail(100, 33, 30, 10)), rel=1e-14)
    assert chance == pytest.approx(0.5694, abs=5e-5)


# The Lemma.


def test_the_exact_tail_stays_below_the_chernoff_bound():
    checked = 0
    for workers in (*range(2, 40), 100, 333, 1000):
        for byzantine in range(1, (workers + 1) // 2, max(1, workers // 15)):
            f = Fraction(byzantine, workers)
            for drawn in range(1, workers + 1, max(1, workers // 30)):
                failure = majority_failure(workers=workers, byzantine=byzantine, drawn=drawn)
                assert failure <= chernoff(drawn, f), (workers, byzantine, drawn)
                checked += 1
    assert checked > 5000


@pytest.mark.parametrize("f", [Fraction(1, 20), Fraction(1, 5), THIRD, Fraction(2, 5)])
@pytest.mark.parametrize("rounds", [1, 100, 10_000])
@pytest.mark.parametrize("delta", [0.3, 0.01, 1e-6])
def test_a_committee_of_the_lemmas_size_fails_with_less_than_delta(f, rounds, delta):
    size = chernoff_size(f=f, draws=rounds, delta=delta)
    formula = 2 * (1 + 2 * float(f)) / (1 - 2 * float(f)) ** 2 * math.log(rounds / delta)
    assert formula <= size * (1 + 1e-12)
    assert size < formula + 1
    # At least the size, in populations from hardly larger ones to practically endless ones.
    for workers in (20 * math.ceil(size / 20), 10 * size, 1000 * size):
        for drawn in (size, size + 1, min(workers, 2 * size)):
            failure = majority_failure(
                workers=workers, byzantine=math.floor(f * workers), drawn=drawn
            )
            assert any_of(rounds, failure) <= rounds * failure < delta


def test_the_theorems_size_covers_proposers_and_voters_of_every_round():
    rounds, delta = 500, 0.05
    size = chernoff_size(f=THIRD, draws=2 * rounds, delta=delta)
    failure = majority_failure(workers=10_000, byzantine=3300, drawn=size)
    either = 1 - (1 - failure) ** 2
    assert any_of(rounds, either) == pytest.approx(any_of(2 * rounds, failure), rel=1e-6)
    assert any_of(rounds, either) < delta


def test_a_far_smaller_committee_does_not_keep_the_promise():
    failure = majority_failure(workers=100, byzantine=33, drawn=30)
    assert any_of(100, failure) > 0.8


def test_the_lemmas_size_grows_with_the_logarithm_of_rounds_and_confidence():
    sizes = [chernoff_size(f=THIRD, draws=10**e, delta=0.01) for e in range(8)]
    steps = np.diff(sizes)
    assert steps.max() - steps.min() <= 1
    assert sizes == [chernoff_size(f=THIRD, draws=1, delta=10 ** -(2 + e)) for e in range(8)]
    by_share = [chernoff_size(f=Fraction(i, 20), draws=100, delta=0.01) for i in range(10)]
    assert by_share == sorted(set(by_share))


@pytest.mark.parametrize(("draws", "delta"), [(1, 0.3001), (10, 0.1234), (300, 0.0507)])
def test_the_exact_size_is_the_first_that_keeps_the_promise(draws, delta):
    promised = Fraction(str(delta))
    for workers in range(1, 31):
        for byzantine in range(workers + 1):
            keeps = (
                size
                for size in range(1, workers + 1)
                if draws * exact_tail(workers, byzantine, size, (size + 1) // 2) <= promised
            )
            expected = next(keeps, None)
            found = exact_size(workers=workers, byzantine=byzantine, draws=draws, delta=delta)
            assert found == expected, (workers, byzantine)


def test_the_exact_size_is_below_the_lemmas():
    for byzantine in (50, 200, 330, 400):
        f = Fraction(byzantine, 1000)
        bound = chernoff_size(f=f, draws=100, delta=0.01)
        size = exact_size(workers=1000, byzantine=byzantine, draws=100, delta=0.01)
        assert size is not None
        assert size < bound


@pytest.mark.parametrize("exponent", [6, 9, 12, 15])
def test_of_very_many_workers_a_draw_is_as_good_as_with_replacement(exponent):
    workers, drawn = 10**exponent, 51
    for at_least in (9, 16, 26):
        tail = hypergeometric_tail(
            workers=workers, byzantine=3 * workers // 10, drawn=drawn, at_least=at_least
        )
        expected = stats.binom.sf(at_least - 1, drawn, 0.3)
        # They differ by about drawn^2 / workers; the rest is what floats can do.
        assert tail == pytest.approx(expected, rel=10 * drawn**2 / workers + 1e-9)


@pytest.mark.parametrize("exponent", [9, 12, 15])
def test_a_large_draw_of_very_many_workers_is_as_good_as_with_replacement(exponent):
    workers, drawn = 10**exponent, 56_477
    tail = majority_failure(workers=workers, byzantine=49 * workers // 100, drawn=drawn)
    expected = stats.binom.sf((drawn + 1) // 2 - 1, drawn, 0.49)
    assert tail == pytest.approx(expected, rel=20 * drawn / workers + 1e-9)


def test_the_exact_size_does_not_depend_on_the_number_of_very_many_workers():
    sizes = {
        exact_size(workers=10**e, byzantine=49 * 10 ** (e - 2), draws=1000, delta=1e-3)
        for e in (12, 13, 14, 15)
    }
    assert sizes == {56_477}


@given(data=st.data(), workers=st.integers(20_001, 25_000))
def test_the_tail_beyond_exact_coefficients_is_the_share_of_draws(data, workers):
    byzantine = data.draw(st.integers(1, workers - 1))
    drawn = data.draw(st.integers(1, 60))
    at_least = data.draw(st.integers(0, drawn + 1))
    tail = hypergeometric_tail(workers=workers, byzantine=byzantine, drawn=drawn, at_least=at_least)
    exact = float(exact_tail(workers, byzantine, drawn, at_least))
    assert tail == pytest.approx(exact, rel=1e-11, abs=0)
