"""What all parts of a player share: who it is, what it may sign, and where actions go.

Signing happens here and nowhere else: once per slot, durable before it leaves, then counted like
anybody else's message.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from holdout.agreement.draws import SignedMessage
from holdout.agreement.events import Action, BlobKind, Broadcast, Persist, Urgency
from holdout.agreement.keys import Signer, Verifier
from holdout.agreement.messages import BallotMessage, Envelope, Finished, Kind, Lead, Update, Vote
from holdout.agreement.params import Genesis, Limits, Params, Timing
from holdout.agreement.safety import OwnSlot, Safety, SigningMemory
from holdout.agreement.wire import open_envelope
from holdout.ids import Digest

PATIENCE = 3
"""Rounds without a word before nobody waits any more."""


class Attendance:
    """When each worker last spoke in each role."""

    def __init__(self, first_round: int) -> None:
        self._first = first_round
        self._heard: dict[tuple[Kind, int], int] = {}

    def note(self, kind: Kind, worker: int, round_number: int) -> None:
        """The worker has spoken in this role, in this round."""
        known = self._heard.get((kind, worker), 0)
        self._heard[kind, worker] = max(known, round_number)

    def present(self, kind: Kind, workers: Iterable[int], round_number: int) -> list[int]:
        """Those of the workers to wait for in this round."""
        since = round_number - PATIENCE
        if since < self._first:
            return list(workers)
        return [worker for worker in workers if self._heard.get((kind, worker), 0) >= since]


Blobs: TypeAlias = tuple[tuple[BlobKind, Digest], ...]

URGENCY = {
    Kind.UPDATE: Urgency.UPDATE,
    Kind.BALLOT: Urgency.BALLOT,
    Kind.LEAD: Urgency.VOTE,
    Kind.VOTE: Urgency.VOTE,
}


@dataclass(slots=True)
class PlayerContext:
    """A worker's identity, its memory, and the actions that pile up while it thinks."""

    genesis: Genesis
    worker: int
    signer: Signer
    verifier: Verifier
    timing: Timing
    limits: Limits
    safety: Safety
    memory: SigningMemory
    attendance: Attendance
    now: int = 0
    halted: bool = False
    actions: list[Action] = field(default_factory=list)
    uncounted: deque[SignedMessage] = field(default_factory=deque)
    """What this worker has just signed and not counted yet."""

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
        """Whether this worker may take part in the current round, or only watches it."""
        return not self.halted and self.safety.round >= self.memory.votes_from

    def emit(self, action: Action) -> None:
        """Ask the driver for something."""
        self.actions.append(action)

    def signed(self, slot: OwnSlot) -> bytes | None:
        """What this worker has signed for a slot of this round."""
        return self.safety.mine.get(slot)

    def sign(self, slot: OwnSlot, part: bytes, proof: bytes, blobs: Blobs = ()) -> None:
        """Sign for a slot that is still empty; durable first, then sent, then counted."""
        assert slot not in self.safety.mine  # noqa: S101
        envelope = Envelope(slot[0], part, self.signer.sign(part), proof)
        self.safety.mine[slot] = data = envelope.encode()
        self.persist(blobs)
        self.emit(Broadcast(data, URGENCY[slot[0]]))
        message = open_envelope(envelope)
        assert isinstance(message, Update | BallotMessage | Lead | Vote)  # noqa: S101
        self.uncounted.append(message)

    def send_again(self, slot: OwnSlot) -> None:
        """Broadcast once more what was signed for a slot, as it was."""
        self.emit(Broadcast(self.safety.mine[slot], URGENCY[slot[0]]))

    def persist(self, blobs: Blobs = (), finished: tuple[Finished, ...] = ()) -> None:
        """Make the state durable before anything that follows."""
        self.safety.votes_from = self.memory.votes_from
        self.emit(Persist(self.safety.encode(self.chain), blobs, finished))
