"""Zenoh on loopback, inside one process: who is heard, and who is not."""

import asyncio
import contextlib
import threading
import time

import pytest
import zenoh

from holdout.agreement.events import Urgency
from holdout.agreement.messages import Kind
from holdout.errors import UserError
from holdout.node.localnet.launcher import free_ports
from holdout.node.membership.identity import AUTHORITY, CERTIFICATE, TLS, Authority, create_identity
from holdout.node.network.queues import Allowance, Dropped, Inbox
from holdout.node.network.transport import WAITING_MAX, ZenohTransport
from holdout.node.network.zenoh_config import CHUNK_BYTES, Endpoint, Peer, zenoh_config

NAMES = ("alice", "bob", "carol")
NETWORK = "ab" * 32
VOTE = bytes([Kind.VOTE]) + b" a vote"


@pytest.fixture
def folder(tmp_path):
    authority = Authority.create(tmp_path / "authority", "test")
    for name in NAMES:
        request = create_identity(tmp_path / name, name).request
        (tmp_path / name / CERTIFICATE).write_bytes(authority.issue(request, name))
    return tmp_path


@pytest.fixture
def network(folder):
    """All members, connected."""
    members = make_members()
    with contextlib.ExitStack() as stack:
        transports = [connect(folder, members, index) for index in range(3)]
        for transport, _ in transports:
            stack.callback(transport.close)
        until(lambda: all(len(t.peers()) == 2 for t, _ in transports))
        time.sleep(0.2)  # What others listen to is known a moment after the connection.
        yield transports


def make_members():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    return [Peer(i, name, addresses[i]) for i, name in enumerate(NAMES)]


def endpoint(folder, members, index, keys=None):
    keys = folder / (keys or NAMES[index])
    return Endpoint(
        index,
        NAMES[index],
        members[index].address,
        certificate=keys / CERTIFICATE,
        key=keys / TLS,
        authority=folder / "authority" / AUTHORITY,
    )


def connect(folder, members, index, answer=None):
    inbox = Inbox([m.index for m in members if m.index != index])
    transport = ZenohTransport(
        NETWORK,
        endpoint(folder, members, index),
        [m for m in members if m.index != index],
        inbox=inbox,
        allowance=Allowance(1_000, 50, 1.0, 100_000, 1.0),
        serve=answer or (lambda asker, question: f"{index} to {asker}: {question}".encode()),
        wake=lambda: None,
    )
    return transport, inbox


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def received(inbox, count):
    until(lambda: len(inbox) >= count)
    return [inbox.get() for _ in range(len(inbox))]


class StuckSession:
    """A Zenoh whose connection to member 1 takes nothing, so that whoever asks it waits."""

    def __init__(self):
        self.stuck = threading.Event()
        self.freed = threading.Event()

    def get(self, key, callback, **_):
        if "/1/blob/" in key:
            self.stuck.set()
            self.freed.wait(5)
        callback.drop()

    def declare_subscriber(self, *_):
        pass

    def declare_queryable(self, *_):
        pass

    def close(self):
        self.freed.set()


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """Alice, and the session behind her."""
    session = StuckSession()
    monkeypatch.setattr(zenoh, "open", lambda _: session)
    transport, _ = connect(tmp_path, make_members(), 0)
    yield transport, session
    transport.close()


def test_a_member_that_does_not_read_makes_nobody_wait_but_who_asks_it(stuck):
    alice, session = stuck

    async def run():
        frozen = asyncio.create_task(alice.request(1, "1/ab/0", 20.0))
        await asyncio.to_thread(session.stuck.wait, 10)
        # The loop goes on, and other members are asked.
        assert await alice.request(2, "1/ab/0", 20.0) is None
        assert not frozen.done()
        # Nor does it matter how much there is to ask the one that does not read.
        more = [alice.request(1, "1/ab/0", -0.99) for _ in range(100)]
        assert await asyncio.gather(*more) == [None] * 100
        frozen.cancel()

    asyncio.run(run())
    assert not session.freed.is_set()


