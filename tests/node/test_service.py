"""The driver: order, durability, and nothing slow in the way of votes."""

import asyncio
import json
import time
from collections import Counter

import pytest
from tests.node.test_gossip import GENESIS, KEYS, VOTE, Wire, make

from holdout.agreement.events import (
    BlobKind,
    Broadcast,
    Combine,
    Commit,
    Compute,
    Entered,
    JobFailed,
    Judge,
    Judged,
    Keep,
    MessageFault,
    PayloadReady,
    Persist,
    Propose,
    Proposed,
    Received,
    Reject,
    SetTimer,
    Start,
    Timer,
    TimerFired,
    TimerKind,
    Urgency,
    Want,
)
from holdout.agreement.messages import Kind
from holdout.agreement.params import Timing
from holdout.agreement.waits import Waits
from holdout.errors import LearnerFailed, StoreError
from holdout.ids import Digest
from holdout.node.logs import Log
from holdout.node.network.blobs import Blobs, Fetcher
from holdout.node.network.gossip import GOODBYE, PULL, Gossip
from holdout.node.network.queues import Inbox
from holdout.node.runtime.measure import Spent
from holdout.node.runtime.service import STEPS_IN_A_ROW, Service
from holdout.seeds import stream

MODEL = GENESIS.params.model_first
WEIGHTS = bytes(4 * GENESIS.params.dimension)


class ScriptedPlayer:
    """Answers events as it is told, and remembers them."""

    def __init__(self, script):
        self.script = script
        self.events = []
        self.round, self.period, self.phase = 1, 0, 0
        self.observer = False
        self.waits = Waits(5, 1, Timing(), 1)

    def handle(self, event, _now):
        self.events.append(event)
        return list(self.script(event) or ())


class FakeArchive:
    """Remembers what was written, and fails if it is told to."""

    def __init__(self, order):
        self.order = order
        self.steps, self.last, self.fails = 0, None, False

    async def persist(self, persists, _round_number):
        await asyncio.sleep(0.01)
        if self.fails:
            raise StoreError("the disk is full")
        self.order += [("written", persist.safety) for persist in persists]

    async def finish(self, commit):
        self.order.append(("finished", commit.round))

    def close(self):
        self.order.append("closed")


class FakeLearner:
    """A member's code that takes its time."""

    failures, pid = 0, None

    def __init__(self, seconds=0.0, fails=False):
        self.seconds, self.fails = seconds, fails
        self.judging = asyncio.Event()

    async def start(self):
        pass

    async def close(self):
        pass

    async def propose(self, _model, **_):
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise LearnerFailed("no data")
        return WEIGHTS[:-4] + b"\x00\x00\x80\x3f"

    async def judge(self, *_, **__):
        self.judging.set()
        await asyncio.sleep(self.seconds)
        return (0,)

    async def accuracy(self, _model):
        return 0.5


