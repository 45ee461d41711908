"""What Byzantine workers do: an honest player whose outgoing actions pass through a behaviour.

The names Z1, Z2, ... are those of the table in `docs/simulation.md`. Here are the lies of proposers
and voters; `adversaries_noise` has those that every role can tell, `adversaries_agreement` those of
leaders and committee members. A behaviour sees what its worker is told, owns its keys, and may
replace, add, delay or drop what it sends and what it serves.
"""
# ruff: noqa: ARG002  # All behaviours take the same, whatever they look at.

import struct
from collections.abc import Callable, Sequence

from holdout.agreement import aggregate, messages
from holdout.agreement.events import (
    Action,
    BlobKind,
    Broadcast,
    Event,
    Received,
    Send,
    Urgency,
)
from holdout.agreement.messages import (
    BallotMessage,
    Entry,
    Envelope,
    Kind,
    Message,
    Update,
)
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.simulator.nodes import SimulatedNode


class Liar:
    """The common part: does what the honest player says. Behaviours replace parts of it."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        self.node = node
        self.cluster = node.cluster
        self.liars = tuple(liars)
        self.index = node.index
        self.genesis = self.cluster.genesis
        self.signer = self.cluster.keys.signer(node.index)
        self.words = stream(self.cluster.seed, "behaviour", type(self).__name__, node.index)

    # -- what a behaviour may change -------------------------------------------------------------

    def act(self, node: SimulatedNode, event: Event, actions: Sequence[Action]) -> Sequence[Action]:
        """Pass everything through `outgoing`, and add what `hear` says."""
        done: list[Action] = []
        if type(event) is Received:
            done += self.hear(event.peer, event.data)
        for action in actions:
            if type(action) is Broadcast and action.data[0] in _OWN:
                done += self.outgoing(action, self.read(action.data))
            else:
                done += self.other(action)
        return done

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Instead of broadcasting an update, ballot, lead or vote of its own."""
        return (action,)

    def other(self, action: Action) -> Sequence[Action]:
        """Instead of any other action."""
        return (action,)

    def hear(self, peer: int, data: bytes) -> Sequence[Action]:
        """What it does in answer to a message, besides what its player does."""
        return ()

    def serve(
        self, node: SimulatedNode, peer: int, digest: Digest, data: bytes | None
    ) -> bytes | None:
        """What it answers to somebody who wants a blob."""
        return data

    # -- tools -----------------------------------------------------------------------------------

    def read(self, data: bytes) -> Message | None:
        """The message, if it is one."""
        try:
            return self.cluster.decode(data).claim
        except InvalidMessage:
            return None

    def sign(self, kind: Kind, signed: bytes, proof: bytes = b"") -> bytes:
        """The bytes of a message with its own signature."""
        return Envelope(kind, signed, self.signer.sign(signed), proof).encode()

    def vote(self, round_number: int, period: int, step: int, value: Digest) -> bytes:
        """A vote of its own."""
        part = messages.vote_part(self.genesis.chain, round_number, period, step, self.index, value)
        return self.sign(Kind.VOTE, part)

    def update(self, old: Update, payload: bytes, size: int | None = None) -> bytes:
        """An update of its own with this payload, which it will serve."""
        digest = aggregate.payload_digest(payload)
        self.node.memory.put(BlobKind.PAYLOAD, digest, payload, old.round)
        length = len(payload) if size is None else size
        part = messages.update_part(old.chain, old.round, self.index, old.model, digest, length)
        return self.sign(Kind.UPDATE, part, old.envelope.proof)

    def ballot(self, old: BallotMessage, entries: Sequence[Entry]) -> bytes:
        """A ballot of its own with these names."""
        part = messages.ballot_part(old.chain, old.round, self.index, old.model, tuple(entries))
        return self.sign(Kind.BALLOT, part, old.envelope.proof)

    def others(self) -> list[int]:
        """Everybody else, in a new order each time."""
        everybody = [w for w in range(self.genesis.params.workers) if w != self.index]
        return self.words.sample(everybody, len(everybody))

    def split(self, one: bytes, other: bytes, urgency: Urgency) -> list[Action]:
        """The one to half of the others, the other to the rest."""
        peers = self.others()
        half = len(peers) // 2
        return [
            Send(peer, one if place < half else other, urgency) for place, peer in enumerate(peers)
        ]

    def later(self, delay: int, actions: Sequence[Action]) -> None:
        """Do something at a later time."""
        self.node.later(delay, self.node.execute, actions)

    def lucky(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.words.below(one_in) == 0


_OWN = (Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE)


class Several:
    """Many behaviours at once: each changes what the one before has left."""

    def __init__(self, parts: Sequence[Liar]) -> None:
        self._parts = tuple(parts)

    def act(self, node: SimulatedNode, event: Event, actions: Sequence[Action]) -> Sequence[Action]:
        """One after the other."""
        for part in self._parts:
            actions = part.act(node, event, actions)
        return actions

    def serve(
        self, node: SimulatedNode, peer: int, digest: Digest, data: bytes | None
    ) -> bytes | None:
        """One after the other."""
        for part in self._parts:
            data = part.serve(node, peer, digest, data)
        return data


# ------------------------------------------------------------------------------ proposers, voters


class TwoUpdates(Liar):
    """Z2: one gradient for half of the others, another for the rest."""

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Two versions of the own update."""
        if not isinstance(message, Update):
            return (action,)
        payload = self.node.memory.get(message.payload)
        if payload is None:
            return (action,)
        return self.split(action.data, self.update(message, _turned(payload)), action.urgency)


class Poisoner(Liar):
    """A gradient that leads away from the bottom (no id: every attack on learning does this)."""

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Another update instead of the honest one."""
        payload = self.node.memory.get(message.payload) if isinstance(message, Update) else None
        if payload is None or not isinstance(message, Update):
            return (action,)
        return (Broadcast(self.update(message, _turned(payload)), action.urgency),)


class TwoBallots(Liar):
    """Z3: one ballot for half of the others, another for the rest."""

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Two versions of the own ballot."""
        if not isinstance(message, BallotMessage) or len(message.entries) < 2:  # noqa: PLR2004
            return (action,)
        short = self.ballot(message, message.entries[:1])
        return self.split(action.data, short, action.urgency)


class BadPayload(Liar):
    """Z8: a payload that is no gradient, or other bytes than the hash says."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._mismatched: dict[Digest, bytes] = {}

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """One of eight faults."""
        if not isinstance(message, Update):
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
        if not bad:  # The right header, other bytes.
            self._mismatched[message.payload] = _turned(payload)
            return (action,)
        claimed = len(payload) if self.lucky(2) else len(bad)
        return (Broadcast(self.update(message, bad, claimed), action.urgency),)

    def serve(
        self, node: SimulatedNode, peer: int, digest: Digest, data: bytes | None
    ) -> bytes | None:
        """Other bytes for a payload that it announced."""
        return self._mismatched.get(digest, data)


class Withholder(Liar):
    """Z9: announces a gradient and serves it to nobody, or to half of the others."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._own: dict[Digest, None] = {}
        self._from_all = self.lucky(2)
        self._victims = self.others()[::2]

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Remember what must not be served."""
        if isinstance(message, Update):
            self._own[message.payload] = None
        return (action,)

    def serve(
        self, node: SimulatedNode, peer: int, digest: Digest, data: bytes | None
    ) -> bytes | None:
        """Nothing, for the own payloads."""
        hidden = digest in self._own and (self._from_all or peer in self._victims)
        return None if hidden else data


class Latecomer(Liar):
    """Z10: updates after T_P, ballots after T_B or T_A."""

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """The same, later."""
        if not isinstance(message, Update | BallotMessage):
            return (action,)
        timing = self.cluster.timing
        latest = timing.lead_at() + timing.filter_after(0)
        self.later(self.words.below(latest) + timing.delay, (action,))
        return ()


class Copycat(Liar):
    """Z21: somebody else's gradient under its own signature."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._seen: dict[int, Update] = {}
        self._waiting: Update | None = None

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Wait for an update to copy."""
        if not isinstance(message, Update):
            return (action,)
        self._waiting = message
        return self._copy()

    def hear(self, peer: int, data: bytes) -> Sequence[Action]:
        """An update to copy."""
        message = self.read(data) if data and data[0] == Kind.UPDATE else None
        if not isinstance(message, Update) or message.worker == self.index:
            return ()
        self._seen[message.round] = message
        return self._copy()

    def _copy(self) -> Sequence[Action]:
        mine = self._waiting
        theirs = None if mine is None else self._seen.get(mine.round)
        if mine is None or theirs is None:
            return ()
        self._waiting = None
        part = messages.update_part(
            mine.chain, mine.round, self.index, mine.model, theirs.payload, theirs.size
        )
        copied = self.sign(Kind.UPDATE, part, mine.envelope.proof)
        return (Broadcast(copied, Urgency.UPDATE),)


class ShortBallots(Liar):
    """Z22: ballots with one name, with liars' names only, or with names of nothing."""

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """Another ballot instead of the honest one."""
        if not isinstance(message, BallotMessage):
            return (action,)
        own = [entry for entry in message.entries if entry.proposer in self.liars]
        unknown = Entry(self.index, Digest(b"\x0b" * 32))
        entries = (own, own[:1], message.entries[-1:], [unknown])[self.words.below(4)]
        return (Broadcast(self.ballot(message, entries or [unknown]), action.urgency),)


def _turned(payload: bytes) -> bytes:
    """Every coordinate the other way; zeros stay as they are."""
    layout = f"<{len(payload) // 4}f"
    return struct.pack(layout, *[-x if x else 0.0 for x in struct.unpack(layout, payload)])


def _with_first(payload: bytes, value: float) -> bytes:
    return struct.pack("<f", value) + payload[4:]


MakeLiar = Callable[[SimulatedNode, Sequence[int]], Liar]

LEARNING_BEHAVIOURS: dict[str, MakeLiar] = {
    "Z2": TwoUpdates,
    "Z3": TwoBallots,
    "Z8": BadPayload,
    "Z9": Withholder,
    "Z10": Latecomer,
    "Z21": Copycat,
    "Z22": ShortBallots,
    "poison": Poisoner,
}
