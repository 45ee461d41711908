from dataclasses import replace

import pytest
from tests.agreement.rig import Network, other

from holdout.agreement.codec import BOTTOM
from holdout.agreement.draws import Draws, slot
from holdout.agreement.events import MessageFault
from holdout.agreement.messages import Evidence, Kind, VoteStep
from holdout.agreement.params import Mode, RoleDraw
from holdout.agreement.sortition import Role, drawn
from holdout.agreement.wire import Unverified, decode
from holdout.errors import InvalidMessage

SEVERAL = 24
"""Workers enough for some to be drawn and some not, with real keys."""

WRONG = bytes(64)


def with_envelope(message, **changes):
    return replace(message, envelope=replace(message.envelope, **changes))


def signed_messages(net, worker):
    update = net.update(worker)
    return {
        Kind.UPDATE: update,
        Kind.BALLOT: net.ballot(worker, [update]),
        Kind.LEAD: net.lead(worker, period=2),
        Kind.VOTE: net.vote(worker, VoteStep.REDO, period=2),
    }


def drawn_and_not(net, role, period=0, step=0):
    """A worker that is drawn for the role, and one that is not."""
    draws = net.draws
    held = [
        worker
        for worker in range(net.params.workers)
        if draws.own_proof(net.keys.signer(worker), role, worker, period, step) is not None
    ]
    rest = [worker for worker in range(net.params.workers) if worker not in held]
    return held[0], rest[0]


@pytest.fixture(scope="module")
def real():
    """Real keys, and every role drawn secretly."""
    third = SEVERAL // 3
    return Network(
        SEVERAL,
        real=True,
        proposers=third,
        voters=third,
        leaders=third,
        mode=Mode.SELF,
        committee=third,
        quorum=2,
    )


# ------------------------------------------------------------------------------- single messages


@pytest.mark.parametrize("kind", [Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE])
class TestSignedMessages:
    def test_a_good_one_passes_as_it_is(self, kind):
        net = Network()
        message = signed_messages(net, 3)[kind]
        assert net.draws.verify(decode(message.envelope.encode())) == message

    def test_one_of_another_network_is_refused(self, kind):
        net = Network()
        stranger = Network(rates=(0.125,))
        assert net.draws.fault(signed_messages(stranger, 3)[kind]) is MessageFault.WRONG_CHAIN

    def test_one_of_somebody_outside_the_roster_is_refused(self, kind):
        net = Network(7)
        assert net.draws.fault(signed_messages(net, 7)[kind]) is MessageFault.UNKNOWN_WORKER

    def test_one_of_another_round_is_refused(self, kind):
        net = Network()
        draws = net.draws
        message = signed_messages(net.with_tip(round=2), 3)[kind]
        assert draws.fault(message) is MessageFault.STALE

    def test_a_wrong_signature_is_refused(self, kind):
        net = Network()
        message = signed_messages(net, 3)[kind]
        assert (
            net.draws.fault(with_envelope(message, signature=WRONG)) is MessageFault.WRONG_SIGNATURE
        )

    def test_somebody_elses_signature_is_refused(self, kind):
        net = Network()
        message = signed_messages(net, 3)[kind]
        forged = net.keys.signer(4).sign(message.envelope.signed)
        assert (
            net.draws.fault(with_envelope(message, signature=forged))
            is MessageFault.WRONG_SIGNATURE
        )

    def test_a_real_signature_over_other_bytes_is_refused(self, kind, real):
        message, another = signed_messages(real, 3)[kind], signed_messages(real, 4)[kind]
        forged = with_envelope(message, signature=another.envelope.signature)
        assert real.draws.fault(forged) is MessageFault.WRONG_SIGNATURE


ROLES = [
    (Kind.UPDATE, Role.PROPOSER, 0, 0),
    (Kind.BALLOT, Role.VOTER, 0, 0),
    (Kind.LEAD, Role.LEADER, 2, 0),
    (Kind.VOTE, Role.COMMITTEE, 2, VoteStep.REDO),
]