def test_a_zenoh_that_cannot_close_in_time_does_not_keep_the_node_from_ending(stuck):
    alice, session = stuck
    closing = []

    def close():
        closing.append(session)
        raise zenoh.ZError("close operation timed out")

    session.close = close
    alice.close()
    assert closing == [session]


class Question:
    """A query as Zenoh hands it over."""

    def __init__(self, key):
        self.key_expr = key
        self.dropped = threading.Event()
        self.answer = None

    def reply(self, _key, data):
        self.answer = data

    def drop(self):
        self.dropped.set()


@pytest.mark.parametrize(
    ("rest", "counted"),
    [
        ("0/blob/1", (1, Dropped.MALFORMED)),
        ("0/blob/1/", (1, Dropped.MALFORMED)),
        ("0/blob", (0, Dropped.UNKNOWN_SENDER)),
        ("0/blob/9/1/ab/0", (0, Dropped.UNKNOWN_SENDER)),
        ("0/blob/*/1/ab/0", (0, Dropped.UNKNOWN_SENDER)),
    ],
)
def test_a_question_of_a_strange_shape_is_counted_and_dropped(stuck, rest, counted):
    alice, _ = stuck
    question = Question(f"holdout/{NETWORK[:16]}/{rest}")
    alice._on_query(question)
    assert question.dropped.is_set()
    assert question.answer is None
    assert alice.dropped == {counted: 1}
    good = Question(f"holdout/{NETWORK[:16]}/0/blob/1/1/ab/0")
    alice._on_query(good)
    assert good.dropped.wait(10)
    assert good.answer == b"0 to 1: 1/ab/0"


@pytest.mark.soak  # It measures time, which a busy machine has too little of.
def test_who_asks_among_the_votes_and_does_not_read_holds_no_vote_up(folder, capfd):
    """Zenoh answers as urgently as it is asked, and votes would wait for such an answer."""
    members = make_members()
    prefix = f"holdout/{NETWORK[:16]}"
    reading = threading.Event()
    with contextlib.ExitStack() as stack:
        alice, _ = connect(folder, members, 0, answer=lambda *_: bytes(CHUNK_BYTES))
        stack.callback(alice.close)
        bob = stack.enter_context(
            zenoh.open(zenoh_config(prefix, endpoint(folder, members, 1), members[:1]))
        )
        stack.callback(reading.set)
        bob.declare_subscriber(f"{prefix}/*/all", zenoh.handlers.Callback(lambda _: None))
        until(lambda: alice.peers() == (1,))
        time.sleep(0.3)
        for number in range(WAITING_MAX):
            bob.get(
                f"{prefix}/0/blob/1/1/ab/{number}",
                zenoh.handlers.Callback(lambda _: reading.wait(20), indirect=False),
                timeout=20.0,
                priority=zenoh.Priority.REAL_TIME,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )
        slowest = 0.0
        for _ in range(40):  # As long as Zenoh waits before it gives the connection up.
            began = time.monotonic()
            alice.broadcast(VOTE, Urgency.VOTE)
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.1)
        assert slowest < 1.5
        # They are what it waited for all the time.
        assert alice.sent["blob"] < WAITING_MAX * CHUNK_BYTES
    # Nor does each question cost a line of the log.
    assert "Overwriting" not in capfd.readouterr().out


