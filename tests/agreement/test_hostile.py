"""Well-formed nonsense: whatever a member signs, asks or leads with, nothing raises or counts."""

import pickle
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agreement.world import World

from holdout.agreement import events as ev
from holdout.agreement import headers
from holdout.agreement.blocks import BlockKind, read_block
from holdout.agreement.codec import BOTTOM
from holdout.agreement.messages import (
    Behind,
    Bundle,
    Entry,
    Envelope,
    Evidence,
    Finished,
    GetBlocks,
    GetUpdates,
    Kind,
    VoteSignature,
    VoteStep,
    ballot_part,
    head_part,
    lead_part,
    update_part,
    vote_part,
)
from holdout.agreement.validation import Validity


def _blocked() -> bytes:
    """A round in which everybody has led."""
    world = World(4, ())
    world.settle()
    world.learn()
    return pickle.dumps(world)


BLOCKED = _blocked()


class Liar:
    """Signs with its own key whatever it likes, with numbers at the ends of their ranges."""

    def __init__(self, world, draw):
        self.world, self.draw, self.chain = world, draw, world.genesis.chain
        self.model = draw(st.sampled_from([world.players[0].model, b"m" * 32]))
        self.proof = draw(st.sampled_from([b"", b"p" * 32, b"p" * 80]))

    def number(self, bits):
        ends = [2 ** (bits - 1), 2**bits - 2, 2**bits - 1]
        return self.draw(st.sampled_from([0, 1, 2, 3, 4, 5, *ends]))

    def place(self):
        """A round and a period."""
        return self.number(64), self.number(32)

    def value(self):
        known = self.world.lead_values.values()
        return self.draw(st.sampled_from([BOTTOM, b"v" * 32, *known]))

    def signed(self, kind, part):
        return Envelope(kind, part, self.world.keys.signer(3).sign(part), self.proof)

    def update(self):
        who, size = self.number(32), self.number(64)
        part = update_part(self.chain, self.number(64), who, self.model, self.value(), size)
        return self.signed(Kind.UPDATE, part)

    def ballot(self):
        names = sorted({self.number(32) for _ in range(3)})
        entries = tuple(Entry(name, self.value()) for name in names)
        part = ballot_part(self.chain, self.number(64), self.number(32), self.model, entries)
        return self.signed(Kind.BALLOT, part)

    def lead(self):
        who, original = self.number(32), self.number(32)
        part = lead_part(self.chain, *self.place(), who, original, self.value())
        return self.signed(Kind.LEAD, part)

    def vote(self):
        part = vote_part(self.chain, *self.place(), self.number(8), self.number(32), self.value())
        return self.signed(Kind.VOTE, part)

    def marks(self):
        workers = sorted({self.number(32) for _ in range(4)})
        return tuple(VoteSignature(worker, bytes(64), self.proof) for worker in workers)

    def bundle(self):
        return Bundle(self.chain, *self.place(), self.number(8), self.value(), self.marks())

    def finished(self):
        header = read_block(self.world.blobs[self.world.lead_values[0]]).header
        number, period = self.place()
        header = replace(header, round=number, leader=self.number(32), original_period=period)
        certificate = Bundle(
            self.chain, number, self.number(32), VoteStep.CERT, header.digest, self.marks()
        )
        return Finished(header.encode(), certificate)

    def evidence(self):
        make = self.draw(st.sampled_from([self.update, self.ballot, self.lead, self.vote]))
        return Evidence.of(make(), make())

    def get_blocks(self):
        return GetBlocks(self.chain, self.number(64), self.number(64))

    def get_updates(self):
        return GetUpdates(self.chain, self.number(64), (self.value(),))

    def behind(self):
        return Behind(self.chain, *self.place())

    def head(self):
        part = head_part(self.chain, bytes(32), self.number(32), self.number(64))
        return self.signed(Kind.HEAD_ANSWER, part)

    def anything(self):
        told = (self.update, self.ballot, self.lead, self.vote, self.bundle, self.finished)
        asked = (self.evidence, self.get_blocks, self.get_updates, self.behind, self.head)
        return self.draw(st.sampled_from([*told, *asked]))().encode()


@given(st.data())
@settings(max_examples=300)
def test_whatever_a_member_signs_and_a_peer_asks_nothing_raises(draw):
    world = pickle.loads(BLOCKED)
    player, liar = world.players[0], Liar(world, draw.draw)
    before = (player.round, player.period)
    for _ in range(4):
        for action in player.handle(ev.Received(3, liar.anything()), world.now):
            assert isinstance(action, ev.Action)
        timer = ev.Timer(draw.draw(st.sampled_from(ev.TimerKind)), *liar.place())
        player.handle(ev.TimerFired(timer), world.now)
    assert (player.round, player.period) == before


@given(st.data())
@settings(max_examples=150)
def test_no_block_whatever_it_says_makes_a_player_raise(draw):
    """The header's fields and the lists of a real block at random, committed to by right roots."""
    world = pickle.loads(BLOCKED)
    player = world.players[0]
    block = read_block(
        world.blobs[draw.draw(st.sampled_from(sorted(world.lead_values.items())))[1]]
    )
    body = {
        name: tuple(draw.draw(st.lists(st.sampled_from(getattr(block, name)), max_size=6)))
        if getattr(block, name)
        else ()
        for name in ("updates", "ballots", "selection")
    }
    ordered = draw.draw(st.booleans())
    if ordered:  # As it must be, so that it gets further.
        for name in ("updates", "ballots"):
            chosen = {message.worker: message for message in body[name]}
            body[name] = tuple(chosen[worker] for worker in sorted(chosen))
        body["selection"] = tuple(sorted(dict(body["selection"]).items()))
    made = replace(block, **body)
    numbers = st.integers(0, 2**32 - 1) | st.integers(0, 5)
    header = replace(
        block.header,
        leader=draw.draw(numbers | st.just(block.header.leader)),
        original_period=draw.draw(numbers | st.just(0)),
        steps=draw.draw(numbers | st.just(block.header.steps)),
        kind=draw.draw(st.sampled_from(BlockKind)),
        radius=draw.draw(st.floats(0, allow_nan=False, allow_infinity=False).map(abs)),
        selection_root=headers.selection_root(made.selection),
        **dict(
            zip(
                ("updates_root", "ballots_root", "evidence_root"),
                headers.body_roots(made.updates, made.ballots, made.evidence),
                strict=True,
            )
        ),
    )
    made = replace(made, header=header)
    for action in player.handle(ev.BlockReady(header.digest, made.encode()), world.now):
        assert isinstance(action, ev.Action)
    same = (made.updates, made.ballots, made.selection) == (
        block.updates,
        block.ballots,
        block.selection,
    )
    if header != block.header or not same:
        assert player._round.validation.verdict(header.digest) is not Validity.VALID
