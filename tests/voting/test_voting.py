"""The vote's laws, as properties: whatever voters send, and however it arrives."""

import ast
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdout
from holdout.errors import InfeasibleError
from holdout.voting import (
    Approvals,
    Gate,
    Terms,
    admit_approvals,
    approve_count,
    cast_approvals,
    draw_byzantine,
    draw_committee,
    has_honest_majority,
    rank,
    tally,
)

SOURCE = Path(holdout.__file__).parent

ballots = st.dictionaries(
    st.integers(0, 9),
    st.lists(st.integers(0, 7), unique=True).map(tuple).map(Approvals),
    max_size=10,
)
losses = st.dictionaries(st.integers(0, 20), st.floats(), min_size=1)
shares = st.fractions(0, Fraction(49, 100), max_denominator=100)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(ballots, st.integers(1, 10))
def test_the_tally_equals_counting_one_by_one(cast, quorum):
    selected = [
        p
        for p in range(8)
        if len([voter for voter, ballot in cast.items() if p in ballot.approved]) >= quorum
    ]
    assert tally(cast, quorum=quorum) == tuple(selected)


@given(ballots, st.integers(1, 9), st.randoms(use_true_random=False))
def test_order_of_arrival_changes_nothing(cast, quorum, random):
    voters = list(cast)
    random.shuffle(voters)
    assert tally({v: cast[v] for v in voters}, quorum=quorum) == tally(cast, quorum=quorum)


@given(ballots, st.integers(1, 9))
def test_raising_the_quorum_only_removes_proposals(cast, quorum):
    assert set(tally(cast, quorum=quorum + 1)) <= set(tally(cast, quorum=quorum))


@given(losses, shares)
def test_a_full_ballot_names_exactly_k(found, f):
    k = approve_count(len(found), f)
    assert len(cast_approvals(found, approve_count=k).approved) == k


@given(losses, shares, st.sampled_from(Gate), st.floats())
def test_a_gated_ballot_names_a_part_of_the_full_one_and_only_finite_losses(found, f, gate, now):
    k = approve_count(len(found), f)
    gated = cast_approvals(found, approve_count=k, gate=gate, current_loss=now).approved
    assert set(gated) <= set(cast_approvals(found, approve_count=k).approved)
    assert all(math.isfinite(found[p]) for p in gated)


@given(losses)
def test_the_ranking_is_total_whatever_the_losses(found):
    order = rank(found)
    assert sorted(order) == sorted(found)
    finite = [p for p in order if math.isfinite(found[p])]
    assert order[: len(finite)] == finite
    assert finite == sorted(finite, key=lambda p: (found[p], p))
    assert order[len(finite) :] == sorted(order[len(finite) :])


@given(st.lists(st.tuples(st.integers(0, 5), junk), max_size=8), st.booleans())
def test_whatever_voters_send_is_valid_or_void_for_a_reason(sent, full):
    admitted = admit_approvals(
        sent, voters=range(4), proposals={0, 1, 2}, approve_count=2, full=full
    )
    for ballot in admitted.valid.values():
        assert set(ballot.approved) <= {0, 1, 2}
        assert len(ballot.approved) == 2 if full else len(ballot.approved) <= 2
    assert set(admitted.valid) <= set(range(4))
    # Every ballot sent, and every voter that sent none, is accounted for once.
    silent = set(range(4)) - {voter for voter, _ in sent}
    assert len(admitted.valid) + len(admitted.void) == len(sent) + len(silent)


@given(st.integers(1, 60), shares)
def test_k_and_the_rules_f_share_the_proposals_exactly(n, f):
    k = approve_count(n, f)
    assert k - 1 < (1 - f) * n <= k
    assert 0 <= n - k <= f * n


def test_a_decimal_share_is_exact():
    # The nearest binary float to 0.33 is above it: 100 (1 - 0.33) would be 66.99999.
    assert approve_count(100, Fraction(33, 100)) == 67
    assert math.ceil((1 - 0.33) * 100) == 67
    assert approve_count(50, Fraction("0.3")) == 35
    assert approve_count(10, Fraction(1, 3)) == 7


