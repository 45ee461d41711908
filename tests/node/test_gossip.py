"""Small messages: never twice, passed on once, pulled where they are missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_inbox import params

from holdout.agreement.codec import blob, items, u8, u64
from holdout.agreement.events import Urgency
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Kind
from holdout.agreement.params import Genesis
from holdout.node.gossip import GOODBYE, HAVE, HEARTBEAT, PULL, REMEMBERED_MAX, Gossip
from holdout.seeds import stream


class Wire:
    """Remembers what was sent."""

    def __init__(self):
        self.sent = []

    def broadcast(self, data, _urgency):
        self.sent.append((None, data))

    def send(self, peer, data, _urgency):
        self.sent.append((peer, data))

    def peers(self):
        return (1, 2, 3, 4)


KEYS = SimulatedKeys(0, 5)
GENESIS = Genesis(params(5), tuple(KEYS.signer(i).public for i in range(5)), b"n", b"b")
VOTE = bytes([Kind.VOTE]) + b"some vote"
QUESTION = bytes([Kind.GET_BLOCKS]) + b"some question"


def make(worker=0):
    wire = Wire()
    gossip = Gossip(
        GENESIS,
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


def test_what_one_lacks_is_pulled_from_the_other():
    one, one_wire = make(0)
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
    for tag in (HAVE, PULL, HEARTBEAT, GOODBYE):
        gossip.handle(peer, bytes([tag]) + data)
    assert gossip.heard == {}
    assert gossip.left == {}


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


def test_memory_is_bounded():
    gossip, _ = make()
    assert REMEMBERED_MAX < 1 << 20
    for number in range(1000):
        gossip.remember(bytes([Kind.VOTE]) + number.to_bytes(4, "big"))
    gossip.entered(5)
    assert gossip._seen == {}
    assert gossip._held == {}
