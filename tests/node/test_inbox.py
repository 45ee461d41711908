"""Limits and queues in front of everything else."""

import threading
import time
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement.events import Urgency
from holdout.agreement.messages import Kind
from holdout.agreement.params import Params
from holdout.ids import Digest
from holdout.node.network.queues import (
    Allowance,
    Dropped,
    Flood,
    Inbox,
    Meter,
    is_agreement,
    urgency_of,
)


def params(n):
    return Params(
        workers=n,
        f=Fraction(1, 4),
        quorum=2 * n // 3 + 1,
        proposers=n,
        voters=n,
        leaders=n,
        ballots_min=1,
        byzantine_voters_max=1,
        dimension=10,
        model_first=Digest(bytes(32)),
        rates=(0.1,),
    )


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_urgent_comes_first_and_senders_take_turns():
    inbox = Inbox([1, 2])
    for sender, kind in [
        (1, Kind.UPDATE),
        (1, Kind.BALLOT),
        (1, Kind.VOTE),
        (1, Kind.VOTE),
        (2, Kind.VOTE),
        (2, Kind.GET_BLOCKS),
        (2, Kind.LEAD),
    ]:
        assert inbox.put(sender, bytes([kind])) is None
    got = [inbox.get() for _ in range(7)]
    assert got == [
        (1, bytes([Kind.VOTE])),
        (2, bytes([Kind.VOTE])),
        (1, bytes([Kind.VOTE])),
        (2, bytes([Kind.LEAD])),
        (1, bytes([Kind.BALLOT])),
        (1, bytes([Kind.UPDATE])),
        (2, bytes([Kind.GET_BLOCKS])),
    ]
    assert inbox.get() is None


def test_a_sender_that_fills_its_queue_loses_its_own_messages_only():
    inbox = Inbox([1, 2], queue_max=3, held_seconds_max=0.0)
    votes = [bytes([Kind.VOTE, n]) for n in range(5)]
    assert [inbox.put(1, vote) for vote in votes] == [None] * 3 + [Dropped.QUEUE_FULL] * 2
    assert inbox.put(2, votes[0]) is None
    assert inbox.put(9, votes[0]) is Dropped.UNKNOWN_SENDER
    assert len(inbox) == 4


def test_a_reader_is_held_back_until_there_is_a_place():
    inbox = Inbox([1], queue_max=1, held_seconds_max=60.0)
    votes = [bytes([Kind.VOTE, n]) for n in range(2)]
    assert inbox.put(1, votes[0]) is None
    results = []
    reader = threading.Thread(target=lambda: results.append(inbox.put(1, votes[1])))
    reader.start()
    until(lambda: inbox.held == 1)
    assert results == []
    assert inbox.get() == (1, votes[0])
    reader.join(10)
    assert results == [None]
    assert inbox.get() == (1, votes[1])


def test_one_reader_at_a_time_is_held_and_not_for_what_is_repeated_anyway():
    inbox = Inbox([1, 2], queue_max=1, held_seconds_max=10.0)
    vote, question = bytes([Kind.VOTE]), bytes([Kind.GET_BLOCKS])
    for sender in (1, 2):
        for data in (vote, question):
            assert inbox.put(sender, data) is None
    assert inbox.put(1, question) is Dropped.QUEUE_FULL
    assert inbox.held == 0
    results = []
    reader = threading.Thread(target=lambda: results.append(inbox.put(1, vote)))
    reader.start()
    until(lambda: inbox.held == 1)
    # The other reader goes on, or votes of everybody would wait.
    assert inbox.put(2, vote) is Dropped.QUEUE_FULL
    assert inbox.held == 1
    assert results == []
    assert inbox.get() == (1, vote)
    reader.join(10)
    assert results == [None]


def test_a_reader_is_not_held_for_long():
    inbox = Inbox([1], queue_max=1, held_seconds_max=0.01)
    vote = bytes([Kind.VOTE])
    assert inbox.put(1, vote) is None
    # Nobody takes anything out, and it ends all the same.
    assert inbox.put(1, vote) is Dropped.QUEUE_FULL
    assert inbox.held == 1


def test_a_closed_inbox_holds_nobody():
    inbox = Inbox([1], queue_max=1, held_seconds_max=60.0)
    vote = bytes([Kind.VOTE])
    assert inbox.put(1, vote) is None
    reader = threading.Thread(target=inbox.put, args=(1, vote))
    reader.start()
    until(lambda: inbox.held == 1)
    inbox.close()
    reader.join(5)
    assert not reader.is_alive()
    assert inbox.put(1, vote) is Dropped.QUEUE_FULL


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(min_size=1, max_size=3))))
def test_nothing_is_lost_or_made_up_below_the_bound(items):
    inbox = Inbox([1, 2, 3])
    for sender, data in items:
        assert inbox.put(sender, data) is None
    got = []
    while (item := inbox.get()) is not None:
        got.append(item)
    assert sorted(got) == sorted(items)
    urgencies = [urgency_of(data) for _, data in got]
    assert urgencies == sorted(urgencies)


