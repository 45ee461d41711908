"""Small messages: never twice, passed on once, pulled where they are missing."""

from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.node.test_inbox import params

from holdout.agreement.codec import blob, items, u8, u64
from holdout.agreement.events import Urgency
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Kind
from holdout.agreement.params import Genesis
from holdout.node.network.gossip import (
    GOODBYE,
    HAVE,
    HEARTBEAT,
    LISTED_MAX,
    NAME_BYTES,
    PULL,
    PULLED_MAX,
    VERSION,
    Gossip,
)
from holdout.node.network.queues import Allowance, Meter
from holdout.seeds import stream


class Wire:
    """Remembers what was sent."""

    def __init__(self, peers=(1, 2, 3, 4)):
        self.sent = []
        self._peers = peers

    def broadcast(self, data, _urgency):
        self.sent.append((None, data))

    def send(self, peer, data, _urgency):
        self.sent.append((peer, data))

    def peers(self):
        return self._peers


KEYS = SimulatedKeys(0, 5)
GENESIS = Genesis(params(5), tuple(KEYS.signer(i).public for i in range(5)), b"n", b"b")
VOTE = bytes([Kind.VOTE]) + b"some vote"
QUESTION = bytes([Kind.GET_BLOCKS]) + b"some question"


def make(worker=0, *, peers=(1, 2, 3, 4), genesis=GENESIS):
    wire = Wire(peers)
    gossip = Gossip(
        genesis,
        worker,
        signer=KEYS.signer(worker),
        verifier=KEYS.verifier(),
        transport=wire,
        words=stream(worker, "test"),
    )
    gossip.entered(1)
    return gossip, wire


def test_a_copy_is_known_for_two_rounds_and_no_longer():
    gossip, _ = make()
    assert not gossip.is_repeated(VOTE)
    gossip.remember(VOTE)
    assert gossip.is_repeated(VOTE)
    gossip.entered(2)
    assert gossip.is_repeated(VOTE)
    gossip.entered(3)
    assert not gossip.is_repeated(VOTE)


def test_questions_may_be_asked_again_and_certificates_come_again():
    """A node that is behind hears of rounds ahead before it can use them."""
    gossip, _ = make()
    for data in (QUESTION, bytes([Kind.FINISHED]) + b"a certificate"):
        gossip.remember(data)
        assert not gossip.is_repeated(data)


def test_a_message_is_passed_on_to_a_few_and_not_back():
    gossip, wire = make()
    gossip.relay(VOTE, Urgency.VOTE, 2)
    receivers = [peer for peer, _ in wire.sent]
    assert len(set(receivers)) == len(receivers) == 3
    assert 2 not in receivers
    assert 0 not in receivers


def a_vote(number):
    return bytes([Kind.VOTE]) + number.to_bytes(4, "big")


def name(data):
    return sha256(data).digest()[:NAME_BYTES]


def pull(*names):
    return u8(PULL) + blob(GENESIS.chain) + u64(1) + items(map(blob, names))


def test_what_one_lacks_is_pulled_from_the_other():
    one, one_wire = make(0, peers=(1,))
    other, other_wire = make(1)
    one.remember(VOTE)
    one.tell_what_is_held()
    ((_, have),) = one_wire.sent
    assert have[0] == HAVE
    other.handle(0, have)
    ((peer, pull),) = other_wire.sent
    assert (peer, pull[0]) == (0, PULL)
    one.handle(1, pull)
    assert one_wire.sent[-1] == (1, VOTE)
    # Who has it asks for nothing.
    other.remember(VOTE)
    other.handle(0, have)
    assert len(other_wire.sent) == 1


def test_a_message_that_is_pulled_many_times_is_sent_once():
    gossip, wire = make(peers=(1,))
    gossip.remember(VOTE)
    gossip.tell_what_is_held()
    wire.sent.clear()
    gossip.handle(1, pull(*[name(VOTE)] * PULLED_MAX))
    assert wire.sent == [(1, VOTE)]


def test_who_was_told_nothing_pulls_nothing():
    gossip, wire = make(peers=(1,))
    gossip.remember(VOTE)
    gossip.tell_what_is_held()
    wire.sent.clear()
    gossip.handle(2, pull(name(VOTE)))
    assert wire.sent == []


