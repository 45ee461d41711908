"""The checkers can fail: each invariant is broken on purpose and seen; and they count right."""

import struct
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.scripted import corrupt_with, forger

from holdout.agreement import aggregate, counting, messages
from holdout.agreement.blocks import read_block
from holdout.agreement.codec import BOTTOM
from holdout.agreement.draws import Draws
from holdout.agreement.events import Commit, Send, Urgency
from holdout.agreement.headers import read_header
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Envelope, Kind, VoteStep
from holdout.agreement.params import Mode, RoleDraw, TallyRule
from holdout.agreement.sortition import Role, genesis_seeds
from holdout.agreement.wire import decode
from holdout.ids import Digest
from holdout.simulator import checkers_blocks
from holdout.simulator.adversaries import Liar
from holdout.simulator.adversaries_agreement import BadBlock
from holdout.simulator.checkers import Checker, weigh
from holdout.simulator.checkers_blocks import Chain, next_model, passing_updates, tree_norm
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import SECOND, FaultKind, RunType
from holdout.simulator.network import Cut, mask
from holdout.simulator.trial import TIMING, Trial, run_trial

SOFT, CERT, LATE, REDO, DOWN = VoteStep
V, W = Digest(b"v" * 32), Digest(b"w" * 32)


# -- counting votes ------------------------------------------------------------------------------


class Court:
    """A checker before which made-up workers say what a test puts into their mouths."""

    def __init__(self, n=4, liars=(3,)):
        self.keys = SimulatedKeys(0, n)
        self.genesis = found(usual_params(n, Fraction(1, 4)), self.keys, 0)
        self.checker = Checker(self.genesis)
        cluster = SimpleNamespace(
            keys=self.keys,
            decode=decode,
            agenda=SimpleNamespace(now=0),
            nodes=[],
            note=lambda worker, text: self.noted.append((worker, text)),
        )
        self.noted = []
        self.checker.attach(cluster, liars)

    def say(self, worker, part, kind=Kind.VOTE, *, durable=True):
        data = Envelope(kind, part, self.keys.signer(worker).sign(part)).encode()
        safety = b"..." + part + b"..." if durable else b"..."
        self.checker.sent(SimpleNamespace(index=worker, disk=SimpleNamespace(safety=safety)), data)

    def vote(self, worker, step, value, period=0, **options):
        part = messages.vote_part(self.genesis.chain, 1, period, step, worker, value)
        self.say(worker, part, **options)

    def votes(self, step, value, *workers, period=0):
        for worker in workers:
            self.vote(worker, step, value, period)

    @property
    def broken(self):
        return {violation.invariant for violation in self.checker.violations}


def test_an_ordinary_round_breaks_nothing():
    court = Court()
    court.votes(SOFT, V, 0, 1, 2)
    court.votes(CERT, V, 0, 1, 2)
    assert court.broken == set()


def test_i3_two_soft_values_that_could_both_have_a_quorum():
    court = Court(7, liars=(5, 6))
    court.votes(SOFT, V, 0, 1, 2)
    court.votes(SOFT, W, 3, 4)
    assert court.broken == set()
    court.vote(0, SOFT, W)
    assert court.broken == {"I3", "I5"}


def test_i2_two_certificates_in_different_periods():
    court = Court()
    court.votes(CERT, V, 0, 1)
    court.votes(CERT, W, 1, 2, period=3)
    assert "I2" in court.broken


def test_i2_does_not_need_the_liars_to_vote():
    court = Court(liars=())
    court.votes(CERT, V, 0, 1)
    court.votes(CERT, W, 1, 2, period=3)
    assert court.broken == set()


def test_i7_a_period_voted_down_after_a_certificate():
    court = Court()
    court.votes(CERT, V, 0, 1)
    court.votes(DOWN, BOTTOM, 0, 2)
    assert court.broken == {"I7"}


def test_i7_in_a_later_period_too_and_in_any_order():
    court = Court()
    court.votes(REDO, W, 1, 2, period=2)
    court.votes(CERT, V, 0, 1)
    assert court.broken == {"I7"}