@pytest.mark.parametrize(("kind", "role", "period", "step"), ROLES, ids=str)
class TestCredentials:
    def test_whoever_is_drawn_passes_and_whoever_is_not_does_not(
        self, real, kind, role, period, step
    ):
        held, rest = drawn_and_not(real, role, period, step)
        assert real.draws.fault(signed_messages(real, held)[kind]) is None
        assert real.draws.fault(signed_messages(real, rest)[kind]) is MessageFault.NOT_DRAWN

    def test_a_proof_for_another_role_period_or_step_does_not_help(
        self, real, kind, role, period, step
    ):
        held, _ = drawn_and_not(real, role, period, step)
        message = signed_messages(real, held)[kind]
        wrong = [
            real.proof(held, other_role, other_period, other_step)
            for _, other_role, other_period, other_step in ROLES
            if other_role is not role
        ]
        if role is Role.LEADER:
            wrong.append(real.proof(held, role, 1))
        if role is Role.COMMITTEE:
            wrong += [real.proof(held, role, 1, step), real.proof(held, role, 2, VoteStep.DOWN)]
        assert message.envelope.proof not in wrong
        for proof in wrong:
            assert real.draws.fault(with_envelope(message, proof=proof)) is MessageFault.NOT_DRAWN

    def test_somebody_elses_proof_a_damaged_one_or_none_does_not_help(
        self, real, kind, role, period, step
    ):
        held, rest = drawn_and_not(real, role, period, step)
        message = signed_messages(real, held)[kind]
        good = message.envelope.proof
        damaged = bytes([good[0] ^ 1]) + good[1:]
        for proof in (real.proof(rest, role, period, step), damaged, good[:-1], bytes(80), b""):
            assert real.draws.fault(with_envelope(message, proof=proof)) is MessageFault.NOT_DRAWN

    def test_a_proof_of_another_seed_does_not_help(self, real, kind, role, period, step):
        held, _ = drawn_and_not(real, role, period, step)
        draws = Draws(
            real.genesis, real.verifier, round_number=real.tip.round, seed=other(real.seed_in)
        )
        assert draws.fault(signed_messages(real, held)[kind]) is MessageFault.NOT_DRAWN