class RecordingWire(Wire):
    """Remembers what was sent, in the same order as what was written."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def broadcast(self, data, urgency):
        super().broadcast(data, urgency)
        if data[0] in set(Kind):
            self.order.append(("sent", data))

    async def request(self, *_):
        return None


class Rig:
    def __init__(self, script, *, learner=None, until=None):
        self.order = []
        self.player = ScriptedPlayer(script)
        self.archive = FakeArchive(self.order)
        self.inbox = Inbox([1, 2, 3, 4])
        self.blobs = Blobs(lambda *_: None)
        self.blobs.put(BlobKind.MODEL, MODEL, WEIGHTS, 1)
        self.wire = RecordingWire(self.order)
        self.service = Service(
            GENESIS,
            0,
            player=self.player,
            archive=self.archive,
            blobs=self.blobs,
            inbox=self.inbox,
            learner=learner or FakeLearner(),
            timing=Timing(),
            log=Log("test", "error"),
            spent=Spent(),
            names=["alice", "bob", "carol", "dave", "eve"],
            until=until,
        )
        gossip = Gossip(
            GENESIS,
            0,
            signer=KEYS.signer(0),
            verifier=KEYS.verifier(),
            transport=self.wire,
            words=stream(0, "t"),
        )
        fetcher = Fetcher(
            self.wire,
            GENESIS.params,
            [1, 2, 3, 4],
            delay=0.01,
            words=stream(0, "t"),
            ready=self.service.fetched,
        )
        self.service.attach(self.wire, gossip, fetcher)

    def put(self, sender, data):
        assert self.inbox.put(sender, data) is None
        self.service.wake()

    async def until(self, condition, seconds=5.0):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def during(self, work):
        task = asyncio.create_task(self.service.run())
        try:
            await work()
        finally:
            self.service.stop()
            await asyncio.wait_for(task, 5)


def play(script, work, **settings):
    """Run a service on a scripted player while `work(rig)` looks at it."""

    async def run():
        rig = Rig(script, **settings)
        await rig.during(lambda: work(rig))
        return rig

    return asyncio.run(run())


def test_nothing_leaves_before_it_is_written():
    vote = Broadcast(VOTE, Urgency.VOTE)
    other = Broadcast(VOTE + b"2", Urgency.VOTE)

    def script(event):
        if isinstance(event, Start):
            return [Keep(MODEL, b"block"), Persist(b"one"), vote, Persist(b"two"), other]
        return None

    rig = play(script, lambda rig: rig.until(lambda: len(rig.wire.sent) >= 2))
    assert rig.order[:4] == [
        ("written", b"one"),
        ("written", b"two"),
        ("sent", VOTE),
        ("sent", VOTE + b"2"),
    ]
    assert rig.order[-1] == "closed"


def test_a_failed_write_ends_the_node_and_nothing_is_sent():
    def script(event):
        if isinstance(event, Start):
            return [Persist(b"one"), Broadcast(VOTE, Urgency.VOTE)]
        return None

    async def run():
        rig = Rig(script)
        rig.archive.fails = True
        with pytest.raises(StoreError, match="full"):
            await asyncio.wait_for(rig.service.run(), 10)
        return rig

    rig = asyncio.run(run())
    assert rig.order == ["closed"]


def test_votes_overtake_ballots_and_updates():
    kinds = [Kind.UPDATE, Kind.BALLOT, Kind.VOTE]

    async def work(rig):
        for sender in (1, 2):
            for kind in kinds:
                assert rig.inbox.put(sender, bytes([kind])) is None
        rig.service.wake()
        await rig.until(lambda: len(_received(rig)) == 6)

    rig = play(lambda _: [Reject(1, MessageFault.STALE)], work)
    got = [event.data[0] for event in _received(rig)]
    assert got == [Kind.VOTE, Kind.VOTE, Kind.BALLOT, Kind.BALLOT, Kind.UPDATE, Kind.UPDATE]


def _received(rig):
    return [event for event in rig.player.events if isinstance(event, Received)]


def test_a_long_vote_delays_no_agreement_vote():
    job = Judge(1, MODEL, (), 0.0, 0.1, 0)

    def script(event):
        return [Compute(job)] if isinstance(event, Start) else [Reject(1, MessageFault.STALE)]

    async def work(rig):
        await asyncio.wait_for(learner.judging.wait(), 5)
        rig.put(1, VOTE)
        await rig.until(lambda: _received(rig))

    learner = FakeLearner(seconds=3600)
    rig = play(script, work, learner=learner)
    assert not any(isinstance(event, Judged) for event in rig.player.events)


@pytest.mark.parametrize("data", [bytes([PULL]), VOTE])
def test_messages_that_lead_to_no_event_let_other_tasks_take_their_turn(data):
    """A peer fills its queue with gossip, or with copies."""
    turns, handled = 0, Counter()

    async def take_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def handle(*_):
        handled[turns] += 1
        return True

    async def work(rig):
        await rig.until(lambda: rig.player.events)
        rig.service.gossip.handle = rig.service.gossip.is_repeated = handle
        for _ in range(10 * STEPS_IN_A_ROW):
            assert rig.inbox.put(1, data) is None
        other = asyncio.create_task(take_turns())
        await asyncio.sleep(0)
        rig.service.wake()
        await rig.until(lambda: handled.total() == 10 * STEPS_IN_A_ROW)
        other.cancel()

    play(lambda _: None, work)
    assert max(handled.values()) <= STEPS_IN_A_ROW


def test_copies_of_what_was_accepted_are_dropped_and_of_what_was_rejected_are_not():
    def script(event):
        if isinstance(event, Received) and event.data == VOTE:
            return [Reject(event.peer, MessageFault.TOO_EARLY)]
        return None

    async def work(rig):
        for data in (VOTE, VOTE + b"2"):
            rig.put(1, data)
        await rig.until(lambda: len(_received(rig)) == 2)
        for data in (VOTE, VOTE + b"2"):
            rig.put(2, data)
        await rig.until(lambda: len(_received(rig)) == 3)
        await asyncio.sleep(0.05)

    rig = play(script, work)
    assert [(e.peer, e.data) for e in _received(rig)] == [(1, VOTE), (1, VOTE + b"2"), (2, VOTE)]
    assert rig.service.counters.rejected["repeated"] == 1


def test_a_worker_that_fails_misses_its_role():
    job = Propose(1, MODEL)

    def script(event):
        return [Compute(job)] if isinstance(event, Start) else None

    async def work(rig):
        await rig.until(lambda: JobFailed(job) in rig.player.events)

    play(script, work, learner=FakeLearner(fails=True))


def test_a_gradient_is_kept_before_it_is_announced():
    job = Propose(1, MODEL)

    def script(event):
        return [Compute(job)] if isinstance(event, Start) else None

    async def work(rig):
        await rig.until(lambda: len(rig.player.events) == 2)

    rig = play(script, work)
    proposed = rig.player.events[1]
    assert isinstance(proposed, Proposed)
    assert rig.blobs.get(BlobKind.PAYLOAD, proposed.payload) is not None


def test_what_is_in_hand_is_answered_at_once_and_a_missing_model_is_a_failed_job():
    lost = Combine(Digest(b"\x07" * 32), (), 0.0, 0.1)
    payload = Digest(b"\x01" * 32)

    def script(event):
        if isinstance(event, Start):
            return [Want(BlobKind.PAYLOAD, payload, ()), Compute(lost)]
        return None

    async def work(rig):
        await rig.until(lambda: JobFailed(lost) in rig.player.events)

    async def run():
        rig = Rig(script)
        rig.blobs.put(BlobKind.PAYLOAD, payload, b"short", 1)
        await rig.during(lambda: work(rig))
        return rig

    rig = asyncio.run(run())
    assert PayloadReady(payload, valid=False) in rig.player.events


def test_after_its_last_round_a_node_only_helps_others():
    timer = Timer(TimerKind.LEAD, 3, 0)

    def script(event):
        if isinstance(event, Start):
            now = time.monotonic_ns() // 1_000
            return [
                SetTimer(Timer(TimerKind.LEAD, 2, 0), now),
                SetTimer(timer, now),
                Commit(2, MODEL, MODEL, stepped=False, selected=None),
                Entered(3, 0),
            ]
        return None

    async def work(rig):
        rig.player.round = 3
        await rig.until(lambda: ("finished", 2) in rig.order)
        rig.put(1, VOTE)
        await rig.until(lambda: _received(rig))

    rig = play(script, work, until=2)
    assert TimerFired(timer) not in rig.player.events


def test_a_node_that_stops_says_goodbye_and_hears_others_do():
    async def work(rig):
        other, wire = make(2)
        other.goodbye(0)
        rig.put(2, wire.sent[-1][1])
        await rig.until(lambda: rig.service.gossip.left)
        assert rig.player.waits.away == {2}

    rig = play(lambda _: None, work)
    assert rig.wire.sent[-1][1][0] == GOODBYE
    assert rig.order[-1] == "closed"


def test_timers_come_in_their_order():
    def script(event):
        if isinstance(event, Start):
            now = time.monotonic_ns() // 1_000
            return [
                SetTimer(Timer(kind, 1, 0), now + after)
                for kind, after in ((TimerKind.DEADLINE, 30_000), (TimerKind.FILTER, 10_000))
            ]
        return None

    async def work(rig):
        await rig.until(lambda: len(rig.player.events) == 3)

    rig = play(script, work)
    fired = [event.timer.kind for event in rig.player.events[1:]]
    assert fired == [TimerKind.FILTER, TimerKind.DEADLINE]
    assert rig.service.spent.deadlines >= 0.0


def test_members_that_become_slow_are_named_in_the_log_once(capsys):
    slow = {1: (), 2: (3,), 3: (3,), 4: ()}

    def script(event):
        if isinstance(event, Start):
            return [Entered(number, 0) for number in slow]
        return None

    async def work(rig):
        await rig.until(lambda: rig.service.jobs.round == 4)

    def named(rig):
        return slow.get(rig.service.jobs.round, ())

    async def run():
        rig = Rig(script)
        rig.service._log = Log("test", "warning")
        rig.player.waits.slow = lambda: named(rig)
        await rig.during(lambda: work(rig))

    asyncio.run(run())
    lines = [line for line in capsys.readouterr().err.splitlines() if "slow-members" in line]
    assert [json.loads(line)["members"] for line in lines] == [["dave"], []]
