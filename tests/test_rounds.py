"""One coordinated round: whatever workers send, the server decides by the book or not at all."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.asking import context_of

from holdout.joint_vote import JointMemory
from holdout.learning.vector import norm, shrink
from holdout.rounds import (
    AdmittedProposals,
    Outcome,
    ProposalFault,
    admit_proposals,
    apply_rule,
    bound_updates,
    conclude_joint,
    conclude_vote,
    count,
)
from holdout.rules import RULES
from holdout.voting import Quorum, Terms

D = 4
THIRD = Fraction(33, 100)
TERMS = {"holdout-paper": Terms.paper(THIRD), "holdout-1": Terms(THIRD)}
both_rules = pytest.mark.parametrize("rule", TERMS)

RUBBISH = {
    "missing": (None, "missing"),
    "a list": ([0.0] * D, "misshapen"),
    "a string": ("zeros", "misshapen"),
    "a number": (3.0, "misshapen"),
    "too long": (torch.zeros(D + 1), "misshapen"),
    "empty": (torch.zeros(0), "misshapen"),
    "no vector": (torch.tensor(1.0), "misshapen"),
    "a row": (torch.zeros(1, D), "misshapen"),
    "sparse": (torch.zeros(D).to_sparse(), "misshapen"),
    "without values": (torch.zeros(D, device="meta"), "misshapen"),
    "integers": (torch.zeros(D, dtype=torch.int64), "misshapen"),
    "booleans": (torch.zeros(D, dtype=torch.bool), "misshapen"),
    "complex": (torch.zeros(D, dtype=torch.complex64), "misshapen"),
    "nan": (torch.full((D,), math.nan), "not-finite"),
    "one nan": (torch.tensor([0.0, 0.0, math.nan, 0.0]), "not-finite"),
    "infinite": (torch.full((D,), math.inf), "not-finite"),
    "minus infinite": (torch.full((D,), -math.inf), "not-finite"),
    "too large for float32": (torch.full((D,), 1e300, dtype=torch.float64), "not-finite"),
}
GOOD = {
    "float32": torch.ones(D),
    "float64": torch.ones(D, dtype=torch.float64),
    "float16": torch.ones(D, dtype=torch.float16),
    "bfloat16": torch.ones(D, dtype=torch.bfloat16),
    "with a gradient": torch.ones(D, requires_grad=True),
    "strided": torch.ones(2 * D)[::2],
    "expanded": torch.ones(1).expand(D),
}


def rows(n, seed=0, d=D):
    return list(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)))


def admit(received):
    return admit_proposals(received, dimension=D)


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_out_and_counted(kind):
    sent, fault = RUBBISH[kind]
    first, last = rows(2)
    admitted = admit([first, sent, last])
    assert list(admitted.valid) == [0, 2]
    assert admitted.faults == {1: ProposalFault(fault)}
    assert torch.equal(admitted.stacked(), torch.stack([first, last]))


@pytest.mark.parametrize("kind", GOOD)
def test_any_finite_vector_of_the_right_size_is_a_float32_update(kind):
    (update,) = admit([GOOD[kind]]).valid.values()
    assert update.dtype == torch.float32
    assert not update.requires_grad
    assert torch.equal(update, torch.ones(D))


def test_the_largest_numbers_are_valid():
    largest = torch.full((D,), torch.finfo(torch.float32).max)
    assert list(admit([largest, -largest]).valid) == [0, 1]


def test_faults_are_counted_by_name():
    admitted = admit([sent for sent, _ in RUBBISH.values()])
    assert admitted.valid == {}
    assert count(admitted.faults.values()) == {"misshapen": 12, "missing": 1, "not-finite": 5}


@both_rules
def test_ballots_are_sized_by_the_valid_proposals(rule):
    # Nine sent, six valid: k is ceil(0.67 * 6) = 5, not ceil(0.67 * 9) = 7.
    admitted = admit([*rows(6), None, "x", torch.full((D,), math.nan)])
    full = [0, 1, 2, 3, 4]
    sent = [(v, full) for v in range(4)] + [(4, [0, 1, 2, 3, 4, 5])]
    decision = conclude_vote(admitted, sent, voters=range(5), terms=TERMS[rule])
    assert decision.approve_count == 5
    assert decision.ballot_faults == ["too-long"]
    assert decision.selection == tuple(full)


@both_rules
def test_a_ballot_for_an_invalid_proposal_is_void(rule):
    admitted = admit([None, *rows(3)])
    decision = conclude_vote(
        admitted, [(0, [0, 1, 2]), (1, [1, 2, 3])], voters=[0, 1], terms=TERMS[rule]
    )
    assert decision.ballot_faults == ["unknown-id"]


@both_rules
def test_nothing_valid_makes_no_step(rule):
    decision = conclude_vote(admit([None, "x"]), [(0, [])], voters=[0], terms=TERMS[rule])
    assert decision.outcome is Outcome.NO_PROPOSALS
    assert decision.update is None


@pytest.mark.parametrize("name", RULES)
def test_a_baseline_without_anything_valid_makes_no_step(name):
    decision = apply_rule(admit([None, None]), RULES[name], f=0)
    assert decision.outcome is Outcome.NO_PROPOSALS
    assert decision.update is None


@pytest.mark.parametrize(
    ("name", "n", "f"), [("krum", 4, 1), ("multi-krum", 6, 2), ("bulyan", 6, 1)]
)
def test_an_infeasible_rule_makes_no_step(name, n, f):
    decision = apply_rule(admit([*rows(n), None]), RULES[name], f=f)
    assert decision.outcome is Outcome.INFEASIBLE
    assert decision.update is None
    assert decision.selection is None
    one_more = apply_rule(admit(rows(n + 1)), RULES[name], f=f)
    assert one_more.outcome is Outcome.STEP


@pytest.mark.parametrize("name", RULES)
def test_a_baseline_is_the_rule_over_the_valid_updates(name):
    valid = rows(9)
    context = context_of(torch.stack(valid))
    decision = apply_rule(admit([None, *valid, "x"]), RULES[name], f=1, context=context)
    assert decision.outcome is Outcome.STEP
    again = context_of(torch.stack(valid))
    expected = RULES[name](torch.stack(valid), f=1, context=again)
    assert torch.allclose(decision.update, expected, rtol=0, atol=1e-6)


def test_rules_that_average_some_updates_name_them_by_proposal():
    near = [torch.full((D,), 1 + i / 100) for i in range(6)]
    admitted = admit([None, torch.full((D,), 50.0), *near])
    mean = apply_rule(admitted, RULES["mean"], f=1)
    assert mean.selection == (1, 2, 3, 4, 5, 6, 7)
    krum = apply_rule(admitted, RULES["krum"], f=1)
    (chosen,) = krum.selection
    assert torch.equal(krum.update, admitted.valid[chosen])
    multi = apply_rule(admitted, RULES["multi-krum"], f=1)
    assert multi.selection == (2, 3, 4, 5, 6, 7)
    assert apply_rule(admitted, RULES["median"], f=1).selection is None


lengths = st.floats(0, 1e30, allow_subnormal=False)


def oracle_radius(norms, previous):
    """The definition in rationals; a radius of zero counts as none."""
    if not norms:
        return previous
    m = Fraction(sorted(norms)[math.ceil(Fraction(len(norms), 2)) - 1])
    if previous is None or previous == 0:
        return float(m)
    step = Fraction(3, 2)
    return float(min(max(m, Fraction(previous) / step), Fraction(previous) * step))


def on_an_axis(length):
    return torch.tensor([0.0, float(length), 0.0, 0.0], dtype=torch.float64).float()


@given(st.lists(st.lists(lengths, max_size=7), max_size=8))
def test_the_radius_follows_the_median_norm_at_a_limited_rate(rounds):
    radius = expected = None
    for sizes in rounds:
        admitted = admit([on_an_axis(size) for size in sizes])
        bounded, radius = bound_updates(admitted, previous_radius=radius)
        norms = [float(on_an_axis(size)[1]) for size in sizes]
        expected = oracle_radius(norms, expected)
        assert (radius is None) == (expected is None)
        if radius is None:
            continue
        assert radius == pytest.approx(expected, rel=1e-12)
        for before, after in zip(norms, bounded.valid.values(), strict=True):
            assert norm(after) == pytest.approx(min(before, radius), rel=1e-6)


@given(
    st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=20),
    st.floats(0, 1e39, allow_subnormal=False),
)
def test_shrinking_keeps_the_direction_and_never_lengthens(values, radius):
    update = torch.tensor(values)
    length = norm(update)
    assert length == pytest.approx(math.hypot(*values), rel=1e-9)
    after = shrink(update, length, radius)
    assert after.isfinite().all()
    assert (after.abs() <= update.abs()).all()
    if length <= radius:
        assert after is update
    else:
        assert norm(after) <= radius * (1 + 1e-6) + 1e-40
        wanted = update.double() * (radius / length)
        assert torch.allclose(after.double(), wanted, rtol=1e-6, atol=1e-44)


def test_the_largest_numbers_are_shrunk_without_overflow():
    honest = [row / norm(row) for row in rows(3, d=1000)]
    huge = torch.full((1000,), -3e38)
    admitted = admit_proposals([huge, *honest], dimension=1000)
    bounded, radius = bound_updates(admitted, previous_radius=None)
    assert radius == pytest.approx(1.0, rel=1e-6)
    assert torch.allclose(bounded.valid[0], torch.full((1000,), -(1000**-0.5)), rtol=1e-5)
    assert admitted.valid[0][0] == huge[0]


def test_the_median_is_the_lower_of_the_middle_two():
    admitted = admit([on_an_axis(size) for size in (1, 2, 3, 4)])
    assert bound_updates(admitted, previous_radius=None)[1] == 2.0
    assert bound_updates(admitted, previous_radius=10.0)[1] == 10.0 / 1.5
    assert bound_updates(admitted, previous_radius=1.0)[1] == 1.5
    assert bound_updates(admitted, previous_radius=1.9)[1] == 2.0


def test_a_radius_of_zero_shrinks_to_nothing_and_is_forgotten():
    silent = admit([on_an_axis(size) for size in (0, 0, 5)])
    bounded, radius = bound_updates(silent, previous_radius=None)
    assert radius == 0.0
    assert torch.equal(bounded.stacked(), torch.zeros(3, D))
    assert bound_updates(admit([on_an_axis(5)]), previous_radius=radius)[1] == 5.0


def test_without_proposals_the_radius_stays():
    bounded, radius = bound_updates(admit([None]), previous_radius=3.0)
    assert (dict(bounded.valid), radius) == ({}, 3.0)
    assert bounded.faults == {0: "missing"}


@both_rules
def test_the_update_is_the_mean_of_the_union_consensus(rule):
    sent_updates = rows(3)
    admitted = admit([None, *sent_updates])
    ballots = [(7, [1, 2, 3]), (8, [3, 2, 1]), (9, [1, 2, 3])]
    decision = conclude_vote(admitted, ballots, voters=[7, 8, 9], terms=TERMS[rule])
    assert decision.outcome is Outcome.STEP
    assert decision.selection == (1, 2, 3)
    assert torch.allclose(decision.update, torch.stack(sent_updates).mean(0))
    assert {v: b.approved for v, b in decision.ballots.items()} == dict.fromkeys(
        (7, 8, 9), (1, 2, 3)
    )


def test_an_empty_union_consensus_makes_no_step():
    admitted = admit(rows(4))
    decision = conclude_vote(
        admitted, [(0, [0]), (1, [1]), (2, [])], voters=[0, 1, 2], terms=TERMS["holdout-1"]
    )
    assert decision.outcome is Outcome.EMPTY_SELECTION
    assert decision.update is None
    assert decision.selection == ()
    assert decision.quorum == 2


@pytest.mark.parametrize(
    ("kind", "drawn", "valid", "expected"),
    [
        (Quorum.MAJORITY, 30, 30, 16),
        (Quorum.MAJORITY, 30, 5, 16),
        (Quorum.MAJORITY, 7, 7, 4),
        (Quorum.MAJORITY, 1, 0, 1),
        (Quorum.PAPER, 30, 30, 21),
        (Quorum.PAPER, 30, 20, 14),
        (Quorum.PAPER, 30, 1, 1),
        (Quorum.PAPER, 30, 0, 1),
    ],
)
def test_the_quorum_counts_voters_drawn_or_valid_ballots(kind, drawn, valid, expected):
    terms = Terms(THIRD, quorum_kind=kind)
    admitted = admit(rows(3))
    sent = [(v, [0, 1, 2]) for v in range(valid)]
    assert terms.quorum(drawn=drawn, valid=valid) == expected
    decision = conclude_vote(admitted, sent, voters=range(drawn), terms=terms)
    assert decision.quorum == expected
    assert (decision.outcome is Outcome.STEP) == (valid >= expected)


@both_rules
def test_only_the_first_ballot_of_a_voter_counts(rule):
    admitted = admit(rows(4))
    full = [0, 1, 2]
    decision = conclude_vote(
        admitted,
        [(0, full), (0, [1, 2, 3]), (1, ["x"] * 3), (1, full), (2, full)],
        voters=[0, 1, 2],
        terms=TERMS[rule],
    )
    assert decision.ballot_faults == ["second", "malformed", "second"]
    assert list(decision.ballots) == [0, 2]
    assert decision.selection == (0, 1, 2)


@both_rules
def test_a_voter_that_was_not_drawn_is_not_heard(rule):
    admitted = admit(rows(3))
    sent = [(v, [0, 1, 2]) for v in range(10, 20)]
    decision = conclude_vote(admitted, [*sent, (0, [0, 1, 2])], voters=[0, 1], terms=TERMS[rule])
    assert count(decision.ballot_faults) == {"missing": 1, "not-drawn": 10}
    assert list(decision.ballots) == [0]
    # The silent one is missing from the majority, but not from the paper's valid ballots.
    assert decision.outcome is (
        Outcome.STEP if rule == "holdout-paper" else Outcome.EMPTY_SELECTION
    )


@both_rules
@pytest.mark.parametrize("ballot", [None, 3, "012", {0, 1, 2}, [0, 1, 1.0], [True, 1, 2], object()])
def test_what_is_no_ballot_is_void(rule, ballot):
    decision = conclude_vote(admit(rows(4)), [(0, ballot)], voters=[0], terms=TERMS[rule])
    assert decision.ballot_faults == ["malformed"]
    assert decision.update is None


def test_without_assumed_liars_the_paper_is_plain_averaging():
    updates = rows(5)
    terms = Terms.paper(Fraction(0))
    sent = [(v, list(range(5))) for v in range(3)]
    decision = conclude_vote(admit(updates), sent, voters=range(3), terms=terms)
    assert torch.equal(decision.update, RULES["mean"](torch.stack(updates), f=0))


def test_deciding_changes_nothing_that_was_sent():
    sent = rows(5)
    before = [row.clone() for row in sent]
    admitted = admit(sent)
    bounded, _ = bound_updates(admitted, previous_radius=1e-3)
    conclude_vote(bounded, [(0, [0, 1, 2, 3])], voters=[0], terms=TERMS["holdout-1"])
    apply_rule(AdmittedProposals(admitted.valid, {}), RULES["median"], f=1)
    assert all(torch.equal(a, b) for a, b in zip(sent, before, strict=True))


# --------------------------------------------------------------------------------- joint ballots


def jointly(updates, sent, *, voters=range(5), memory=JointMemory()):  # noqa: B008
    return conclude_joint(
        admit(updates), sent, voters=list(voters), terms=Terms.joint(THIRD), memory=memory
    )


@pytest.mark.parametrize("name", RUBBISH)
def test_what_is_no_joint_ballot_is_void_and_counted(name):
    message, fault = RUBBISH[name]
    fault = "malformed" if fault == "misshapen" else fault
    good = torch.ones(D)
    sent = [(0, good), (1, message), (2, good), (9, good), (2, -good)]
    decision, memory = jointly(rows(4), sent, voters=range(3))
    assert count(decision.ballot_faults) == {fault: 1, "not-drawn": 1, "second": 1}
    assert decision.outcome is Outcome.STEP
    assert decision.voter_weights == {0: pytest.approx(0.5), 2: pytest.approx(0.5)}
    assert torch.allclose(memory.direction, good / good.norm())


@pytest.mark.parametrize("name", GOOD)
def test_any_vector_of_finite_floats_is_a_joint_ballot(name):
    decision, memory = jointly(rows(4), [(0, GOOD[name])], voters=[0])
    assert decision.void_ballots == ()
    assert torch.allclose(memory.direction, torch.ones(D) / D**0.5)


def test_a_joint_ballot_stands_for_at_most_k_proposals_that_it_agrees_with():
    e = torch.eye(D)
    updates = [e[0], -e[0], e[1], 2 * e[0] + e[1], e[2], -e[1]]
    decision, _ = jointly(updates, [(0, e[0]), (1, e[0] + e[1] + e[2]), (2, -e[3])])
    assert decision.approve_count == math.ceil(Fraction(67, 100) * 6) == 5
    found = {voter: ballot.approved for voter, ballot in decision.ballots.items()}
    assert found == {0: (0, 3), 1: (0, 2, 3, 4), 2: ()}
    assert count(decision.ballot_faults) == {"missing": 2}
    assert decision.quorum is None


def test_without_a_proposal_a_joint_vote_makes_no_step_and_keeps_what_it_knows():
    memory = JointMemory(radius=2.0, message_radius=3.0, direction=torch.ones(D))
    decision, after = jointly([None, "x"], [(0, torch.ones(D))], memory=memory)
    assert (decision.outcome, decision.update) == (Outcome.NO_PROPOSALS, None)
    assert after is memory


def test_without_a_ballot_the_remembered_direction_judges():
    e = torch.eye(D)
    updates = [e[0], -e[0], e[0] + e[1], e[0] + e[2]]
    memory = JointMemory(radius=1.0, message_radius=1.0, direction=e[0])
    decision, after = jointly(updates, [], memory=memory)
    assert decision.selection == (0, 2, 3)
    assert decision.voter_weights == {}
    assert torch.equal(after.direction, e[0])


def test_a_joint_vote_changes_nothing_that_was_sent():
    sent, messages = rows(5), [2 * row for row in rows(5)]
    before = [row.clone() for row in (*sent, *messages)]
    kept = JointMemory(radius=1e-3, message_radius=1e-3, direction=torch.ones(D))
    jointly(sent, list(enumerate(messages)), memory=kept)
    assert all(torch.equal(a, b) for a, b in zip((*sent, *messages), before, strict=True))
    assert torch.equal(kept.direction, torch.ones(D))
