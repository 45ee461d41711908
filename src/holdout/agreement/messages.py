"""The messages between workers: frozen values and their canonical bytes (`wire` reads them).

What is signed travels as the very bytes that were signed, so that nobody has to encode anything
again to check a signature:  kind | signed part | signature | proof of having been drawn.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from holdout.agreement.codec import blob, digest, items, text, u8, u32, u64
from holdout.ids import Digest

PROOF_BYTES_MAX = 80
WORKERS_MAX = 10_000
"""The size of the largest roster; it bounds every list that a peer may send."""


class VoteStep(IntEnum):
    """What a vote in a period says. Each further attempt at recovery adds 3 to LATE, REDO, DOWN."""

    SOFT = 1
    """This is the block to agree on."""
    CERT = 2
    """It has a soft quorum and is valid: commit it."""
    LATE = 3
    """It has a soft quorum and is valid, but this period is too late: carry it over."""
    REDO = 4
    """Carry over again the block that was carried into this period."""
    DOWN = 5
    """Begin the next period with a fresh block."""


def base_step(step: int) -> VoteStep:
    """The step of the first attempt that this step repeats."""
    return VoteStep(step) if step <= VoteStep.DOWN else VoteStep(3 + (step - 3) % 3)


class Kind(IntEnum):
    """The first byte of a message."""

    UPDATE = 1
    BALLOT = 2
    LEAD = 3
    VOTE = 4
    BUNDLE = 5
    EVIDENCE = 6
    FINISHED = 7
    GET_BLOCKS = 8
    GET_UPDATES = 9
    BEHIND = 10
    HEAD_QUERY = 11
    HEAD_ANSWER = 12


REMEMBERED = frozenset({Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE, Kind.BUNDLE, Kind.EVIDENCE})
"""Of these kinds one accepted copy is enough: a driver drops a second one unread. Questions may be
asked again. A certificate of a later round may be needed again too: it can only be used once the
rounds before it are here."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signed part, its signature, and the proof that the sender was drawn (or nothing)."""

    kind: Kind
    signed: bytes
    signature: bytes
    proof: bytes = b""

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return b"".join([u8(self.kind), blob(self.signed), blob(self.signature), blob(self.proof)])


@dataclass(frozen=True, slots=True)
class Update:
    """A proposer's announcement of its gradient: the paper's proposal."""

    chain: Digest
    round: int
    worker: int
    model: Digest
    """The model that the gradient was computed on."""
    payload: Digest
    """SHA-256 of the gradient's bytes, by which they are fetched."""
    size: int
    envelope: Envelope

    @property
    def update_id(self) -> Digest:
        """Names the content, so that approvals of an equivocator's two versions never add up."""
        return digest("upd", blob(self.envelope.signed))


@dataclass(frozen=True, slots=True)
class Entry:
    """One approval on a ballot."""

    proposer: int
    update_id: Digest


