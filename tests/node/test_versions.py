"""Neighbouring versions understand each other; others say why they do not."""

import asyncio
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.node.test_gossip import GENESIS, KEYS, Wire
from tests.node.test_service import VOTE, Rig

from holdout.agreement.codec import decode
from holdout.errors import InvalidMessage
from holdout.node.logs import Log
from holdout.node.network.gossip import VERSION, Gossip
from holdout.node.network.versions import FIRST, NEWEST, Spoken, read_spoken
from holdout.seeds import stream


def make(worker, speaks=None):
    wire = Wire()
    gossip = Gossip(
        GENESIS,
        worker,
        signer=KEYS.signer(worker),
        verifier=KEYS.verifier(),
        transport=wire,
        words=stream(0, "t"),
        speaks=speaks,
    )
    return gossip, wire


def meet(one, other):
    """Two nodes hear each other's heartbeat, and whatever follows from it."""
    for gossip, _ in (one, other):
        gossip.beat(0)
    for _ in range(4):
        for (_, wire), (receiver, _), sender in ((one, other, 0), (other, one, 1)):
            sent, wire.sent = list(wire.sent), []
            for _, data in sent:
                receiver.handle(sender, data)


@pytest.mark.parametrize(
    ("theirs", "understood"),
    [
        (Spoken(), True),
        (Spoken(NEWEST - 1, NEWEST - 1, "old"), True),
        (Spoken(NEWEST, NEWEST + 1, "new"), True),
        (Spoken(NEWEST + 1, NEWEST + 2, "9.9"), False),
    ],
)
def test_versions_are_told_at_the_first_heartbeat(theirs, understood):
    one, other = make(0), make(1, theirs)
    meet(one, other)
    assert one[0].spoken[1] == theirs
    assert other[0].spoken[0] == Spoken()
    assert (one[0].foreign(1) is None) == understood
    assert (other[0].foreign(0) is None) == understood
    if not understood:
        assert "holdout 9.9" in one[0].foreign(1)
        assert one[0].foreign(1).endswith("upgrade this node")
        assert other[0].foreign(0).endswith("upgrade the other")
    # It ends: nobody answers answers for ever.
    assert one[1].sent == other[1].sent == []


def test_who_says_nothing_speaks_the_first_version():
    gossip, _ = make(0)
    assert gossip.foreign(1) is None
    later, _ = make(0, Spoken(2, 3))
    assert "versions 1 to 1" in later.foreign(1)
    assert Spoken().common(FIRST) == 1


def test_nobody_tells_the_version_of_somebody_else():
    one, other = make(0), make(1, Spoken(7, 8))
    meet(one, other)
    other[0]._told.clear()
    other[0]._tell_version(0)
    ((_, data),) = other[1].sent
    fresh, _ = make(0)
    fresh.handle(2, data)
    fresh.handle(1, data[:-1] + bytes([data[-1] ^ 1]))
    assert fresh.spoken == {}
    assert fresh.rejected == {1: 1, 2: 1}
    fresh.handle(1, data)
    assert fresh.spoken[1].newest == 8


@given(st.integers(0, 9), st.integers(0, 9), st.text(st.characters(max_codepoint=126), max_size=32))
def test_what_is_spoken_survives_the_wire(oldest, newest, software):
    spoken = decode(Spoken(oldest, newest, software).encode(), read_spoken)
    assert (spoken.oldest, spoken.newest) == (oldest, newest)
    assert spoken.software.isprintable()


def test_names_that_are_too_long_are_invalid():
    with pytest.raises(InvalidMessage):
        decode(bytes(8) + (99).to_bytes(4, "little") + b"x" * 99, read_spoken)


def test_messages_of_a_foreign_version_are_dropped_and_it_is_said_once():
    said = io.StringIO()

    async def play():
        rig = Rig(lambda _: None)
        rig.service._log = Log("test", "error", said)
        other, wire = make(1, Spoken(NEWEST + 1, NEWEST + 2))
        for _ in range(2):
            other._told.clear()
            other._tell_version(0)

        async def work():
            for _, data in wire.sent:
                assert data[0] == VERSION
                rig.put(1, data)
            await rig.until(lambda: rig.service.gossip.foreign(1) is not None)
            rig.put(1, VOTE)
            rig.put(2, VOTE)
            await rig.until(lambda: any(getattr(e, "peer", None) == 2 for e in rig.player.events))

        await rig.during(work)
        return rig

    rig = asyncio.run(play())
    assert rig.service.counters.rejected["foreign-version"] == 1
    assert all(getattr(event, "peer", None) != 1 for event in rig.player.events)
    (line,) = said.getvalue().splitlines()
    assert json.loads(line)["event"] == "version-refused"
    assert json.loads(line)["member"] == "bob"