def test_a_peer_pulls_so_much_for_each_list_and_no_more():
    gossip, wire = make(peers=(1,))
    votes = [a_vote(number) for number in range(PULLED_MAX + 50)]
    for vote in votes:
        gossip.remember(vote)
    gossip.tell_what_is_held()
    gossip.tell_what_is_held()
    wire.sent.clear()
    for begin in (0, 100, 0):
        gossip.handle(1, pull(*map(name, votes[begin : begin + 200])))
    assert len(wire.sent) == PULLED_MAX
    gossip.tell_what_is_held()
    wire.sent.clear()
    gossip.handle(1, pull(name(votes[-1])))
    assert wire.sent == [(1, votes[-1])]


@pytest.mark.parametrize("n", [4, 5, 20, 40, 41, 100])
def test_a_full_list_is_within_what_its_receiver_lets_in(n):
    rules = replace(params(n), f=Fraction(0))
    genesis = Genesis(rules, GENESIS.roster[:1] * n, b"n", b"b")
    one, one_wire = make(0, peers=(1,), genesis=genesis)
    other, other_wire = make(1, genesis=genesis)
    for number in range(LISTED_MAX + 1):
        one.remember(a_vote(number))
    one.tell_what_is_held()
    ((_, data),) = one_wire.sent
    assert Meter(Allowance.of(rules), lambda: 0.0).fault(0, len(data)) is None
    # The newest stand in it, and as many as there is room for.
    assert name(a_vote(LISTED_MAX)) in data
    room = Allowance.of(rules).message_bytes_max - len(data)
    assert room < 4 + NAME_BYTES or name(a_vote(1)) in data
    other.handle(0, data)
    ((_, asked),) = other_wire.sent
    assert asked[0] == PULL
    assert other.rejected == {}


def test_what_is_held_of_another_round_is_no_topic():
    one, one_wire = make(0)
    other, other_wire = make(1)
    one.remember(VOTE)
    one.tell_what_is_held()
    other.entered(2)
    other.handle(0, one_wire.sent[0][1])
    assert other_wire.sent == []


def test_heartbeats_count_from_their_own_worker_only():
    one, wire = make(1)
    one.beat(0)
    data = wire.sent[0][1]
    other, _ = make(0)
    other.handle(1, data)
    assert other.heard_lately() == (1,)
    other.handle(2, data)
    assert other.heard_lately() == (1,)
    forged = data[:-1] + bytes([data[-1] ^ 1])
    other.handle(1, forged)
    assert other.rejected == {2: 1, 1: 1}


@given(st.binary(max_size=300), st.integers(1, 4))
def test_no_bytes_of_a_peer_raise(data, peer):
    gossip, _ = make()
    gossip.handle(peer, data)
    for tag in (HAVE, PULL, HEARTBEAT, GOODBYE, VERSION):
        gossip.handle(peer, bytes([tag]) + data)
    assert gossip.heard == {}
    assert gossip.left == {}
    assert gossip.spoken == {}


def test_who_says_goodbye_is_not_heard_any_more_until_it_comes_back():
    one, wire = make(1)
    one.entered(7)
    one.beat(0)
    one.goodbye(0)
    heartbeat, goodbye = (data for _, data in wire.sent)
    other, _ = make(0)
    other.handle(1, heartbeat)
    # Nobody says it for somebody else, and a heartbeat is no goodbye.
    other.handle(2, goodbye)
    other.handle(1, bytes([GOODBYE]) + heartbeat[1:])
    assert other.heard_lately() == (1,)
    assert other.left == {}
    other.handle(1, goodbye)
    assert other.heard_lately() == ()
    assert other.left == {1: 7}
    other.handle(1, heartbeat)
    assert other.heard_lately() == (1,)
    assert other.left == {}


@pytest.mark.parametrize("tag", [HAVE, PULL])
def test_lists_of_another_network_are_rejected(tag):
    gossip, wire = make()
    gossip.handle(3, u8(tag) + blob(bytes(32)) + u64(1) + items([blob(bytes(8))]))
    assert gossip.rejected == {3: 1}
    assert wire.sent == []


def test_memory_is_bounded_and_given_back(monkeypatch):
    monkeypatch.setattr("holdout.node.network.gossip.REMEMBERED_MAX", 10)
    gossip, _ = make()
    for number in range(20):
        gossip.remember(a_vote(number))
    assert len(gossip._seen) == 10
    assert len(gossip._held) == 10
    gossip.entered(5)
    assert gossip._seen == {}
    assert gossip._held == {}