@dataclass(frozen=True, slots=True)
class BallotMessage:
    """A voter's approved updates, ascending by proposer."""

    chain: Digest
    round: int
    worker: int
    model: Digest
    entries: tuple[Entry, ...]
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Lead:
    """A leader's announcement of a block for a period: a fresh one, or the one carried over."""

    chain: Digest
    round: int
    period: int
    worker: int
    original_period: int
    value: Digest
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Vote:
    """An agreement vote."""

    chain: Digest
    round: int
    period: int
    step: int
    worker: int
    value: Digest
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class VoteSignature:
    """One vote of a bundle: who signed it, and the proof of having been drawn."""

    worker: int
    signature: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """At least Q equal votes, ascending by worker; one of step CERT is a certificate."""

    chain: Digest
    round: int
    period: int
    step: int
    value: Digest
    marks: tuple[VoteSignature, ...]

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.BUNDLE) + self.encode_bare()

    def encode_bare(self) -> bytes:
        """The bytes without the kind, as part of other messages."""
        return b"".join(
            [
                blob(self.chain),
                u64(self.round),
                u32(self.period),
                u8(self.step),
                blob(self.value),
                items(
                    u32(mark.worker) + blob(mark.signature) + blob(mark.proof)
                    for mark in self.marks
                ),
            ]
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two different messages that one worker signed for one slot, which prove that it lied."""

    first: Envelope
    second: Envelope

    def encode(self) -> bytes:
        """The bytes on the wire; the smaller signed part comes first."""
        return u8(Kind.EVIDENCE) + self.encode_bare()

    def encode_bare(self) -> bytes:
        """The bytes without the kind, as part of a block."""
        return blob(self.first.encode()) + blob(self.second.encode())

    @classmethod
    def of(cls, one: Envelope, other: Envelope) -> "Evidence":
        """The evidence made of two envelopes, in canonical order."""
        first, second = sorted([one, other], key=lambda envelope: envelope.signed)
        return cls(first, second)


@dataclass(frozen=True, slots=True)
class Finished:
    """A decided round: the header of its block and the certificate, all that others must check."""

    header: bytes
    certificate: Bundle

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return b"".join(
            [u8(Kind.FINISHED), blob(self.header), blob(self.certificate.encode_bare())]
        )


@dataclass(frozen=True, slots=True)
class GetBlocks:
    """A request for the finished rounds from `first` to `last`."""

    chain: Digest
    first: int
    last: int

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.GET_BLOCKS) + blob(self.chain) + u64(self.first) + u64(self.last)


@dataclass(frozen=True, slots=True)
class GetUpdates:
    """A request for these update headers, which a ballot from the peer names."""

    chain: Digest
    round: int
    update_ids: tuple[Digest, ...]

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return b"".join(
            [
                u8(Kind.GET_UPDATES),
                blob(self.chain),
                u64(self.round),
                items(blob(update_id) for update_id in self.update_ids),
            ]
        )


@dataclass(frozen=True, slots=True)
class Behind:
    """Tells how far the sender is, and asks for what it misses."""

    chain: Digest
    round: int
    period: int

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.BEHIND) + blob(self.chain) + u64(self.round) + u32(self.period)


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """The question of a worker that lost its memory: which is your newest certificate?"""

    chain: Digest
    nonce: bytes

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.HEAD_QUERY) + blob(self.chain) + blob(self.nonce)


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """The signed answer to a `HeadQuery`; its nonce rules out old answers with too low a round."""

    chain: Digest
    nonce: bytes
    worker: int
    round: int
    """The newest round of which the sender holds a certificate; 0 if there is none."""
    envelope: Envelope


NONCE_BYTES = 32
HEADER_BYTES_MAX = 1_024
ENVELOPE_BYTES_MAX = 64 * WORKERS_MAX
BUNDLE_BYTES_MAX = 256 * WORKERS_MAX

SignedMessage: TypeAlias = Update | BallotMessage | Lead | Vote
"""What a worker signs in a role of a round, once."""

Message: TypeAlias = (
    SignedMessage
    | Bundle
    | Evidence
    | Finished
    | GetBlocks
    | GetUpdates
    | Behind
    | HeadQuery
    | HeadAnswer
)


def update_part(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, round_number: int, worker: int, model: Digest, payload: Digest, size: int
) -> bytes:
    """What a proposer signs."""
    return b"".join(
        [
            text("update"),
            blob(chain),
            u64(round_number),
            u32(worker),
            blob(model),
            blob(payload),
            u64(size),
        ]
    )


def ballot_part(
    chain: Digest, round_number: int, worker: int, model: Digest, entries: tuple[Entry, ...]
) -> bytes:
    """What a voter signs."""
    return b"".join(
        [
            text("ballot"),
            blob(chain),
            u64(round_number),
            u32(worker),
            blob(model),
            items(u32(entry.proposer) + blob(entry.update_id) for entry in entries),
        ]
    )


def lead_part(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, round_number: int, period: int, worker: int, original: int, value: Digest
) -> bytes:
    """What a leader signs."""
    return b"".join(
        [
            text("lead"),
            blob(chain),
            u64(round_number),
            u32(period),
            u32(worker),
            u32(original),
            blob(value),
        ]
    )


def vote_part(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, round_number: int, period: int, step: int, worker: int, value: Digest
) -> bytes:
    """What a member of the consensus committee signs."""
    return b"".join(
        [
            text("vote"),
            blob(chain),
            u64(round_number),
            u32(period),
            u8(step),
            u32(worker),
            blob(value),
        ]
    )


def head_part(chain: Digest, nonce: bytes, worker: int, round_number: int) -> bytes:
    """What a worker signs to tell how far its chain is."""
    return text("head") + blob(chain) + blob(nonce) + u32(worker) + u64(round_number)