def test_empty_and_foreign_bytes_are_nobodys_vote():
    assert not is_agreement(b"")
    assert not is_agreement(b"\x80")
    assert urgency_of(b"") is Urgency.ANSWER
    assert urgency_of(b"\xff\xff") is Urgency.ANSWER


def test_an_allowance_is_used_up_and_comes_back():
    clock = Clock()
    meter = Meter(Allowance(100, 3, 1.0, 250, 10.0), clock)
    assert meter.fault(1, 101) is Dropped.OVERSIZE
    assert [meter.fault(1, 10) for _ in range(4)] == [None, None, None, Dropped.TOO_MANY]
    assert meter.fault(2, 10) is None
    clock.now = 2.0
    assert [meter.fault(1, 10) for _ in range(3)] == [None, None, Dropped.TOO_MANY]
    clock.now = 1000.0
    assert [meter.fault(1, 100) for _ in range(3)] == [None, None, Dropped.TOO_MANY]


@pytest.mark.parametrize("n", [4, 7, 20, 50, 100])
def test_honest_bursts_pass(n):
    """A round's messages at once, a retry of all of them, and fifty certificates."""
    clock = Clock()
    meter = Meter(Allowance.of(params(n)), clock)
    own = [300] * 4 + [200 + 36 * n] + [120 + 80 * n] * 4
    passed_on = [250] * (3 * 3 * 6) + [200 + 36 * n] * 9
    certificates = [1024 + 80 * n] * 50
    for size in own * 2 + passed_on + certificates:
        assert meter.fault(1, size) is None
    for _ in range(100):  # And a fast network, five rounds a second.
        clock.now += 0.2
        for size in own + passed_on:
            assert meter.fault(1, size) is None


def test_a_flooder_loses_its_allowance_for_longer_each_time():
    clock = Clock()
    meter = Meter(Allowance.of(params(4)), clock)
    lost = []
    for _ in range(7):
        while meter.fault(1, 100) is not Dropped.FLOODING:
            pass
        lost.append(meter.barred_for(1))
        assert meter.fault(2, 100) is None
        # Nothing is earned meanwhile.
        clock.now += lost[-1]
        assert meter.fault(1, 100) is Dropped.TOO_MANY
        clock.now += 0.1
        assert meter.fault(1, 100) is None
    assert lost == pytest.approx([4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0])
    assert meter.floods() == {1: Flood(7, 0.0)}


def test_a_flooder_is_caught_only_once_its_surplus_is_as_large_as_its_allowance():
    clock = Clock()
    rule = Allowance.of(params(4))
    meter = Meter(rule, clock)
    found = Counter(meter.fault(1, 100) for _ in range(2 * rule.messages_burst + 50))
    assert found == {
        None: rule.messages_burst,
        Dropped.TOO_MANY: rule.messages_burst,
        Dropped.FLOODING: 50,
    }


def test_who_was_caught_before_is_caught_the_sooner():
    clock = Clock()
    rule = Allowance.of(params(4))
    meter = Meter(rule, clock)
    needed = []
    for _ in range(7):
        surplus = 0
        while (found := meter.fault(1, 100)) is not Dropped.FLOODING:
            surplus += found is Dropped.TOO_MANY
        needed.append(surplus)
        clock.now += meter.barred_for(1)
    assert needed == [rule.messages_burst >> times for times in (0, 1, 2, 3, 4, 5, 5)]
    # A round's messages pass all the same, and after a while the past is forgotten.
    clock.now += 1.0
    assert all(meter.fault(1, 300) is None for _ in range(100))
    clock.now += 700.0
    surplus = 0
    while (found := meter.fault(1, 100)) is not Dropped.FLOODING:
        surplus += found is Dropped.TOO_MANY
    assert surplus == rule.messages_burst
    assert meter.floods()[1].times == 1


def test_a_surplus_is_forgotten_once_the_allowance_is_whole_again():
    clock = Clock()
    rule = Allowance.of(params(4))
    meter = Meter(rule, clock)
    for _ in range(5):
        for _ in range(2 * rule.messages_burst - 1):
            meter.fault(1, 100)
        assert not meter.keeps_to_its_allowance(1)
        clock.now += 2.5
        assert meter.keeps_to_its_allowance(1)
    assert meter.floods() == {}


def test_forged_messages_cost_more_of_the_allowance():
    rule = Allowance.of(params(4))
    meter = Meter(rule, Clock())
    passed = 0
    while meter.fault(1, 100) is None:
        meter.charge(1, 15)
        passed += 1
    assert passed == -(-rule.messages_burst // 16)


def test_nobody_is_held_back_for_a_sender_that_exceeds_its_allowance():
    inbox = Inbox([1], queue_max=1, held_seconds_max=30.0)
    assert inbox.put(1, b"\x04") is None
    assert inbox.put(1, b"\x04", may_hold=False) is Dropped.QUEUE_FULL
    assert inbox.held == 0
