import math
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agreement.rig import Network, other, some_params

from holdout.agreement.params import (
    MILLISECOND,
    Genesis,
    Mode,
    Params,
    RoleDraw,
    TallyRule,
    Timing,
)
from holdout.errors import InfeasibleError

fractions = st.fractions(0, Fraction(99, 100), max_denominator=100)


@given(fractions, st.integers(0, 10_000))
def test_a_full_ballot_has_the_least_whole_number_of_names(f, m):
    assert some_params(f=f).approve_count(m) == math.ceil((1 - f) * m)


@given(fractions, st.integers(1, 1_000))
def test_the_liars_that_are_stood_are_whole(f, n):
    assert some_params(n, f=f).byzantine == math.floor(f * n)


def test_the_last_rate_stays():
    params = some_params(rates=(0.5, 0.25, 0.125))
    assert [params.rate(step) for step in range(1, 6)] == [0.5, 0.25, 0.125, 0.125, 0.125]


# ------------------------------------------------------------------------------------------- checks


def test_in_every_network_two_quorums_share_an_honest_worker_and_the_honest_make_one():
    for n in range(1, 201):
        quorum = 2 * n // 3 + 1
        for liars in range((n - 1) // 3 + 1):
            params = some_params(n, f=Fraction(liars, n))
            params.check()
            assert params.byzantine == liars
            assert params.quorum == quorum
            assert 2 * quorum > n + liars
            assert n - liars >= quorum


@pytest.mark.parametrize("n", range(2, 40))
def test_one_liar_more_than_a_third_allows_is_refused(n):
    params = some_params(n, f=Fraction((n - 1) // 3 + 1, n))
    with pytest.raises(InfeasibleError, match="3B"):
        params.check()


@pytest.mark.parametrize("change", [-1, 1])
def test_with_everybody_in_the_committee_there_is_one_quorum(change):
    params = some_params(10)
    with pytest.raises(InfeasibleError, match="= 7; got"):
        replace(params, quorum=params.quorum + change).check()


@pytest.mark.parametrize(
    ("quorum", "committee", "good"),
    [
        (6, 8, True),
        (8, 8, True),
        (9, 8, False),
        (0, 8, False),
        (6, 11, False),
        (6, 0, False),
        (0, 0, False),
        # Two halves would decide two blocks, and nobody has to lie for it.
        (5, 8, True),
        (4, 8, False),
        (1, 8, False),
        (4, 7, True),
        (3, 7, False),
    ],
)
@pytest.mark.parametrize("mode", [Mode.SHUFFLE, Mode.SELF])
def test_a_drawn_committee_holds_one_quorum_and_not_two(mode, quorum, committee, good):
    params = some_params(10, mode=mode, quorum=quorum, committee=committee)
    if good:
        params.check()
    else:
        with pytest.raises(InfeasibleError, match="drawn committee"):
            params.check()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"rates": ()}, "learning rates must be finite and above 0"),
        ({"rates": (0.1, math.nan)}, "learning rates must be finite and above 0"),
        ({"rates": (0.0,)}, "learning rates must be finite and above 0"),
        ({"dimension": 0, "shapes": ()}, "the shapes must hold the model's 0 weights"),
        ({"shapes": ((1, 1),)}, "they hold 1"),
        ({"radius_first": math.inf}, "the first radius must be finite"),
        ({"radius_first": -1.0}, "the first radius must be finite"),
        ({"lookback": 3}, "must look back 1 or 2"),
    ],
)
def test_constants_with_which_nothing_can_be_learned_are_refused(change, rule):
    with pytest.raises(InfeasibleError, match=rule):
        some_params(**change).check()


# ----------------------------------------------------------------------------------------- identity

CHANGES = {
    "workers": 8,
    "f": Fraction(1, 6),
    "quorum": 6,
    "proposers": 3,
    "voters": 3,
    "leaders": 3,
    "ballots_min": 2,
    "byzantine_voters_max": 1,
    "dimension": 7,
    "model_first": other(b"model"),
    "rates": (0.5, 0.125),
    "mode": Mode.SELF,
    "committee": 5,
    "role_draw": RoleDraw.FIXED,
    "inclusion_periods": 2,
    "lookback": 3,
    "refresh": 51,
    "shapes": ((2, 3),),
    "coordinate_max": 1e5,
    "radius_first": 1.0,
    "tally": TallyRule.PAPER,
}


def test_every_constant_is_part_of_the_identity():
    assert list(CHANGES) == [field.name for field in fields(Params)]
    params = some_params()
    encodings = [params.encode(), *(replace(params, **{k: v}).encode() for k, v in CHANGES.items())]
    assert len(set(encodings)) == len(encodings)


def test_networks_that_differ_in_anything_do_not_talk():
    genesis = Network().genesis
    keys = genesis.roster
    others = [
        replace(genesis, params=replace(genesis.params, f=Fraction(1, 6))),
        replace(genesis, roster=keys[:-1]),
        replace(genesis, roster=(*keys[:-2], keys[-1], keys[-2])),
        replace(genesis, run_nonce=b"another"),
        replace(genesis, beacon=b"another"),
    ]
    chains = [genesis.chain, *(network.chain for network in others)]
    assert len(set(chains)) == len(chains)


def test_the_setup_is_fixed_before_the_beacon_is_known():
    genesis = Network().genesis
    assert replace(genesis, beacon=b"another").setup == genesis.setup
    assert genesis == Genesis(genesis.params, genesis.roster, b"nonce", b"beacon")


# ------------------------------------------------------------------------------------------- timing


def test_a_round_waits_for_updates_then_ballots_then_what_is_under_way():
    timing = Timing(delay=1, propose=10, vote=100)
    assert timing.lead_at() == 112
    assert Timing().lead_at() == 5_000 * MILLISECOND


def test_the_soft_vote_comes_before_the_deadline_in_every_period():
    timing = Timing()
    for period in range(12):
        assert timing.filter_after(period) < timing.deadline_after(period)


def test_both_waits_double_with_the_period_up_to_a_bound():
    timing = Timing()
    for wait in (timing.filter_after, timing.deadline_after):
        assert [wait(p) // wait(0) for p in range(9)] == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_retries_come_less_and_less_often():
    timing = Timing(delay=1)
    assert [timing.retry_after(count) for count in range(6)] == [2, 4, 8, 16, 16, 16]