def test_i7_says_nothing_about_earlier_periods_nor_about_the_same_value():
    court = Court()
    court.votes(DOWN, BOTTOM, 0, 2)
    court.votes(CERT, V, 0, 1, period=1)
    court.votes(LATE, V, 0, 1, period=1)
    court.votes(REDO, V, 0, 1, period=2)
    assert court.broken == set()


def test_i10_two_values_carried_on():
    court = Court()
    court.votes(LATE, V, 0, 1)
    court.votes(REDO, W, 1, 2)
    assert court.broken == {"I10"}


def test_late_and_redo_are_not_added_up():
    court = Court()
    court.vote(0, LATE, V)
    court.vote(1, REDO, W)
    court.vote(2, REDO, V)
    assert court.broken == set()


def test_i5_two_different_messages_for_one_slot():
    court = Court()
    court.vote(0, SOFT, V)
    court.vote(0, SOFT, V)
    assert court.broken == set()
    court.vote(0, SOFT, W)
    assert court.broken == {"I5"}


@pytest.mark.parametrize("kind", [Kind.UPDATE, Kind.BALLOT, Kind.LEAD])
def test_i5_watches_every_kind_of_message(kind):
    court = Court()
    chain = court.genesis.chain
    for value in (V, W):
        part = {
            Kind.UPDATE: lambda v: messages.update_part(chain, 1, 0, V, v, 16),
            Kind.BALLOT: lambda v: messages.ballot_part(chain, 1, 0, V, (messages.Entry(0, v),)),
            Kind.LEAD: lambda v: messages.lead_part(chain, 1, 0, 0, 0, v),
        }[kind](value)
        court.say(0, part, kind)
    assert court.broken == {"I5"}


def test_i6_a_vote_that_leaves_before_it_is_durable():
    court = Court()
    court.vote(0, SOFT, V, durable=False)
    assert court.broken == {"I6"}


def test_i6_a_restart_that_has_forgotten_a_vote_or_a_round():
    court = Court()
    court.vote(0, SOFT, V)
    disk = SimpleNamespace(safety=b"", finished=[])
    court.checker.restarted(SimpleNamespace(index=0, disk=disk, behaviour=None, commits={}))
    assert court.broken == {"I6"}
    other = Court()
    node = SimpleNamespace(index=0, disk=disk, behaviour=None, commits={1: None})
    other.checker.restarted(node)
    assert other.broken == {"I6"}


def test_i1_another_block_or_model_in_a_decided_round():
    for other in (Commit(1, W, V, True, None), Commit(1, V, W, True, None)):
        court = Court()
        court.checker._decided[1] = Commit(1, V, V, True, None)
        court.checker.committed(SimpleNamespace(index=1), other)
        assert court.broken == {"I1"}


# -- a real chain, and a spoilt one ----------------------------------------------------------------


@dataclass
class History:
    """A finished round and everything to judge it by."""

    cluster: Cluster
    chain: Chain
    block: object
    blobs: dict = field(default_factory=dict)

    def faults(self, block):
        return self.chain.header_faults(block.header) + self.chain.body_faults(
            block, self.cluster.archived_or_held, ()
        )


@pytest.fixture(scope="module")
def history():
    keys = SimulatedKeys(0, 4)
    genesis = found(usual_params(4, Fraction(1, 4)), keys, 0)
    cluster = Cluster(genesis, keys, 0, timing=TIMING)
    cluster.start()
    cluster.run(done=lambda c: c.all_committed(2))
    chain = Chain(genesis, keys.verifier())
    node = cluster.nodes[0]
    chain.headers[1] = read_header(node.disk.finished[0].header)
    block = read_block(node.memory.get(node.commits[2].value))
    cluster.archived_or_held = lambda digest: cluster.archived(digest) or node.memory.get(digest)
    return History(cluster, chain, block)


def test_a_good_block_has_no_faults(history):
    assert history.faults(history.block) == []


