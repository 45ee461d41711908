"""What Byzantine workers do: their common part, lies of any worker, lies of proposers and voters.

A Byzantine worker is an honest player whose outgoing actions pass through a behaviour. It sees what
its worker is told, has its keys, and may replace, add, delay or drop what the worker sends and
serves. The names Z1, Z2, ... are those of the table in `docs/simulation.md`. The lies of leaders
and committee members, and the list of all behaviours, are in `adversaries_agreement`.
"""
# ruff: noqa: ARG002  # All behaviours take the same arguments, whatever they look at.

import struct
from collections.abc import Callable, Sequence
from typing import Any

from holdout.agreement import aggregate
from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.codec import BOTTOM
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.simulator.nodes import SimulatedNode

FLOOD = 1_000
"""How many useless messages a flooding worker sends in a run."""
HEARD_MAX = 64
"""How many messages a replaying worker remembers."""

OWN_KINDS = (msg.Kind.UPDATE, msg.Kind.BALLOT, msg.Kind.LEAD, msg.Kind.VOTE)
"""What a behaviour may replace: what its worker signs."""


class Liar:
    """A behaviour that changes nothing: the common part, of which others replace something."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        self.node = node
        self.cluster = node.cluster
        self.liars = tuple(liars)
        self.index = node.index
        self.genesis = self.cluster.genesis
        self.signer = self.cluster.keys.signer(node.index)
        # By the name of the class: renaming one changes the runs of its seeds.
        self.words = stream(self.cluster.seed, "behaviour", type(self).__name__, node.index)

    # -- what a behaviour may change -------------------------------------------------------------

    def act(self, event: ev.Event, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """Pass each action through `outgoing` or `other`, and add what `hear` says."""
        done: list[ev.Action] = []
        if type(event) is ev.Received:
            done += self.hear(event.peer, event.data)
        for action in actions:
            if type(action) is ev.Broadcast and action.data[0] in OWN_KINDS:
                done += self.outgoing(action, self.read(action.data))
            else:
                done += self.other(action)
        return done

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """What to do instead of broadcasting its own update, ballot, lead or vote."""
        return (action,)

    def other(self, action: ev.Action) -> Sequence[ev.Action]:
        """What to do instead of any other action."""
        return (action,)

    def hear(self, peer: int, data: bytes) -> Sequence[ev.Action]:
        """What to do about a message, besides what its player does."""
        return ()

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """What to answer a peer that wants a blob; None: nothing."""
        return data

    # -- tools -----------------------------------------------------------------------------------

    def read(self, data: bytes) -> msg.Message | None:
        """The message in these bytes; None if there is none."""
        try:
            return self.cluster.decode(data).claim
        except InvalidMessage:
            return None

    def sign(self, kind: msg.Kind, signed: bytes, proof: bytes = b"") -> bytes:
        """The bytes of a message that this worker signs."""
        return msg.Envelope(kind, signed, self.signer.sign(signed), proof).encode()

    def vote(self, round_number: int, period: int, step: int, value: Digest) -> bytes:
        """The bytes of a vote of this worker."""
        part = msg.vote_part(self.genesis.chain, round_number, period, step, self.index, value)
        return self.sign(msg.Kind.VOTE, part)

    def update(self, old: msg.Update, payload: bytes, size: int | None = None) -> bytes:
        """This worker's update with another payload, which it will serve."""
        digest = aggregate.payload_digest(payload)
        self.node.memory.put(ev.BlobKind.PAYLOAD, digest, payload, old.round)
        length = len(payload) if size is None else size
        part = msg.update_part(old.chain, old.round, self.index, old.model, digest, length)
        return self.sign(msg.Kind.UPDATE, part, old.envelope.proof)

    def turned(self, message: msg.Message | None) -> bytes | None:
        """This update with its gradient turned around; None if it is not an update."""
        payload = self.node.memory.get(message.payload) if isinstance(message, msg.Update) else None
        if payload is None or not isinstance(message, msg.Update):
            return None
        return self.update(message, _turned(payload))

    def ballot(self, old: msg.BallotMessage, entries: Sequence[msg.Entry]) -> bytes:
        """This worker's ballot with other names."""
        part = msg.ballot_part(old.chain, old.round, self.index, old.model, tuple(entries))
        return self.sign(msg.Kind.BALLOT, part, old.envelope.proof)

    def others(self) -> list[int]:
        """All other workers, in a new order each time."""
        everybody = [w for w in range(self.genesis.params.workers) if w != self.index]
        return self.words.sample(everybody, len(everybody))

    def split(self, one: bytes, other: bytes, urgency: ev.Urgency) -> list[ev.Action]:
        """Send one message to half of the others, another to the rest."""
        peers = self.others()
        half = len(peers) // 2
        return [
            ev.Send(peer, one if place < half else other, urgency)
            for place, peer in enumerate(peers)
        ]

    def later(self, delay: int, actions: Sequence[ev.Action]) -> None:
        """Carry out actions later."""
        self.node.later(delay, self.node.execute, actions)

    def lucky(self, one_in: int) -> bool:
        """True with probability one in `one_in`."""
        return self.words.below(one_in) == 0