def test_the_majority_quorum_counts_silent_voters_the_papers_does_not():
    f = Fraction(33, 100)
    assert Terms(f).quorum(drawn=30, valid=3) == 16
    assert Terms.paper(f).quorum(drawn=30, valid=3) == 3
    assert Terms.paper(f).quorum(drawn=30, valid=30) == 21
    assert Terms.paper(f).quorum(drawn=30, valid=0) == 1


@given(st.integers(2, 30), st.data())
def test_a_disjoint_draw_gives_nobody_two_roles(workers, data):
    proposers = data.draw(st.integers(1, workers - 1))
    voters = data.draw(st.integers(1, workers - proposers))
    seed, round_number = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 99))
    committee = draw_committee(
        workers=workers,
        proposers=proposers,
        voters=voters,
        disjoint=True,
        seed=seed,
        round_number=round_number,
    )
    drawn = [*committee.proposers, *committee.voters]
    assert len(committee.proposers) == proposers
    assert len(set(drawn)) == len(drawn) == proposers + voters
    assert set(drawn) <= set(range(workers))


def test_an_overlapping_draw_may_give_somebody_two_roles():
    committee = draw_committee(
        workers=5, proposers=5, voters=5, disjoint=False, seed=0, round_number=1
    )
    assert sorted(committee.proposers) == sorted(committee.voters) == list(range(5))
    assert committee.proposers != committee.voters


@pytest.mark.parametrize("seed", range(5))
def test_redrawing_ends_with_honest_majorities(seed):
    liars = draw_byzantine(20, 9, seed)
    plain = [_draw(seed, t, None) for t in range(1, 40)]
    redrawn = [_draw(seed, t, liars) for t in range(1, 40)]
    assert all(_honest(committee, liars) for committee in redrawn)
    assert not all(_honest(committee, liars) for committee in plain)


def test_redrawing_gives_up_where_no_draw_can_be_honest():
    with pytest.raises(InfeasibleError, match=r"byzantine=20, proposers=6, voters=6"):
        _draw(0, 1, frozenset(range(20)))


def _draw(seed, round_number, liars):
    return draw_committee(
        workers=20,
        proposers=6,
        voters=6,
        disjoint=True,
        seed=seed,
        round_number=round_number,
        redraw_until_honest=liars,
    )


def _honest(committee, liars):
    return has_honest_majority(committee.proposers, liars) and has_honest_majority(
        committee.voters, liars
    )


@pytest.mark.parametrize("gate", Gate)
@given(found=st.lists(st.floats(0, 100), min_size=1, max_size=8), now=st.floats(101, 1e6))
def test_every_gate_lets_the_best_pass_and_nothing_that_is_not_finite(gate, found, now):
    losses = {0: -1.0, **dict(enumerate(found, start=1)), 99: math.inf, 98: math.nan}
    ballot = cast_approvals(losses, approve_count=len(losses), gate=gate, current_loss=now)
    assert 0 in ballot.approved
    assert not {98, 99} & set(ballot.approved)


@pytest.mark.parametrize("gate", Gate)
@given(found=st.lists(st.floats(0, 100), min_size=1, max_size=8), data=st.data())
def test_a_gate_that_does_not_need_the_current_loss_does_not_look_at_it(gate, found, data):
    losses = dict(enumerate(found))
    one, two = (data.draw(st.floats(-10, 110)) for _ in range(2))
    ballots = [
        cast_approvals(losses, approve_count=len(losses), gate=gate, current_loss=now)
        for now in (one, two)
    ]
    assert gate.needs_current_loss or ballots[0] == ballots[1]


KNOW_THE_KIND = {
    *("voting/approvals.py", "voting/ballot.py", "voting/terms.py"),
    *("flower/vote_messages.py", "node/runtime/learner_process.py"),
    "federation/chain_record.py",  # A block's ballots name proposals, whatever a server's do.
    "simulator/toy_learners.py",
}


def test_few_places_know_what_a_ballot_says():
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Approvals"
            read = isinstance(node, ast.Attribute) and node.attr == "approved"
            if called or (read and ast.unparse(node.value) != "event"):
                found.add(path.relative_to(SOURCE).as_posix())
    assert found == KNOW_THE_KIND