@pytest.mark.parametrize("kind", [kind for kind in BadBlock.kinds if "ballots" not in kind])
def test_i4_and_i8_every_objective_fault_of_a_block_is_seen(history, kind):
    node = history.cluster.nodes[history.block.header.leader]
    other = (node.index + 1) % 4
    liar = forger(kind)(node, [other])
    # The draft of round 2 goes on from round 1.
    finished, node.disk.finished = node.disk.finished, node.disk.finished[:1]
    forged = liar.forge(history.block)
    node.disk.finished = finished
    assert history.faults(forged)


def test_i8_a_leader_that_was_not_drawn_is_seen(history):
    class NobodyLeads(Chain):
        def drawn(self, number, role, worker, period=0, step=0):  # noqa: ARG002  # As there.
            return role != "L"

    chain = NobodyLeads(history.cluster.genesis, history.chain.verifier)
    chain.headers = history.chain.headers
    assert chain.header_faults(history.block.header) == ["its leader was not drawn"]


def test_the_support_of_liars_alone_is_seen(history):
    voters = [ballot.worker for ballot in history.block.ballots]
    params = replace(history.cluster.genesis.params, byzantine_voters_max=len(voters))
    chain = Chain(replace(history.cluster.genesis, params=params), history.chain.verifier)
    block = replace(history.block)
    faults = Chain._outcome_faults(
        chain, block, history.cluster.archived_or_held, voters, history.chain.headers[1].radius
    )
    assert any("no honest voter" in fault for fault in faults)


def test_a_certificate_without_votes_is_seen():
    court = Court()
    certificate = messages.Bundle(court.genesis.chain, 1, 0, CERT, V, ())
    faults = court.checker._certificate_faults(1, V, certificate)
    assert faults == ["it has too few votes"]


# -- the second opinion equals the core's --------------------------------------------------------


@given(
    st.integers(1, 9).flatmap(
        lambda m: st.tuples(
            st.just(m), st.lists(st.sets(st.integers(0, m - 1), min_size=1), max_size=9)
        )
    ),
    st.fractions(0, Fraction(1, 2), max_denominator=12),
    st.integers(0, 3),
    st.sampled_from(TallyRule),
)
def test_both_tallies_agree(drawn, f, floor, rule):
    update_count, ballots = drawn
    params = replace(usual_params(4, Fraction(1, 4)), f=f, byzantine_voters_max=floor, tally=rule)
    updates = list(range(update_count))
    listed = [sorted(ballot) for ballot in ballots]
    counts = counting.tally(listed, updates=updates, params=params)
    slow = passing_updates(
        listed, updates, f=f, floor=floor, completion=rule is TallyRule.COMPLETION
    )
    assert [(count.proposer, count.approvals) for count in counts if count.passes] == slow


finite = st.floats(-1e6, 1e6, width=32, allow_subnormal=False).map(lambda x: x or 0.0)


@settings(max_examples=60)
@given(
    st.integers(1, 9).flatmap(
        lambda d: st.tuples(
            st.lists(finite, min_size=d, max_size=d),
            st.lists(st.lists(finite, min_size=d, max_size=d), min_size=1, max_size=6),
        )
    ),
    st.sampled_from([0.0, 0.5, 3.0, 1e5]),
    st.sampled_from([0.1, 1.0, 1e-3]),
)
def test_both_next_models_agree_to_the_bit(vectors, radius, rate):
    def pack(vector):
        return aggregate.canonical(np.array(vector, np.float32))

    model, payloads = pack(vectors[0]), [pack(vector) for vector in vectors[1]]
    fast = aggregate.combine(model, payloads, radius=radius, rate=rate)
    slow = next_model(model, payloads, radius, rate)
    assert slow is not None
    assert slow[0] == fast[0]
    assert struct.pack(">d", slow[1]) == struct.pack(">d", fast[1])
    assert tree_norm(vectors[0]) == aggregate.norm(struct.pack(f"<{len(vectors[0])}f", *vectors[0]))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("draw", RoleDraw)
