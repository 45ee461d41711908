"""Section "The Union-Consensus": its Lemma, the trust a Byzantine must win, and f = 0."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.federation.central import run_round
from holdout.federation.round_setup import first_state
from holdout.rounds import Outcome, admit_proposals, conclude_vote
from holdout.rules import mean
from holdout.voting import Approvals, Gate, Quorum, Terms, tally

below_a_half = st.fractions(0, Fraction(1, 2), max_denominator=100).filter(
    lambda f: f < Fraction(1, 2)
)
counts = st.integers(1, 12)


def vote(terms, ballots, *, proposals, voters=None):
    """The server's decision on one-dimensional updates 0, 1, 2, ... and these ballots."""
    updates = torch.arange(proposals, dtype=torch.float32).unsqueeze(1)
    return conclude_vote(
        admit_proposals(list(updates), dimension=1),
        enumerate(ballots),
        voters=range(voters or len(ballots)),
        terms=terms,
    )


def spread(length, *, proposals, voters):
    """Ballots of one length that give all proposals as equal a number of votes as possible."""
    names = [i % proposals for i in range(length * voters)]
    return [sorted(names[v * length : (v + 1) * length]) for v in range(voters)]


# The Lemma: the union-consensus cannot be empty.


@given(data=st.data(), n_p=counts, n_c=counts, f=below_a_half)
def test_full_ballots_always_select_a_proposal(data, n_p, n_c, f):
    terms = Terms.paper(f)
    names = st.permutations(range(n_p)).map(lambda order: order[: terms.approve_count(n_p)])
    ballots = data.draw(st.lists(names, min_size=n_c, max_size=n_c))
    decision = vote(terms, ballots, proposals=n_p)
    assert len(decision.ballots) == n_c
    assert decision.approve_count == math.ceil((1 - f) * n_p)
    assert decision.quorum == math.ceil((1 - f) * n_c)
    assert decision.outcome is Outcome.STEP
    assert len(decision.selection) >= 1


@pytest.mark.parametrize("quorum", Quorum)
def test_even_ballots_that_spread_their_votes_select_a_proposal(quorum):
    for f in (Fraction(0), Fraction(33, 100), Fraction(1, 3), Fraction(2, 5), Fraction(49, 100)):
        terms = replace(Terms.paper(f), quorum_kind=quorum)
        for n_p in range(1, 14):
            for n_c in range(1, 14):
                ballots = spread(terms.approve_count(n_p), proposals=n_p, voters=n_c)
                assert vote(terms, ballots, proposals=n_p).selection, (f, n_p, n_c)


def test_ballots_rounded_down_can_select_nobody():
    f, n_p, n_c = Fraction(33, 100), 2, 6
    length, quorum = math.floor((1 - f) * n_p), math.floor((1 - f) * n_c)
    assert (length, quorum) == (1, 4)
    ballots = spread(length, proposals=n_p, voters=n_c)
    assert (
        tally({v: Approvals(tuple(names)) for v, names in enumerate(ballots)}, quorum=quorum) == ()
    )
    # With the ceilings, ballots so short are void.
    assert not vote(Terms.paper(f), ballots, proposals=n_p).ballots
    full = spread(Terms.paper(f).approve_count(n_p), proposals=n_p, voters=n_c)
    assert vote(Terms.paper(f), full, proposals=n_p).selection == (0, 1)


def test_blank_ballots_that_count_can_select_nobody():
    f, honest = Fraction(1, 4), [[0, 1, 2], [0, 1, 2]]
    blanks_count = Terms(f, gate=Gate.NONE, quorum_kind=Quorum.PAPER)
    decision = vote(blanks_count, [*honest, [], []], proposals=4)
    assert (decision.quorum, decision.selection) == (3, ())
    assert decision.outcome is Outcome.EMPTY_SELECTION
    # In the paper's vote a blank ballot is void and lowers the quorum with it.
    decision = vote(Terms.paper(f), [*honest, [], []], proposals=4)
    assert (decision.quorum, decision.selection) == (2, (0, 1, 2))


@given(data=st.data(), n_p=counts, n_c=counts, f=below_a_half)
def test_voters_who_send_nothing_or_junk_cannot_empty_the_selection(data, n_p, n_c, f):
    terms = Terms.paper(f)
    full = st.permutations(range(n_p)).map(lambda order: order[: terms.approve_count(n_p)])
    junk = st.sampled_from([[], [0, 0], [n_p], None, "ballot", list(range(n_p + 1))])
    sent = data.draw(st.lists(full | junk, min_size=n_c, max_size=n_c))
    decision = vote(terms, sent, proposals=n_p)
    assume(decision.ballots)
    assert decision.selection


# A Byzantine proposal has to win the trust of N_c (1 - 2f) honest voters.


