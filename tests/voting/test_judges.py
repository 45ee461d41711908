"""The coverage bound: votes by class need c (1 - f) > f, or liars are the majority of judges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from holdout.seeds import stream
from holdout.voting import draw_byzantine, draw_committee
from holdout.voting.odds import judges_failure, majority_failure

COMMITTEES = 4_000


def simulated_failure(workers, byzantine, drawn, coverage, seed):
    """The share of real draws of voters in which honest judges are no majority."""
    liars = draw_byzantine(workers, byzantine, seed=seed)
    source, bound = stream(seed, "coverage"), 1 << 32
    failed = 0
    for number in range(1, COMMITTEES + 1):
        committee = draw_committee(
            workers=workers,
            proposers=1,
            voters=drawn,
            disjoint=False,
            seed=seed,
            round_number=number,
        )
        lying = len(liars.intersection(committee.voters))
        honest = sum(source.below(bound) < coverage * bound for _ in range(drawn - lying))
        failed += honest <= lying
    return failed / COMMITTEES


@pytest.mark.parametrize(
    ("workers", "byzantine", "drawn", "coverage"),
    [(100, 33, 30, 0.27), (100, 33, 30, 0.51), (100, 33, 30, 0.8), (40, 8, 15, 0.5)],
)
def test_the_exact_odds_are_those_of_simulated_committees(workers, byzantine, drawn, coverage):
    expected = judges_failure(workers=workers, byzantine=byzantine, drawn=drawn, coverage=coverage)
    found = simulated_failure(workers, byzantine, drawn, coverage, seed=3)
    deviation = (expected * (1 - expected) / COMMITTEES) ** 0.5
    assert abs(found - expected) < 4 * deviation + 1e-3


@given(st.integers(1, 60), st.data())
def test_the_odds_are_a_hypergeometric_mixture_of_binomials(workers, data):
    byzantine = data.draw(st.integers(0, workers))
    drawn = data.draw(st.integers(1, workers))
    coverage = data.draw(st.floats(0, 1))
    liars = np.arange(drawn + 1)
    chances = stats.hypergeom.pmf(liars, workers, byzantine, drawn)
    expected = (chances * stats.binom.cdf(liars, drawn - liars, coverage)).sum()
    found = judges_failure(workers=workers, byzantine=byzantine, drawn=drawn, coverage=coverage)
    assert found == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 200), st.data())
def test_where_every_honest_voter_can_judge_it_is_the_lemmas_majority(workers, data):
    byzantine = data.draw(st.integers(0, workers))
    drawn = data.draw(st.integers(1, workers))
    draw = {"workers": workers, "byzantine": byzantine, "drawn": drawn}
    assert judges_failure(**draw, coverage=1.0) == pytest.approx(majority_failure(**draw), abs=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.33, 0.4])
def test_large_committees_have_an_honest_majority_of_judges_exactly_above_the_bound(share):
    critical = share / (1 - share)
    workers = 10_000
    byzantine = round(share * workers)
    for coverage, wins in ((critical + 0.1, True), (critical - 0.1, False)):
        failures = [
            judges_failure(workers=workers, byzantine=byzantine, drawn=drawn, coverage=coverage)
            for drawn in (25, 101, 801)
        ]
        # Larger committees make the likely outcome certain, whichever it is.
        assert failures == sorted(failures, reverse=wins)
        assert failures[-1] < 0.05 if wins else failures[-1] > 0.95


def test_at_a_third_of_liars_skewed_shards_leave_most_judges_lying():
    # Dirichlet 0.1 and 0.5: about 0.27 and 0.51 of the workers hold enough of a class to judge it.
    draw = {"workers": 1_000, "byzantine": 330}
    for drawn in (30, 100, 300):
        assert judges_failure(**draw, drawn=drawn, coverage=0.27) > 0.9
    assert 0.3 < judges_failure(**draw, drawn=300, coverage=0.51) < 0.6