@pytest.mark.slow
def test_members_hear_and_answer_each_other(network):
    (alice, _), (bob, bobs), (_, carols) = network
    alice.broadcast(VOTE, Urgency.VOTE)
    bob.send(2, VOTE, Urgency.BALLOT)
    assert received(bobs, 1) == [(0, VOTE)]
    assert sorted(received(carols, 2)) == [(0, VOTE), (1, VOTE)]
    assert network[0][1].get() is None
    answer = asyncio.run(alice.request(2, "1/ab/0", 5.0))
    assert answer == b"2 to 0: 1/ab/0"
    assert asyncio.run(alice.request(0, "1/ab/0", 1.0)) is None
    # Too large, and too many: dropped unread, counted, nobody else suffers.
    alice.broadcast(b"\x04" + bytes(2_000), Urgency.VOTE)
    until(lambda: network[2][0].dropped[0, Dropped.OVERSIZE] == 1)

    def too_many():
        # As many as the connection takes: more would be dropped on this side already.
        alice.broadcast(VOTE, Urgency.VOTE)
        return network[2][0].dropped[0, Dropped.TOO_MANY] >= 50

    until(too_many)
    bob.send(2, VOTE, Urgency.VOTE)
    heard = []
    until(lambda: heard.extend(received(carols, 0)) or (1, VOTE) in heard)


@pytest.mark.slow
def test_an_address_in_use_is_a_clear_refusal(folder):
    members = make_members()
    first, _ = connect(folder, members, 0)
    try:
        with pytest.raises(UserError, match="in use"):
            connect(folder, members, 0)
    finally:
        first.close()


@pytest.mark.slow
def test_nobody_writes_under_anothers_prefix_or_reads_what_is_not_for_it(folder):
    members = make_members()
    with contextlib.ExitStack() as stack:
        (alice, alices) = connect(folder, members, 0)
        stack.callback(alice.close)
        (carol, carols) = connect(folder, members, 2)
        stack.callback(carol.close)
        # Bob has a valid certificate and a client of his own making.
        config = zenoh_config(f"holdout/{NETWORK[:16]}", endpoint(folder, members, 1), members[::2])
        bob = stack.enter_context(zenoh.open(config))
        overheard = []
        bob.declare_subscriber(
            "holdout/**", zenoh.handlers.Callback(overheard.append, indirect=False)
        )
        until(lambda: alice.peers() == (1, 2) and carol.peers() == (0, 1))
        time.sleep(0.3)
        prefix = f"holdout/{NETWORK[:16]}"
        for key in ("2/all", "2/to/0", "0/all", "1/other"):
            bob.put(f"{prefix}/{key}", VOTE)
        bob.put("holdout/another/1/all", VOTE)
        bob.put(f"{prefix}/1/all", VOTE + b" own")
        assert received(alices, 1) == [(1, VOTE + b" own")]
        assert received(carols, 1) == [(1, VOTE + b" own")]
        # What Alice tells Carol alone is not for Bob, whatever he listens to.
        alice.send(2, VOTE, Urgency.VOTE)
        assert received(carols, 1) == [(0, VOTE)]
        time.sleep(0.3)
        assert [s for s in overheard if str(s.key_expr).endswith("/0/to/2")] == []
        # Nor may he answer in Carol's place.
        bob.declare_queryable(
            f"{prefix}/2/blob/**",
            zenoh.handlers.Callback(lambda q: (q.reply(q.key_expr, b"lie"), q.drop())),
        )
        time.sleep(0.3)
        assert asyncio.run(alice.request(2, "1/ab/0", 5.0)) == b"2 to 0: 1/ab/0"


@pytest.mark.slow
def test_a_restarted_member_is_heard_again(folder):
    members = make_members()
    with contextlib.ExitStack() as stack:
        nodes = {index: connect(folder, members, index) for index in range(3)}
        stack.callback(lambda: [transport.close() for transport, _ in nodes.values()])
        # Who is closed in the middle of a handshake may be taken for connected for a long time.
        until(lambda: all(len(transport.peers()) == 2 for transport, _ in nodes.values()))
        for index in (0, 2):
            nodes[index][0].close()
            nodes[index] = connect(folder, members, index)
            until(lambda: all(len(transport.peers()) == 2 for transport, _ in nodes.values()))
            time.sleep(0.3)
            nodes[1][0].broadcast(VOTE, Urgency.VOTE)
            assert (1, VOTE) in received(nodes[index][1], 1)
            nodes[index][0].broadcast(VOTE, Urgency.VOTE)
            assert (index, VOTE) in received(nodes[1][1], 1)
