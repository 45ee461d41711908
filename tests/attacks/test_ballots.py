"""Every way to vote as a liar through the same laws, and what the terms of a vote make of it."""

from dataclasses import dataclass
from fractions import Fraction

import pytest

from holdout.attacks import BALLOT_ATTACKS, BallotView
from holdout.seeds import stream
from holdout.voting import BallotFault, Terms

THIRD = Fraction(33, 100)
TERMS = {"holdout-paper": Terms.paper(THIRD), "holdout-1": Terms(THIRD)}


@dataclass(frozen=True)
class Case:
    """What the laws must know of a ballot attack."""

    full: bool = True
    """It names exactly as many as a ballot may."""
    random: bool = False


CASES = {
    "honest": Case(full=False),
    "coalition": Case(random=True),
    "starve": Case(),
    "short": Case(full=False),
    "blank": Case(full=False),
    "random": Case(random=True),
    "inverted": Case(),
}
every_ballot_attack = pytest.mark.parametrize("name", BALLOT_ATTACKS)
both_rules = pytest.mark.parametrize("rule", TERMS)


def view(*, voter=3, seed=0, round_number=1, proposals=10, coalition=(2, 5, 7), honest=(0, 1, 2)):
    """Ten proposals (one id is missing), of which the liars sent three; the best is the last."""
    ids = tuple(p for p in range(proposals + 1) if p != 4)
    return BallotView(
        voter=voter,
        proposals=ids,
        coalition=frozenset(coalition),
        approve_count=TERMS["holdout-1"].approve_count(len(ids)),
        honest_ballot=lambda: tuple(honest),
        ranking=lambda: list(reversed(ids)),
        source=stream(seed, "ballot", round_number, voter),
    )


def admit(rule, ballot, given):
    return TERMS[rule].admit([(3, ballot)], voters=[3], proposals=given.proposals)


def test_the_table_lists_every_ballot_attack():
    assert list(CASES) == list(BALLOT_ATTACKS)


@every_ballot_attack
@both_rules
@pytest.mark.parametrize("coalition", [(), (5,), (2, 5, 7), range(11)])
@pytest.mark.parametrize("proposals", [1, 2, 10])
def test_a_ballot_is_valid_unless_it_is_short_where_ballots_are_full(
    name, rule, coalition, proposals
):
    given = view(proposals=proposals, coalition=coalition, honest=range(min(3, proposals)))
    ballot = list(BALLOT_ATTACKS[name](given))
    assert len(ballot) == len(set(ballot)) <= given.approve_count
    assert set(ballot) <= set(given.proposals)
    if CASES[name].full:
        assert len(ballot) == given.approve_count
    admitted = admit(rule, ballot, given)
    if rule == "holdout-1" or len(ballot) == given.approve_count:
        assert admitted.valid[3].approved == tuple(sorted(ballot))
        assert admitted.void == ()
    else:
        assert admitted.valid == {}
        assert admitted.void == ((3, BallotFault.TOO_SHORT),)


@every_ballot_attack
def test_the_same_voter_and_round_vote_the_same(name):
    attack = BALLOT_ATTACKS[name]
    assert list(attack(view())) == list(attack(view()))


@every_ballot_attack
def test_only_random_ones_differ_between_voters_and_rounds(name):
    attack = BALLOT_ATTACKS[name]
    elsewhere = [
        *({"voter": v} for v in range(4, 12)),
        *({"round_number": r} for r in range(2, 9)),
        {"seed": 1},
    ]
    ballots = {tuple(attack(view(**changed))) for changed in elsewhere}
    assert (len(ballots) > 8) == CASES[name].random
    assert (len(ballots) == 1) != CASES[name].random


def test_honest_is_the_ballot_of_the_data():
    assert BALLOT_ATTACKS["honest"](view(honest=(1, 6))) == (1, 6)


def test_coalition_names_all_its_own_first_then_random_others():
    given = view()
    ballot = BALLOT_ATTACKS["coalition"](given)
    assert ballot[:3] == [2, 5, 7]
    assert len(ballot) == given.approve_count == 7
    assert set(ballot[3:]) <= {0, 1, 3, 6, 8, 9, 10}


def test_a_coalition_too_large_for_the_ballot_names_its_first_proposals():
    # Every voter the same ones, so that those reach the quorum.
    for name in ("coalition", "starve", "short"):
        ballots = {
            tuple(BALLOT_ATTACKS[name](view(voter=v, coalition=range(11)))) for v in range(5)
        }
        assert ballots == {(0, 1, 2, 3, 5, 6, 7)}


def test_coalition_fills_up_with_each_other_proposal_equally_often():
    counts = dict.fromkeys((0, 1, 3, 6, 8, 9, 10), 0)
    for voter in range(700):
        for name in BALLOT_ATTACKS["coalition"](view(voter=voter))[3:]:
            counts[name] += 1
    # 400 on average, deviation 13.
    assert all(330 < count < 470 for count in counts.values()), counts


def test_starve_adds_the_worst_of_the_others():
    assert BALLOT_ATTACKS["starve"](view()) == [2, 5, 7, 0, 1, 3, 6]


def test_short_names_its_own_and_nobody_else():
    assert BALLOT_ATTACKS["short"](view()) == [2, 5, 7]
    assert BALLOT_ATTACKS["short"](view(coalition=())) == []


def test_blank_names_nobody():
    assert BALLOT_ATTACKS["blank"](view()) == []


def test_random_names_each_proposal_equally_often():
    counts = dict.fromkeys(view().proposals, 0)
    for voter in range(500):
        for name in BALLOT_ATTACKS["random"](view(voter=voter)):
            counts[name] += 1
    # 350 on average, deviation 10.
    assert all(295 < count < 405 for count in counts.values()), counts


def test_inverted_names_the_worst():
    assert list(BALLOT_ATTACKS["inverted"](view())) == [7, 6, 5, 3, 2, 1, 0]


def test_losses_are_looked_at_only_where_they_matter():
    def refuse():
        raise AssertionError("asked for its losses")

    given = view()
    blind = BallotView(
        given.voter,
        given.proposals,
        given.coalition,
        given.approve_count,
        refuse,
        refuse,
        given.source,
    )
    for name in ("coalition", "short", "blank", "random"):
        BALLOT_ATTACKS[name](blind)