@pytest.mark.parametrize(("role", "period", "step"), [row[1:] for row in ROLES], ids=str)
def test_the_own_proof_is_the_one_that_others_accept(real, role, period, step):
    draws = real.draws
    for worker in range(SEVERAL):
        signer = real.keys.signer(worker)
        proof = draws.own_proof(signer, role, worker, period, step)
        spoken = real.proof(worker, role, period, step)
        out = draws.output(role, worker, spoken, period, step)
        assert (proof is None) == (out is None)
        if proof is not None:
            assert proof == spoken
            assert drawn(out, worker, SEVERAL // 3, SEVERAL)


def test_a_credential_is_checked_once_and_a_bad_one_does_not_spoil_the_good_one():
    net = Network(leaders=3)
    draws = net.draws
    held, _ = drawn_and_not(net, Role.LEADER)
    lead = net.lead(held)
    assert draws.fault(with_envelope(lead, proof=b"wrong")) is MessageFault.NOT_DRAWN
    assert draws.fault(lead) is None
    before = net.verifier.vrf_checks
    assert draws.fault(lead) is None
    assert net.verifier.vrf_checks == before


def test_leaders_are_ranked_by_their_output_not_by_their_number():
    net = Network(30)
    draws = net.draws
    ranked = sorted(range(30), key=lambda worker: draws.priority(net.lead(worker)))
    later = sorted(range(30), key=lambda worker: draws.priority(net.lead(worker, period=1)))
    assert sorted(ranked) == sorted(later) == list(range(30))
    assert ranked != later
    assert ranked != sorted(ranked)


# ---------------------------------------------------------------------------------- who is drawn


def test_where_everybody_holds_a_role_no_proof_is_needed_and_none_is_taken():
    net = Network(7)
    draws = net.draws
    for role in (Role.PROPOSER, Role.VOTER, Role.COMMITTEE):
        assert draws.expected(role) == tuple(range(7))
        assert draws.own_proof(net.keys.signer(2), role, 2) == b""
        assert draws.output(role, 2, b"") == b""
        assert draws.output(role, 2, b"x") is None
    # Leaders are ranked by their output, so they prove it even where everybody leads.
    assert draws.expected(Role.LEADER) == tuple(range(7))
    assert draws.output(Role.LEADER, 2, b"") != b""


def test_roles_of_a_fixed_number_are_drawn_publicly():
    net = Network(20, proposers=5, voters=6, role_draw=RoleDraw.FIXED)
    draws = net.draws
    proposers, voters = draws.expected(Role.PROPOSER), draws.expected(Role.VOTER)
    assert (len(proposers), len(voters)) == (5, 6)
    assert proposers != voters[:5]
    for worker in range(20):
        assert (draws.fault(net.update(worker)) is None) == (worker in proposers)
        own = draws.own_proof(net.keys.signer(worker), Role.VOTER, worker)
        assert own == (b"" if worker in voters else None)
        ballot = with_envelope(net.ballot(worker, [net.update(proposers[0])]), proof=b"x")
        assert draws.fault(ballot) is MessageFault.NOT_DRAWN


def test_secret_roles_are_expected_of_nobody_in_particular():
    net = Network(20, proposers=5, voters=6, leaders=5, mode=Mode.SELF, committee=10, quorum=7)
    assert [net.draws.expected(role) for role in Role] == [None] * 4


def test_a_shuffled_committee_is_public_and_new_in_each_period():
    net = Network(20, mode=Mode.SHUFFLE, committee=8, quorum=6)
    draws = net.draws
    first, second = (draws.expected(Role.COMMITTEE, period) for period in (0, 1))
    assert len(first) == len(second) == 8
    assert first != second
    for worker in range(20):
        assert (draws.fault(net.vote(worker, VoteStep.SOFT)) is None) == (worker in first)
        assert (draws.fault(net.vote(worker, VoteStep.DOWN, BOTTOM, 1)) is None) == (
            worker in second
        )


# --------------------------------------------------------------------------------------- bundles


def committees():
    return {
        "all": Network(7),
        "shuffle": Network(20, mode=Mode.SHUFFLE, committee=8, quorum=6),
        "self": Network(24, mode=Mode.SELF, committee=12, quorum=6, real=True),
    }


@pytest.mark.parametrize("mode", ["all", "shuffle", "self"])
class TestBundles:
    def members(self, net, period=0, step=VoteStep.CERT):
        """Those drawn for a step, and one that is not, if there is one."""
        draws = net.draws
        listed = [
            worker
            for worker in range(net.params.workers)
            if draws.own_proof(net.keys.signer(worker), Role.COMMITTEE, worker, period, step)
            is not None
        ]
        rest = [worker for worker in range(net.params.workers) if worker not in listed]
        return listed, rest

    def verdict(self, net, bundle):
        return net.draws.verify_bundle(Unverified(bundle))

    def test_enough_members_make_one_and_one_fewer_does_not(self, mode):
        net = committees()[mode]
        listed, _ = self.members(net)
        quorum = net.params.quorum
        bundle = net.bundle(listed[:quorum], VoteStep.CERT)
        assert net.draws.verify_bundle(decode(bundle.encode())) == bundle
        few = net.bundle(listed[: quorum - 1], VoteStep.CERT)
        assert self.verdict(net, few) is MessageFault.NO_QUORUM
        assert self.verdict(net, net.bundle([], VoteStep.CERT)) is MessageFault.NO_QUORUM

    def test_a_vote_of_somebody_who_is_not_in_the_committee_spoils_it(self, mode):
        net = committees()[mode]
        listed, rest = self.members(net)
        chosen = sorted([*listed[: net.params.quorum - 1], *rest[:1]])
        found = self.verdict(net, net.bundle(chosen, VoteStep.CERT))
        assert found is (MessageFault.NOT_DRAWN if rest else MessageFault.NO_QUORUM)

    def test_a_wrong_signature_among_enough_good_ones_spoils_it(self, mode):
        net = committees()[mode]
        listed, _ = self.members(net)
        bundle = net.bundle(listed[: net.params.quorum], VoteStep.CERT)
        *good, last = bundle.marks
        for wrong in (WRONG, good[0].signature):
            marks = (*good, replace(last, signature=wrong))
            assert self.verdict(net, replace(bundle, marks=marks)) is MessageFault.WRONG_SIGNATURE

    @pytest.mark.parametrize(
        "change",
        [{"step": VoteStep.SOFT}, {"period": 1}, {"value": b"c" * 32}],
        ids=["step", "period", "value"],
    )
    def test_signatures_for_another_vote_do_not_count(self, mode, change):
        net = committees()[mode]
        listed, _ = self.members(net)
        bundle = net.bundle(listed[: net.params.quorum], VoteStep.CERT)
        assert self.verdict(net, replace(bundle, **change)) is MessageFault.WRONG_SIGNATURE

    def test_a_stranger_another_round_and_another_network_are_refused(self, mode):
        net = committees()[mode]
        n = net.params.workers
        listed, _ = self.members(net)
        bundle = net.bundle([*listed[: net.params.quorum - 1], n], VoteStep.CERT)
        assert self.verdict(net, bundle) is MessageFault.UNKNOWN_WORKER
        bundle = net.bundle(listed[: net.params.quorum], VoteStep.CERT)
        assert self.verdict(net, replace(bundle, round=2)) is MessageFault.STALE
        assert (
            self.verdict(net, replace(bundle, chain=other(net.chain))) is MessageFault.WRONG_CHAIN
        )

    def test_votes_seen_before_are_not_checked_again(self, mode):
        net = committees()[mode]
        listed, _ = self.members(net)
        bundle = net.bundle(listed[: net.params.quorum], VoteStep.CERT)
        votes = {vote.worker: vote for vote in (net.vote(w, VoteStep.CERT) for w in listed)}
        asked = []

        def seen(worker, signed, signature):
            asked.append(worker)
            envelope = votes[worker].envelope
            return (signed, signature) == (envelope.signed, envelope.signature)

        class Unasked:
            def signature(self, *_):
                raise AssertionError("a signature was checked twice")

            vrf = net.verifier.vrf

        draws = Draws(net.genesis, Unasked(), round_number=1, seed=net.seed_in)
        assert draws.verify_bundle(Unverified(bundle), seen) == bundle
        assert asked == listed[: net.params.quorum]


def test_a_bundle_that_names_a_worker_twice_is_no_message():
    # It never gets as far as the count: `decode` refuses it (test_wire).
    net = Network(7)
    bundle = net.bundle([1, 2, 3, 4, 5], VoteStep.CERT)
    twice = replace(bundle, marks=tuple(sorted([*bundle.marks[:4], bundle.marks[0]], key=str)))
    with pytest.raises(InvalidMessage, match="each worker once"):
        decode(twice.encode())


# -------------------------------------------------------------------------------------- evidence


def pairs(net, worker=3):
    update = net.update(worker)
    return {
        Kind.UPDATE: (update, net.update(worker, [0.0] * 6)),
        Kind.BALLOT: (net.ballot(worker, [update]), net.ballot(worker, [net.update(1)])),
        Kind.LEAD: (net.lead(worker), net.lead(worker, b"c" * 32)),
        Kind.VOTE: (net.vote(worker, VoteStep.SOFT), net.vote(worker, VoteStep.SOFT, b"c" * 32)),
    }


@pytest.mark.parametrize("kind", [Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE])
class TestEvidence:
    def test_two_versions_convict_their_sender(self, kind):
        net = Network()
        one, two = pairs(net)[kind]
        evidence = Evidence.of(one.envelope, two.envelope)
        found = net.draws.convict(decode(evidence.encode()).claim)
        assert found in (one, two)
        assert found.worker == 3

    def test_a_forged_version_convicts_nobody(self, kind):
        net = Network()
        one, two = pairs(net)[kind]
        for first, second in ((one, two), (two, one)):
            forged = replace(second.envelope, signature=WRONG)
            evidence = Evidence.of(first.envelope, forged)
            assert net.draws.convict(evidence) is MessageFault.WRONG_SIGNATURE

    def test_one_message_signed_twice_convicts_nobody(self, kind):
        net = Network()
        one, _ = pairs(net)[kind]
        again = replace(one.envelope, signature=WRONG)
        assert net.draws.convict(Evidence.of(one.envelope, again)) is MessageFault.NO_EVIDENCE

    def test_messages_of_two_workers_convict_nobody(self, kind):
        net = Network()
        one, two = pairs(net, 3)[kind][0], pairs(net, 4)[kind][1]
        evidence = Evidence.of(one.envelope, two.envelope)
        assert net.draws.convict(evidence) is MessageFault.NO_EVIDENCE

    def test_messages_of_another_round_convict_nobody_in_this_one(self, kind):
        net = Network()
        draws = net.draws
        one, two = pairs(net.with_tip(round=2))[kind]
        assert draws.convict(Evidence.of(one.envelope, two.envelope)) is MessageFault.STALE

    def test_bytes_that_hold_no_message_convict_nobody(self, kind):
        net = Network()
        one, _ = pairs(net)[kind]
        junk = replace(one.envelope, signed=b"junk")
        assert net.draws.convict(Evidence.of(one.envelope, junk)) is MessageFault.MALFORMED


def test_votes_in_two_periods_or_steps_are_no_offence():
    net = Network()
    vote = net.vote(3, VoteStep.SOFT)
    for another in (
        net.vote(3, VoteStep.SOFT, b"c" * 32, 1),
        net.vote(3, VoteStep.CERT, b"c" * 32),
    ):
        evidence = Evidence.of(vote.envelope, another.envelope)
        assert net.draws.convict(evidence) is MessageFault.NO_EVIDENCE
        assert slot(vote) != slot(another)


def test_a_worker_that_was_not_drawn_cannot_be_convicted_for_what_did_not_count(real):
    _, rest = drawn_and_not(real, Role.PROPOSER)
    one, two = pairs(real, rest)[Kind.UPDATE]
    assert real.draws.convict(Evidence.of(one.envelope, two.envelope)) is MessageFault.NOT_DRAWN
