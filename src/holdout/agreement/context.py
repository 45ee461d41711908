"""What all parts of a player share: who it is, what it may sign, and the actions it asks for.

A player signs here and nowhere else: once for each slot, written to disk before it is sent, and
then counted like anybody else's message.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from holdout.agreement.events import Action, BlobKind, Broadcast, Persist, Urgency
from holdout.agreement.keys import Signer, Verifier
from holdout.agreement.messages import Envelope, Finished, Kind, SignedMessage
from holdout.agreement.params import Genesis, Limits, Params, Timing
from holdout.agreement.safety import OwnSlot, Safety, SigningMemory
from holdout.agreement.waits import Waits
from holdout.agreement.wire import open_envelope
from holdout.ids import Digest

Blobs: TypeAlias = tuple[tuple[BlobKind, Digest], ...]

URGENCY = {
    Kind.UPDATE: Urgency.UPDATE,
    Kind.BALLOT: Urgency.BALLOT,
    Kind.LEAD: Urgency.VOTE,
    Kind.VOTE: Urgency.VOTE,
}


@dataclass(slots=True)
class PlayerContext:
    """A worker's identity, its memory, and the actions gathered while it handles an event."""

    genesis: Genesis
    worker: int
    signer: Signer
    verifier: Verifier
    timing: Timing
    limits: Limits
    safety: Safety
    memory: SigningMemory
    waits: Waits
    now: int = 0
    halted: bool = False
    actions: list[Action] = field(default_factory=list)
    uncounted: deque[SignedMessage] = field(default_factory=deque)
    """Messages that this worker has just signed and not counted yet."""

    @property
    def params(self) -> Params:
        """The constants of the run."""
        return self.genesis.params

    @property
    def chain(self) -> Digest:
        """The network's identity."""
        return self.genesis.chain

    @property
    def may_sign(self) -> bool:
        """Whether this worker may take part in the current round; otherwise it only watches."""
        return not self.halted and self.safety.round >= self.memory.votes_from

    def emit(self, action: Action) -> None:
        """Ask the driver for an action."""
        self.actions.append(action)

    def signed(self, slot: OwnSlot) -> bytes | None:
        """The message that this worker has signed for a slot of this round, or None."""
        return self.safety.mine.get(slot)

    def sign(self, slot: OwnSlot, part: bytes, proof: bytes, blobs: Blobs = ()) -> None:
        """Sign for a slot that is still empty: the message is made durable, sent, then counted."""
        assert slot not in self.safety.mine  # noqa: S101
        envelope = Envelope(slot[0], part, self.signer.sign(part), proof)
        self.safety.mine[slot] = data = envelope.encode()
        self.persist(blobs)
        self.emit(Broadcast(data, URGENCY[slot[0]]))
        message = open_envelope(envelope)
        assert isinstance(message, SignedMessage)  # noqa: S101
        self.uncounted.append(message)

    def send_again(self, slot: OwnSlot) -> None:
        """Broadcast again exactly what was signed for a slot."""
        self.emit(Broadcast(self.safety.mine[slot], URGENCY[slot[0]]))

    def persist(self, blobs: Blobs = (), finished: tuple[Finished, ...] = ()) -> None:
        """Make the state durable before any action that follows."""
        self.safety.votes_from = self.memory.votes_from
        self.emit(Persist(self.safety.encode(self.chain), blobs, finished))