def test_both_lotteries_agree(mode, draw):
    params = replace(
        usual_params(60, Fraction(1, 10), Mode.SHUFFLE),
        mode=mode,
        role_draw=draw,
        proposers=20,
        voters=30,
        leaders=10,
        committee=25,
        quorum=41 if mode is Mode.ALL else 17,
    )
    keys = SimulatedKeys(1, 60)
    genesis = found(params, keys, 1)
    chain = Chain(genesis, keys.verifier())
    draws = Draws(genesis, keys.verifier(), round_number=1, seed=genesis_seeds(genesis.chain)[0])
    for worker in range(60):
        for role, period, step in (("P", 0, 0), ("V", 0, 0), ("L", 2, 0), ("C", 1, 4)):
            core = draws.output(Role(role), worker, b"", period, step) is not None
            assert chain.drawn(1, role, worker, period, step) == core


def test_the_model_digest_is_the_cores():
    shapes = ((2, 3), (4,))
    assert checkers_blocks.model_digest(shapes, b"abc") == aggregate.model_digest(shapes, b"abc")


# -- memory, and too many liars --------------------------------------------------------------------


def test_i9_weighs_what_is_held_and_nothing_twice():
    shared = [1, 2, 3]
    assert weigh({"a": shared, "b": shared, "c": (4, [5])}) == 3 + 3 + 2 + 1


def test_i9_sees_a_player_that_keeps_too_much():
    keys = SimulatedKeys(0, 4)
    genesis = found(usual_params(4, Fraction(1, 4)), keys, 0)
    cluster = Cluster(genesis, keys, 0, timing=TIMING)
    checker = Checker(genesis)
    checker.attach(cluster, [])
    cluster.start()
    cluster.run(done=lambda c: c.all_committed(1))
    checker.finish()
    assert checker.violations == []
    cluster.nodes[0].player._models = {bytes([k % 256, k // 256]): None for k in range(9000)}
    checker.finish()
    assert {violation.invariant for violation in checker.violations} == {"I9"}


def test_i9_sees_it_while_it_lasts_not_only_at_the_end():
    keys = SimulatedKeys(0, 4)
    genesis = found(usual_params(4, Fraction(1, 4)), keys, 0)
    cluster = Cluster(genesis, keys, 0, timing=TIMING)
    checker = Checker(genesis)
    checker.attach(cluster, [])
    cluster.start()
    cluster.run(until=SECOND // 10)
    assert checker.violations == []
    cluster.nodes[0].player._models |= {bytes([k % 256, k // 256]): None for k in range(9000)}
    cluster.run(done=lambda c: c.all_committed(2))
    assert cluster.nodes[0].player.held() < 500
    assert {violation.invariant for violation in checker.violations} == {"I9"}


class TwoFaced(Liar):
    """Does not lead, and votes for whatever an honest worker votes for, in its ears only."""

    def outgoing(self, action, message):
        return () if isinstance(message, messages.Lead | messages.Vote) else (action,)

    def hear(self, peer, data):
        message = self.read(data)
        if not isinstance(message, messages.Vote) or message.worker != peer:
            return ()
        echo = self.vote(message.round, message.period, message.step, message.value)
        return () if peer in self.liars else (Send(peer, echo, Urgency.VOTE),)


def test_z23_with_more_liars_than_the_network_stands_something_breaks():
    keys = SimulatedKeys(0, 4)
    genesis = found(usual_params(4, Fraction(1, 4)), keys, 0)
    cluster = Cluster(genesis, keys, 0, timing=TIMING)
    checker = Checker(genesis)
    checker.attach(cluster, [2, 3])
    corrupt_with(cluster, [2, 3], TwoFaced)
    for pair in ((0, 1), (1, 0)):
        cluster.network.add_cut(Cut(mask(pair[:1]), mask(pair[1:])))
    cluster.start()
    cluster.run(until=20 * SECOND, done=lambda c: c.all_committed(1))
    broken = {violation.invariant for violation in checker.violations}
    assert {"I1", "I2", "I3"} <= broken


def test_more_liars_than_allowed_is_not_a_plan_of_the_simulator():
    trial = Trial(4, Fraction(1, 4), faults=(FaultKind.LIARS,), run_type=RunType.SAFETY)
    for seed in range(4):
        assert run_trial(trial, seed).violations == ()