@given(data=st.data(), n_p=st.integers(2, 12), n_c=counts, f=below_a_half)
def test_a_byzantine_proposal_needs_many_honest_voters(data, n_p, n_c, f):
    terms, liars = Terms.paper(f), math.floor(f * n_c)
    k = terms.approve_count(n_p)
    lie = data.draw(st.integers(0, n_p - 1))
    others = [p for p in range(n_p) if p != lie]
    liars_ballot = [lie, *others][:k]
    honest = []
    for _ in range(n_c - liars):
        order = data.draw(st.permutations(others))
        # With k = N_p a full ballot names everybody.
        named = k == n_p or data.draw(st.booleans())
        honest.append([lie, *order][:k] if named else order[:k])
    convinced = sum(lie in ballot for ballot in honest)
    decision = vote(terms, [liars_ballot] * liars + honest, proposals=n_p)
    assert len(decision.ballots) == n_c
    assert (lie in decision.selection) == (convinced >= decision.quorum - liars)
    if lie in decision.selection:
        assert convinced >= n_c * (1 - 2 * f)


@given(data=st.data(), n_p=st.integers(2, 12), n_c=counts, f=below_a_half)
def test_liars_who_spoil_ballots_do_not_need_fewer_honest_voters(data, n_p, n_c, f):
    terms, liars = Terms.paper(f), math.floor(f * n_c)
    k = terms.approve_count(n_p)
    assume(k < n_p)
    spoilt = data.draw(st.integers(0, liars))
    convinced = data.draw(st.integers(0, n_c - liars))
    for_it, against_it = list(range(k)), list(range(1, k + 1))
    ballots = [[]] * spoilt + [for_it] * (liars - spoilt) + [for_it] * convinced
    ballots += [against_it] * (n_c - len(ballots))
    decision = vote(terms, ballots, proposals=n_p)
    if 0 in decision.selection:
        assert convinced >= n_c * (1 - 2 * f)


def test_with_a_third_of_byzantines_half_of_the_honest_voters_must_be_convinced():
    terms = Terms.paper(Fraction(1, 3))
    lie, honest = [0, 1, 2, 3], [1, 2, 3, 4]
    for convinced in range(21):
        ballots = [lie] * 10 + [lie] * convinced + [honest] * (20 - convinced)
        assert (0 in vote(terms, ballots, proposals=6).selection) == (convinced >= 10)


# With f = 0 the committee has no effect.


@given(data=st.data(), n_p=counts, n_c=counts)
def test_with_f_0_the_vote_is_the_mean_to_the_bit(data, n_p, n_c):
    seed = data.draw(st.integers(0, 2**32 - 1))
    updates = torch.randn(n_p, 9, generator=torch.Generator().manual_seed(seed))
    ballots = [data.draw(st.permutations(range(n_p))) for _ in range(n_c)]
    decision = conclude_vote(
        admit_proposals(list(updates), dimension=9),
        enumerate(ballots),
        voters=range(n_c),
        terms=Terms.paper(Fraction(0)),
    )
    assert decision.selection == tuple(range(n_p))
    assert torch.equal(decision.update, mean(updates, f=0))


SMALL = {
    "experiment": {"rules": ["mean", "holdout-paper"], "rounds": 4, "evaluate_every": 1},
    "data": {"samples_per_worker": 40},
    "training": {"batch_size": 10},
    "federation": {"workers": 20, "byzantine": 6, "proposers": 7, "voters": 6},
    "vote": {"samples": 20},
}


def config_of(*, f, attack, voters="coalition", threads=1):
    experiment = {**SMALL["experiment"], "threads": threads, "baseline": False}
    federation = {**SMALL["federation"], "assumed_byzantine": f}
    return {
        **SMALL,
        "experiment": experiment,
        "federation": federation,
        "attack": {"name": attack, "voters": voters},
    }


def weights_of_both(config, blobs):
    """The weights after each round, of the mean and of the paper's vote."""
    plan = make_plan(config, Plugins(data=blobs))
    paths = {}
    for curve, seed in plan.curves:
        federation = plan.federation(curve, seed)
        state, path = first_state(federation), []
        for _ in range(plan.config.experiment.rounds):
            _, state = run_round(federation, curve, state)
            path.append(state.weights)
        paths[curve.rule] = path
    return paths["mean"], paths["holdout-paper"]


@pytest.mark.parametrize("attack", ["none", "sign-flip", "gaussian", "nan"])
@pytest.mark.parametrize("voters", ["coalition", "blank"])
def test_with_f_0_a_run_of_the_vote_is_plain_averaging_to_the_bit(blobs, attack, voters):
    averaged, voted = weights_of_both(config_of(f=0, attack=attack, voters=voters), blobs)
    assert all(torch.equal(a, b) for a, b in zip(averaged, voted, strict=True))
    assert not torch.equal(averaged[0], averaged[-1])


def test_with_f_above_0_it_is_not(blobs):
    averaged, voted = weights_of_both(config_of(f=0.33, attack="none"), blobs)
    assert not torch.equal(averaged[0], voted[0])


def test_with_f_0_the_records_of_both_rules_tell_the_same(blobs):
    rounds = run(config_of(f=0, attack="none"), plugins=Plugins(data=blobs)).rounds
    told = ("round", "accuracy", "loss", "proposers", "selection", "outcome")
    averaged, voted = (
        [[line[key] for key in told] for line in rounds if line["rule"] == rule]
        for rule in ("mean", "holdout-paper")
    )
    assert averaged == voted
    assert len(voted) == 4