# --------------------------------------------------------------------------- lies that need no role


class Silent(Liar):
    """Z1: listens and says nothing."""

    def act(self, event: ev.Event, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """All actions except sending."""
        return [
            a for a in actions if type(a) not in (ev.Send, ev.Broadcast, ev.Relay, ev.SendBlocks)
        ]

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """No blob for anybody."""
        return None


class WrongCredentials(Liar):
    """Z5: invalid proofs and signatures, roles it was not drawn for, other workers' names."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """The message, and after it spoilt ones."""
        if not isinstance(message, msg.SignedMessage):
            return (action,)
        envelope = message.envelope
        victim = self.words.below(self.genesis.params.workers)
        spoilt = [
            msg.Envelope(envelope.kind, envelope.signed, envelope.signature, bytes(80)),
            msg.Envelope(envelope.kind, envelope.signed, bytes(64), envelope.proof),
        ]
        spoilt += [
            msg.Envelope(kind, part, self.signer.sign(part))
            for kind, part in (
                (msg.Kind.VOTE, self._vote_part(message, victim)),
                (msg.Kind.VOTE, self._vote_part(message, self.genesis.params.workers + 7)),
                (msg.Kind.LEAD, self._lead_part(message)),
            )
        ]
        return [action, *(ev.Broadcast(bad.encode(), action.urgency) for bad in spoilt)]

    def _vote_part(self, message: Any, worker: int) -> bytes:
        value = Digest(b"\x07" * 32)
        return msg.vote_part(self.genesis.chain, message.round, 0, msg.VoteStep.SOFT, worker, value)

    def _lead_part(self, message: Any) -> bytes:
        # A lead in a period for which it may not be drawn, with a block that does not exist.
        period = 1 + self.words.below(3)
        value = Digest(b"\x09" * 32)
        return msg.lead_part(self.genesis.chain, message.round, period, self.index, period, value)


class Replayer(Liar):
    """Z7: old messages again, votes of another network, votes for far rounds and periods."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._heard: list[bytes] = []

    def hear(self, peer: int, data: bytes) -> Sequence[ev.Action]:
        """Remember the message, and sometimes send something stale or far ahead."""
        place = self.words.below(HEARD_MAX)
        if len(self._heard) < HEARD_MAX:
            self._heard.append(data)
        elif self.lucky(4):
            self._heard[place] = data
        if not self.lucky(6):
            return ()
        old = self._heard[self.words.below(len(self._heard))]
        number = self.node.player.round
        far = self.vote(number + 1000, 0, msg.VoteStep.CERT, Digest(b"\x01" * 32))
        away = self.vote(number, 1 << 20, msg.VoteStep.DOWN, BOTTOM)
        foreign = self.sign(
            msg.Kind.VOTE,
            msg.vote_part(Digest(b"\x05" * 32), number, 0, msg.VoteStep.DOWN, self.index, BOTTOM),
        )
        said = (old, far, away, foreign)[self.words.below(4)]
        return (ev.Broadcast(said, ev.Urgency.VOTE),)


class Flooder(Liar):
    """Z20: votes for far periods, huge bundles, bytes that hold no message, many requests."""

    budget = FLOOD

    def hear(self, peer: int, data: bytes) -> Sequence[ev.Action]:
        """Answer each message with two useless ones."""
        # Liars that flood each other would harm nobody but the simulator.
        if self.budget <= 0 or peer in self.liars:
            return ()
        self.budget -= 2
        number = self.node.player.round
        chain = self.genesis.chain
        value = Digest(self.words.below(1 << 62).to_bytes(32, "big"))
        period = self.words.below(1 << 16)
        marks = tuple(
            msg.VoteSignature(worker, bytes(64), b"")
            for worker in range(self.genesis.params.workers)
        )
        useless: tuple[Callable[[], bytes], ...] = (
            lambda: self.vote(number, period, msg.VoteStep.SOFT, value),
            lambda: self.vote(number, 0, 3 + self.words.below(250), value),
            lambda: self.vote(number + 1, self.words.below(2), msg.VoteStep.SOFT, value),
            lambda: msg.Bundle(chain, number, 0, msg.VoteStep.CERT, value, marks).encode(),
            lambda: value * 40,
            lambda: msg.GetBlocks(chain, 1, number + period).encode(),
            lambda: msg.GetUpdates(chain, number, (value,) * 50).encode(),
            lambda: msg.Behind(chain, 1, 0).encode(),
            lambda: msg.HeadQuery(chain, value).encode(),
        )
        return [
            ev.Send(peer, useless[self.words.below(len(useless))](), ev.Urgency.VOTE)
            for _ in range(2)
        ]


# ------------------------------------------------------------------ lies of proposers and voters


class TwoUpdates(Liar):
    """Z2: one gradient for half of the others, another for the rest."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Two versions of its update."""
        turned = self.turned(message)
        return (action,) if turned is None else self.split(action.data, turned, action.urgency)


class Poisoner(Liar):
    """A gradient that leads uphill; it has no Z number, as every attack on learning does this."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """The update with its gradient turned around."""
        turned = self.turned(message)
        return (action,) if turned is None else (ev.Broadcast(turned, action.urgency),)


class TwoBallots(Liar):
    """Z3: one ballot for half of the others, another for the rest."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Two versions of its ballot."""
        if not isinstance(message, msg.BallotMessage) or len(message.entries) < 2:  # noqa: PLR2004
            return (action,)
        short = self.ballot(message, message.entries[:1])
        return self.split(action.data, short, action.urgency)


class BadPayload(Liar):
    """Z8: a payload that is not a valid gradient, or other bytes than the digest promises."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._mismatched: dict[Digest, bytes] = {}

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """The update with one of eight faults."""
        if not isinstance(message, msg.Update):
            return (action,)
        payload = self.node.memory.get(message.payload) or bytes(message.size)
        bad = (
            _with_first(payload, float("nan")),
            _with_first(payload, float("inf")),
            _with_first(payload, -0.0),
            _with_first(payload, 1e-40),
            _with_first(payload, 2 * self.genesis.params.coordinate_max),
            payload[:-4],
            payload * 3,
            b"",
        )[self.words.below(8)]
        if not bad:  # The honest update, but other bytes served for it.
            self._mismatched[message.payload] = _turned(payload)
            return (action,)
        claimed = len(payload) if self.lucky(2) else len(bad)
        return (ev.Broadcast(self.update(message, bad, claimed), action.urgency),)

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """Other bytes for a payload that it announced."""
        return self._mismatched.get(digest, data)


class Withholder(Liar):
    """Z9: announces a gradient and withholds it from all others, or from half of them."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._own: dict[Digest, None] = {}
        self._from_all = self.lucky(2)
        self._victims = self.others()[::2]

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Its update, whose payload it will not serve."""
        if isinstance(message, msg.Update):
            self._own[message.payload] = None
        return (action,)

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """Nothing to its victims for its own payloads."""
        hidden = digest in self._own and (self._from_all or peer in self._victims)
        return None if hidden else data


class Latecomer(Liar):
    """Z10: updates after T_P, ballots after T_B or T_A."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Its update or ballot, late."""
        if not isinstance(message, msg.Update | msg.BallotMessage):
            return (action,)
        timing = self.cluster.timing
        latest = timing.lead_at() + timing.filter_after(0)
        self.later(self.words.below(latest) + timing.delay, (action,))
        return ()


class Copycat(Liar):
    """Z21: somebody else's gradient under its own signature."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._seen: dict[int, msg.Update] = {}
        self._waiting: msg.Update | None = None

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Nothing instead of its update, until there is one to copy."""
        if not isinstance(message, msg.Update):
            return (action,)
        self._waiting = message
        return self._copy()

    def hear(self, peer: int, data: bytes) -> Sequence[ev.Action]:
        """Copy an update."""
        message = self.read(data) if data and data[0] == msg.Kind.UPDATE else None
        if not isinstance(message, msg.Update) or message.worker == self.index:
            return ()
        self._seen[message.round] = message
        return self._copy()

    def _copy(self) -> Sequence[ev.Action]:
        mine = self._waiting
        theirs = None if mine is None else self._seen.get(mine.round)
        if mine is None or theirs is None:
            return ()
        self._waiting = None
        part = msg.update_part(
            mine.chain, mine.round, self.index, mine.model, theirs.payload, theirs.size
        )
        copied = self.sign(msg.Kind.UPDATE, part, mine.envelope.proof)
        return (ev.Broadcast(copied, ev.Urgency.UPDATE),)


class ShortBallots(Liar):
    """Z22: ballots that name one update, only the liars' updates, or an unknown one."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """One of these ballots instead of the honest one."""
        if not isinstance(message, msg.BallotMessage):
            return (action,)
        own = [entry for entry in message.entries if entry.proposer in self.liars]
        unknown = msg.Entry(self.index, Digest(b"\x0b" * 32))
        entries = (own, own[:1], message.entries[-1:], [unknown])[self.words.below(4)]
        return (ev.Broadcast(self.ballot(message, entries or [unknown]), action.urgency),)


def _turned(payload: bytes) -> bytes:
    """The gradient with every coordinate negated; zeros stay as they are."""
    layout = f"<{len(payload) // 4}f"
    return struct.pack(layout, *[-x if x else 0.0 for x in struct.unpack(layout, payload)])


def _with_first(payload: bytes, value: float) -> bytes:
    return struct.pack("<f", value) + payload[4:]
