"""Lies that need no role: silence, credentials that prove nothing, replays, floods."""
# ruff: noqa: ARG002  # All behaviours take the same, whatever they look at.

from collections.abc import Callable, Sequence
from typing import Any

from holdout.agreement import messages
from holdout.agreement.codec import BOTTOM
from holdout.agreement.events import Action, Broadcast, Event, Relay, Send, SendBlocks, Urgency
from holdout.agreement.messages import (
    BallotMessage,
    Envelope,
    GetBlocks,
    Kind,
    Message,
    Step,
    Update,
    Vote,
)
from holdout.ids import Digest
from holdout.simulator.adversaries import Liar, MakeLiar
from holdout.simulator.nodes import SimulatedNode

FLOOD = 1_000
"""Useless messages that a flooding worker sends in a run."""
HEARD_MAX = 64
"""Messages that a replaying worker keeps."""


class Silent(Liar):
    """Z1: listens and says nothing."""

    def act(self, node: SimulatedNode, event: Event, actions: Sequence[Action]) -> Sequence[Action]:
        """Everything but sending."""
        return [a for a in actions if type(a) not in (Send, Broadcast, Relay, SendBlocks)]

    def serve(
        self, node: SimulatedNode, peer: int, digest: Digest, data: bytes | None
    ) -> bytes | None:
        """Nothing."""
        return None


class WrongCredentials(Liar):
    """Z5: proofs that prove nothing, roles it was not drawn for, other workers' names."""

    def outgoing(self, action: Broadcast, message: Message | None) -> Sequence[Action]:
        """The message, and spoilt ones of the same kind."""
        if not isinstance(message, Update | BallotMessage | messages.Lead | Vote):
            return (action,)
        envelope = message.envelope
        victim = self.words.below(self.genesis.params.workers)
        spoilt = [
            Envelope(envelope.kind, envelope.signed, envelope.signature, bytes(80)),
            Envelope(envelope.kind, envelope.signed, bytes(64), envelope.proof),
        ]
        spoilt += [
            Envelope(kind, part, self.signer.sign(part))
            for kind, part in (
                (Kind.VOTE, self._vote_part(message, victim)),
                (Kind.VOTE, self._vote_part(message, self.genesis.params.workers + 7)),
                (Kind.LEAD, self._lead_part(message)),
            )
        ]
        return [action, *(Broadcast(bad.encode(), action.urgency) for bad in spoilt)]

    def _vote_part(self, message: Any, worker: int) -> bytes:
        value = Digest(b"\x07" * 32)
        return messages.vote_part(self.genesis.chain, message.round, 0, Step.SOFT, worker, value)

    def _lead_part(self, message: Any) -> bytes:
        # A period for which it may not be drawn, of a block that does not exist.
        period = 1 + self.words.below(3)
        value = Digest(b"\x09" * 32)
        return messages.lead_part(
            self.genesis.chain, message.round, period, self.index, period, value
        )


class Replayer(Liar):
    """Z7: what was said before, again; votes of another run; claims of rounds far ahead."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._heard: list[bytes] = []

    def hear(self, peer: int, data: bytes) -> Sequence[Action]:
        """Keep it, and now and then say something old."""
        place = self.words.below(HEARD_MAX)
        if len(self._heard) < HEARD_MAX:
            self._heard.append(data)
        elif self.lucky(4):
            self._heard[place] = data
        if not self.lucky(6):
            return ()
        old = self._heard[self.words.below(len(self._heard))]
        number = self.node.player.round
        far = self.vote(number + 1000, 0, Step.CERT, Digest(b"\x01" * 32))
        away = self.vote(number, 1 << 20, Step.DOWN, BOTTOM)
        foreign = self.sign(
            Kind.VOTE,
            messages.vote_part(Digest(b"\x05" * 32), number, 0, Step.DOWN, self.index, BOTTOM),
        )
        said = (old, far, away, foreign)[self.words.below(4)]
        return (Broadcast(said, Urgency.VOTE),)


class Flooder(Liar):
    """Z20: votes for far periods, huge bundles, bytes that are no message, many questions."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int], budget: int = FLOOD) -> None:
        super().__init__(node, liars)
        self._budget = budget

    def hear(self, peer: int, data: bytes) -> Sequence[Action]:
        """For each message heard, a few useless ones."""
        # Liars that flood each other would harm nobody but the simulator.
        if self._budget <= 0 or peer in self.liars:
            return ()
        self._budget -= 2
        number = self.node.player.round
        chain = self.genesis.chain
        value = Digest(self.words.below(1 << 62).to_bytes(32, "big"))
        period = self.words.below(1 << 16)
        marks = tuple(
            messages.VoteSignature(worker, bytes(64), b"")
            for worker in range(self.genesis.params.workers)
        )
        useless: tuple[Callable[[], bytes], ...] = (
            lambda: self.vote(number, period, Step.SOFT, value),
            lambda: self.vote(number, 0, 3 + self.words.below(250), value),
            lambda: self.vote(number + 1, self.words.below(2), Step.SOFT, value),
            lambda: messages.Bundle(chain, number, 0, Step.CERT, value, marks).encode(),
            lambda: value * 40,
            lambda: GetBlocks(chain, 1, number + period).encode(),
            lambda: messages.GetUpdates(chain, number, (value,) * 50).encode(),
            lambda: messages.Behind(chain, 1, 0).encode(),
            lambda: messages.HeadQuery(chain, value).encode(),
        )
        return [
            Send(peer, useless[self.words.below(len(useless))](), Urgency.VOTE) for _ in range(2)
        ]


NOISY_BEHAVIOURS: dict[str, MakeLiar] = {
    "Z1": Silent,
    "Z5": WrongCredentials,
    "Z7": Replayer,
    "Z20": Flooder,
}
